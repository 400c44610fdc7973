/* Code made at run time, one thread per kind: registered by a table, by a callback, by a callback
 * that fails, replaced by other code at the same address, and a stub that is not registered. Runs
 * for as many seconds as its argument says. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <windows.h>

#define REGION 0x10000
#define CODE 0x1000 /* RVAs in a region */
#define INFO 0x800

static ULONGLONG end;

/* The dynamic code calls this: ordinary code with ordinary unwind data. */
__attribute__((noinline)) static void native_work(void) {
  ULONGLONG until = GetTickCount64() + 30;
  volatile unsigned x = 1;
  while (GetTickCount64() < until)
    for (int i = 0; i < 2000; i++) x = x * 1664525u + 1013904223u;
}

#ifdef __aarch64__
/* stp x29, x30, [sp, #-frame]!; mov x29, sp; blr x0; ldp x29, x30, [sp], #frame; ret, and its
 * unwind data: 5 instructions, one epilogue at the end whose codes begin at the second of set_fp,
 * save_fplr_x, end, nop. */
static void put_function(BYTE *region, BYTE frame) {
  DWORD words = frame / 8;
  DWORD code[] = {0xa9807bfd | (-words & 0x7f) << 15, 0x910003fd, 0xd63f0000, 0xa8c07bfd | words << 15, 0xd65f03c0};
  DWORD info[] = {1u << 27 | 1u << 22 | 1u << 21 | 5, 0xe3e480e1 | (words - 1) << 8};
#else
/* push rbx; sub rsp, frame; mov rbx, rcx; call rbx; nop; add rsp, frame; pop rbx; ret, and its
 * unwind data. */
static void put_function(BYTE *region, BYTE frame) {
  BYTE code[] = {0x53, 0x48, 0x83, 0xec, frame, 0x48, 0x89, 0xcb, 0xff, 0xd3, 0x90, 0x48, 0x83, 0xc4, frame, 0x5b, 0xc3};
  BYTE info[] = {0x01, 5, 2, 0, 5, (BYTE)(((frame - 8) / 8) << 4 | 2), 1, 0x30};
#endif
  memcpy(region + CODE, code, sizeof code);
  memcpy(region + INFO, info, sizeof info);
  FlushInstructionCache(GetCurrentProcess(), region, REGION);
}

static BYTE *region(void) {
  BYTE *made = VirtualAlloc(NULL, REGION, MEM_RESERVE | MEM_COMMIT, PAGE_EXECUTE_READWRITE);
  if (!made) exit(2);
  return made;
}

static RUNTIME_FUNCTION entries[4];

static RUNTIME_FUNCTION *entry(int n) {
  entries[n].BeginAddress = CODE;
#ifndef __aarch64__
  entries[n].EndAddress = CODE + 17;
#endif
  entries[n].UnwindData = INFO;
  return &entries[n];
}

static PRUNTIME_FUNCTION CALLBACK answers(DWORD64 address, void *context) {
  (void)address;
  return context;
}

static PRUNTIME_FUNCTION CALLBACK fails(DWORD64 address, void *context) {
  (void)context;
  return (PRUNTIME_FUNCTION)(ULONG_PTR) * (volatile DWORD *)(address & 8);
}

__attribute__((noinline)) static void call(BYTE *place, void *argument) {
  ((void (*)(void *))(place + CODE))(argument);
  __asm__ volatile("");
}

static DWORD CALLBACK runs(void *place) {
  while (GetTickCount64() < end) call(place, native_work);
  return 0;
}

static DWORD CALLBACK replaces(void *place) {
  for (BYTE frame = 0x20; GetTickCount64() < end; frame ^= 0x60) {
    put_function(place, frame);
    ULONGLONG until = GetTickCount64() + 1500;
    while (GetTickCount64() < until) call(place, native_work);
  }
  return 0;
}

static DWORD CALLBACK stubs(void *place) {
  while (GetTickCount64() < end) call(place, (void *)(ULONG_PTR)20000000);
  return 0;
}

static HANDLE start(const wchar_t *name, LPTHREAD_START_ROUTINE routine, BYTE *place) {
  HANDLE thread = CreateThread(NULL, 0, routine, place, 0, NULL);
  HRESULT(WINAPI * describe)(HANDLE, PCWSTR) =
      (void *)GetProcAddress(GetModuleHandleW(L"kernelbase.dll"), "SetThreadDescription");
  if (!thread || !describe) exit(3);
  describe(thread, name);
  return thread;
}

int main(int argc, char **argv) {
  end = GetTickCount64() + 1000 * (argc > 1 ? atoi(argv[1]) : 5);
  BYTE *table = region(), *callback = region(), *failing = region(), *reused = region(), *stub = region();
  put_function(table, 0x20);
  put_function(callback, 0x40);
  put_function(failing, 0x20);
  put_function(reused, 0x20); /* on arm64, registering reads the function's length here */
#ifdef __aarch64__
  /* again: subs x0, x0, #1; b.ne again; ret */
  DWORD loop[] = {0xf1000400, 0x54ffffe1, 0xd65f03c0};
#else
  /* push rdx; again: dec rcx; jne again; pop rdx; ret */
  BYTE loop[] = {0x52, 0x48, 0xff, 0xc9, 0x75, 0xfb, 0x5a, 0xc3};
#endif
  memcpy(stub + CODE, loop, sizeof loop);
  FlushInstructionCache(GetCurrentProcess(), stub, REGION);
  if (!RtlAddFunctionTable(entry(0), 1, (DWORD64)table)) return 4;
  if (!RtlInstallFunctionTableCallback((DWORD64)callback | 3, (DWORD64)callback, REGION, answers, entry(1), NULL)) return 5;
  if (!RtlInstallFunctionTableCallback((DWORD64)failing | 3, (DWORD64)failing, REGION, fails, NULL, NULL)) return 6;
  if (!RtlAddFunctionTable(entry(3), 1, (DWORD64)reused)) return 7;
  HANDLE threads[] = {start(L"table", runs, table), start(L"callback", runs, callback), start(L"failing", runs, failing),
                      start(L"reused", replaces, reused), start(L"stub", stubs, stub)};
  printf("pid %lu\nready\n", GetCurrentProcessId());
  fflush(stdout);
  WaitForMultipleObjects(5, threads, TRUE, INFINITE);
  printf("done\n");
  return 0;
}
