/* A program that reports, at the start of main, which thread initialised its process and whether it
   is being recorded. Its exit code is 10 if everything is as expected, else 1. */
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

/* The C runtime's TLS directory lists the callbacks between .CRT$XLA and .CRT$XLZ. */
__attribute__((section(".CRT$XLM"), used)) static void *tls_callback = (void *)tls;

/* The agent's status (include/stk_agent.h): [2] is its state, 1 = recording; [5] the known modules,
   [6] the samples. */
static uint32_t status[256];

static uint32_t agent_state(void) {
  HMODULE agent = GetModuleHandleW(sizeof(void *) == 8 ? L"agent.dll" : L"agent32.dll");
  uint32_t(WINAPI * ask)(void *) = agent ? (uint32_t(WINAPI *)(void *))(void *)GetProcAddress(agent, "stk_agent_status") : NULL;
  status[0] = 328; /* FIRST_STATUS_SIZE */
  status[1] = 2;   /* CONTROL_VERSION */
  return ask && ask(status) == 0 ? status[2] : 0;
}

int main(int count, char **arguments) {
  uint32_t recording = agent_state();
  DWORD main_thread = GetCurrentThreadId(), dll_thread = launch_probe_thread();
  int expected = count > 1 && strcmp(arguments[1], "alone") == 0 ? 0 : 1;
  /* A recorder that has begun has modules and samples of this program after a while. */
  for (int i = 0; recording == 1 && i < 600 && (status[5] == 0 || status[6] == 0); i++) {
    Sleep(50);
    agent_state();
  }
  printf("dll %s\n", dll_thread == main_thread ? "main" : "other");
  printf("tls %s\n", tls_thread == main_thread ? "main" : "other");
  printf("recording %u\n", recording);
  return dll_thread == main_thread && tls_thread == main_thread && recording == (uint32_t)expected ? 10 : 1;
}
