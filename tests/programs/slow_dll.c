/* A DLL that inject takes for an agent. It holds the loader lock for three seconds while it is
 * loaded. */
#include <windows.h>

BOOL WINAPI DllMain(HINSTANCE module, DWORD reason, void *reserved) {
  (void)module, (void)reserved;
  if (reason == DLL_PROCESS_ATTACH)
    Sleep(3000);
  return TRUE;
}

__declspec(dllexport) unsigned stk_agent_start(void *config) { return config == 0; }
__declspec(dllexport) unsigned stk_agent_stop(void *unused) { return unused == 0; }
__declspec(dllexport) unsigned stk_agent_status(void *status) { return status == 0; }
