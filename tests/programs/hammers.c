// One thread that repeats one operation for SECONDS: hammers.exe peb|heap|environment SECONDS.
// Prints its process id and "ready", and at the end the number of rounds.
//
//   peb          takes and releases the PEB lock
//   heap         allocates and frees 16 blocks of different sizes
//   environment  sets and reads an environment variable, under the PEB lock
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <windows.h>

typedef VOID(WINAPI *LockCall)(void);

static void heap_round(void) {
  void *blocks[16];
  for (int i = 0; i < 16; i++)
    blocks[i] = HeapAlloc(GetProcessHeap(), 0, 24u + 40u * (unsigned)i);
  for (int i = 0; i < 16; i++)
    HeapFree(GetProcessHeap(), 0, blocks[i]);
}

static void environment_round(void) {
  wchar_t text[64];
  SetEnvironmentVariableW(L"STK_HAMMER", L"a value of some length");
  GetEnvironmentVariableW(L"STK_HAMMER", text, 64);
}

int main(int argc, char **argv) {
  if (argc < 3)
    return 2;
  HMODULE ntdll = GetModuleHandleA("ntdll.dll");
  LockCall acquire = (LockCall)(void *)GetProcAddress(ntdll, "RtlAcquirePebLock");
  LockCall release = (LockCall)(void *)GetProcAddress(ntdll, "RtlReleasePebLock");
  printf("pid %lu\nready\n", GetCurrentProcessId());
  fflush(stdout);
  ULONGLONG end = GetTickCount64() + 1000ull * strtoull(argv[2], NULL, 10);
  unsigned long rounds = 0;
  while (GetTickCount64() < end) {
    for (int i = 0; i < 1000; i++) {
      if (argv[1][0] == 'p') {
        acquire();
        release();
      } else if (argv[1][0] == 'h')
        heap_round();
      else
        environment_round();
    }
    rounds++;
  }
  printf("rounds %lu000\n", rounds);
  return 0;
}
