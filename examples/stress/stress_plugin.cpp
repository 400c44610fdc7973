// The DLL that stress loads and frees; its start-up code makes each load do some work under the loader lock.
#define WIN32_LEAN_AND_MEAN
#include <windows.h>

static int table[1024];

extern "C" __declspec(dllexport) int stress_answer(int value) { return value + table[21]; }

BOOL WINAPI DllMain(HINSTANCE, DWORD reason, void *) {
  if (reason == DLL_PROCESS_ATTACH)
    for (int i = 0; i < 1024; i++)
      table[i] = i;
  return TRUE;
}
