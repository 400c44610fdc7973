// What clang (mingw) and MSVC spell differently, and the few helpers that every part of busy shares.
#pragma once

#define WIN32_LEAN_AND_MEAN
#ifndef NOMINMAX
#define NOMINMAX
#endif
#include <windows.h>

#include <stdint.h>

#if defined(_MSC_VER) && !defined(__clang__)
#define BUSY_NOINLINE __declspec(noinline)
#define BUSY_INLINE __forceinline
#else
#define BUSY_NOINLINE __attribute__((noinline))
#define BUSY_INLINE inline __attribute__((always_inline))
#endif

// One step of a multiplicative hash: cheap, never constant-folded away because its input is only known at run time.
inline uint64_t mix(uint64_t value) {
  value ^= value >> 29;
  value *= 0xbf58476d1ce4e5b9u;
  return value ^ (value >> 32);
}
