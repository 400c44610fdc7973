#include "parts.hpp"

static uint64_t recurse_odd(unsigned depth, uint64_t seed);

BUSY_NOINLINE static uint64_t recursion_bottom(uint64_t seed) {
  for (unsigned i = 0; i < 20000; i++)
    seed = mix(seed + i);
  return seed;
}

// The work after the call keeps the compiler from turning the recursion into a loop.
BUSY_NOINLINE uint64_t recurse_even(unsigned depth, uint64_t seed) {
  if (depth == 0)
    return recursion_bottom(seed);
  return mix(recurse_odd(depth - 1, seed + depth)) + depth;
}

// A frame of another size than recurse_even's: the array is filled so that it cannot be left out.
BUSY_NOINLINE static uint64_t recurse_odd(unsigned depth, uint64_t seed) {
  volatile uint64_t locals[24];
  locals[depth % 24] = seed;
  if (depth == 0)
    return recursion_bottom(seed);
  uint64_t below = recurse_even(depth - 1, seed ^ depth);
  return mix(below ^ locals[depth % 24]);
}
