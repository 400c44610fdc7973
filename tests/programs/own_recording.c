/* A program that links agent.dll through its import library and records itself for a second.
 *
 *   own_recording.exe             writes own.stk here; exit code: what stk_agent_start returned, 20 + stk_agent_stop, 30: no file
 *
 * Without a C runtime, so that every linker can link it with kernel32's import library alone: the
 * entry is `begin`. */
#include <stk_agent.h>
#include <windows.h>

static stk_agent_config config = {
    .size = sizeof config,
    .version = STK_CONTROL_VERSION,
    .rate_mhz = 1000000,
    .flags = STK_FLAG_UNGUARDED,
    .uuid = "own_recording.c",
};

void begin(void) {
  HANDLE file = CreateFileW(L"own.stk", GENERIC_WRITE, FILE_SHARE_READ, NULL, CREATE_NEW, 0, NULL);
  UINT code = 30;
  if (file != INVALID_HANDLE_VALUE) {
    config.output = (uint64_t)(uintptr_t)file;
    code = stk_agent_start(&config);
    if (code == STK_START_OK) {
      Sleep(1000);
      stk_mark("own_recording");
      code = stk_agent_stop(NULL);
      if (code) code += 20;
    }
  }
  ExitProcess(code);
}
