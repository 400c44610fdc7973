/* A DLL that stores which thread attached it to the process. */
#include <windows.h>

static DWORD thread;

BOOL WINAPI DllMain(HINSTANCE module, DWORD reason, void *reserved) {
  (void)module, (void)reserved;
  if (reason == DLL_PROCESS_ATTACH)
    thread = GetCurrentThreadId();
  return TRUE;
}

__declspec(dllexport) DWORD launch_probe_thread(void) { return thread; }
