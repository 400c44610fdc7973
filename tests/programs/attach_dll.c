/* A DLL that, as it is attached, does what ATTACHING says: waits alertably once, for a second, or with calls of its own. */
#include <windows.h>

__declspec(dllexport) int attached;

static void CALLBACK own_call(ULONG_PTR add) { attached += (int)add; }

BOOL WINAPI DllMain(HINSTANCE module, DWORD reason, void *reserved) {
  (void)module, (void)reserved, (void)own_call;
  if (reason == DLL_PROCESS_ATTACH) {
    ATTACHING;
    attached += 1;
  }
  return TRUE;
}
