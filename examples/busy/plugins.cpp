#include "parts.hpp"

using PluginRun = uint64_t (*)(uint64_t);

// How often a plug-in is called before it is unloaded: some tenths of a second.
static const unsigned calls_per_load = 60;

BUSY_NOINLINE static bool load_and_call(const wchar_t *name, uint64_t *value, HMODULE *where) {
  HMODULE module = LoadLibraryW(name);
  if (!module)
    return false;
  *where = module;
  PluginRun run = reinterpret_cast<PluginRun>(reinterpret_cast<void *>(GetProcAddress(module, "plugin_run")));
  if (!run)
    return false;
  for (unsigned i = 0; i < calls_per_load; i++) {
    *value = mix(run(*value));
    Sleep(1);
  }
  return FreeLibrary(module) != 0;
}

BUSY_NOINLINE bool use_plugins(uint64_t seed, uint64_t *result, unsigned *same_place) {
  HMODULE first = nullptr, second = nullptr;
  *result = seed;
  // The names are universal character names so that the source's encoding does not matter: plugin_\u00e4.dll.
  if (!load_and_call(L"plugin_a.dll", result, &first) || !load_and_call(L"plugin_\u00e4.dll", result, &second))
    return false;
  *same_place += first == second;
  return true;
}
