// This file's name is not ASCII on purpose: the path must come through the PDB and every output unharmed.
#include "inlined.hpp"
#include "parts.hpp"

BUSY_NOINLINE uint64_t measure_sizes(uint64_t seed) {
  uint64_t sum = seed;
  for (unsigned i = 0; i < 20000; i++)
    sum = measure_one(sum, i);
  return sum;
}
