// Built as a DLL whose name is not ASCII, with the same preferred base as plugin_a.dll.
#include "portable.hpp"

BUSY_NOINLINE static uint64_t plugin_b_work(uint64_t seed) {
  for (unsigned i = 0; i < 200000; i++)
    seed = seed / (i + 1) + (seed << 19) + i; // hot: plugin_b_work
  return seed;
}

extern "C" __declspec(dllexport) uint64_t plugin_run(uint64_t seed) {
  return plugin_b_work(seed) + 2;
}
