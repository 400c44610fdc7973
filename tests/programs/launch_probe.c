/* A program that tells, at the first instruction of main, which thread initialised its process and whether it is being recorded.
   Its exit code: 10 if all is as it should be, else 1. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <windows.h>

__declspec(dllimport) DWORD launch_probe_thread(void);

static DWORD tls_thread;

static void NTAPI tls(void *module, DWORD reason, void *reserved) {
  (void)module, (void)reserved;
  if (reason == DLL_PROCESS_ATTACH)
    tls_thread = GetCurrentThreadId();
}

/* The C runtime's TLS directory points to what lies between .CRT$XLA and .CRT$XLZ. */
__attribute__((section(".CRT$XLM"), used)) static void *tls_callback = (void *)tls;

/* 1 = recording (include/stk_agent.h). */
static uint32_t agent_state(void) {
  static uint32_t status[256];
  HMODULE agent = GetModuleHandleW(L"agent.dll");
  uint32_t (*ask)(void *) = agent ? (uint32_t (*)(void *))(void *)GetProcAddress(agent, "stk_agent_status") : NULL;
  status[0] = 328; /* FIRST_STATUS_SIZE */
  status[1] = 2;   /* CONTROL_VERSION */
  return ask && ask(status) == 0 ? status[2] : 0;
}

int main(int count, char **arguments) {
  uint32_t recording = agent_state();
  DWORD main_thread = GetCurrentThreadId(), dll_thread = launch_probe_thread();
  int expected = count > 1 && strcmp(arguments[1], "alone") == 0 ? 0 : 1;
  printf("dll %s\n", dll_thread == main_thread ? "main" : "other");
  printf("tls %s\n", tls_thread == main_thread ? "main" : "other");
  printf("recording %u\n", recording);
  return dll_thread == main_thread && tls_thread == main_thread && recording == (uint32_t)expected ? 10 : 1;
}
