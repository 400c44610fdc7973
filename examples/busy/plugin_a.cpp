#include "portable.hpp"

BUSY_NOINLINE static uint64_t plugin_a_work(uint64_t seed) {
  for (unsigned i = 0; i < 400000; i++)
    seed = mix(seed + i);
  return seed;
}

extern "C" __declspec(dllexport) uint64_t plugin_run(uint64_t seed) {
  return plugin_a_work(seed) + 1;
}
