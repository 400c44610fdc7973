#include "parts.hpp"

// Three functions that call nothing: x64 code need not keep unwind data for them.
BUSY_NOINLINE static uint64_t leaf_multiply(uint64_t value) {
  for (unsigned i = 1; i < 600; i++)
    value = value * 6364136223846793005u + i;
  return value;
}

BUSY_NOINLINE static uint64_t leaf_divide(uint64_t value) {
  for (unsigned i = 1; i < 150; i++)
    value = value / i + (value << 17) + i;
  return value;
}

BUSY_NOINLINE static uint64_t leaf_shuffle(uint64_t value) {
  for (unsigned i = 1; i < 600; i++)
    value = (value << 13 | value >> 51) ^ (value + i); // hot: leaf_shuffle
  return value;
}

BUSY_NOINLINE uint64_t leaf_loops(uint64_t seed) {
  for (unsigned i = 0; i < 80; i++) {
    seed ^= leaf_multiply(seed);
    seed += leaf_divide(seed);
    seed ^= leaf_shuffle(seed + i);
  }
  return seed;
}
