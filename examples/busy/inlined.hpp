// Helpers that the compiler always inlines, three levels deep: a sample in their code must show all of them.
#pragma once

#include "portable.hpp"

BUSY_INLINE uint64_t rotate_left(uint64_t value, unsigned bits) {
  return (value << (bits & 63)) | (value >> ((64 - bits) & 63));
}

BUSY_INLINE uint64_t rotate_and_add(uint64_t sum, uint64_t value) {
  // The division keeps this level busy enough to be sampled in its own right.
  return rotate_left(sum, static_cast<unsigned>(value)) + value / (sum | 1); // hot: rotate_and_add
}

BUSY_INLINE uint64_t measure_one(uint64_t sum, uint64_t value) {
  sum = rotate_and_add(sum, value);
  return rotate_and_add(sum ^ 0x9e3779b97f4a7c15u, value + 1);
}
