/* Threads that use a processor while they seem to stand still, for the CPU time of recordings.
 *
 *   burns SECONDS LOOP…
 *
 * A thread for each LOOP, until the first thread ends the process after SECONDS. Prints "pid N"
 * and "ready", then at the end a line "LOOP TID MILLISECONDS" for each thread: its own time by the
 * system's count, in user mode and in the kernel.
 *
 *   empty    for (;;);
 *   flag     while (!flag);
 *   pause    a loop around the instruction pause
 *   stosb    rep stosb, over and over, in which the instruction pointer stands still
 *   read     a loop of a system call that works in the kernel: ReadFile of cached bytes */
#include <windows.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 8
#define BYTES (16 << 20)

static volatile int flag;

static DWORD WINAPI empty(void *unused) {
  (void)unused;
  for (;;)
    __asm__ volatile("");
  return 0;
}

static DWORD WINAPI until_flag(void *unused) {
  (void)unused;
  while (!flag)
    ;
  return 0;
}

static DWORD WINAPI pause_loop(void *unused) {
  (void)unused;
  for (;;)
    __asm__ volatile("pause");
  return 0;
}

static DWORD WINAPI stosb(void *unused) {
  char *bytes = malloc(BYTES);
  (void)unused;
  while (bytes) {
    void *to = bytes;
    size_t count = BYTES;
    __asm__ volatile("rep stosb" : "+D"(to), "+c"(count) : "a"(0) : "memory");
  }
  return 1;
}

static DWORD WINAPI read_loop(void *unused) {
  char folder[MAX_PATH], name[MAX_PATH], *bytes = calloc(BYTES, 1);
  DWORD count;
  HANDLE file;
  (void)unused;
  GetTempPathA(sizeof folder, folder);
  GetTempFileNameA(folder, "brn", 0, name);
  file = CreateFileA(name, GENERIC_READ | GENERIC_WRITE, 0, NULL, CREATE_ALWAYS, FILE_FLAG_DELETE_ON_CLOSE, NULL);
  if (!bytes || file == INVALID_HANDLE_VALUE || !WriteFile(file, bytes, BYTES, &count, NULL)) return 1;
  for (;;) {
    SetFilePointer(file, 0, NULL, FILE_BEGIN);
    if (!ReadFile(file, bytes, BYTES, &count, NULL)) return 1;
  }
}

static const struct {
  const char *name;
  LPTHREAD_START_ROUTINE run;
} LOOPS[] = {
    {"empty", empty}, {"flag", until_flag}, {"pause", pause_loop}, {"stosb", stosb}, {"read", read_loop},
};

static unsigned long milliseconds(HANDLE thread) {
  FILETIME created, ended, kernel, user;
  ULARGE_INTEGER k, u;
  GetThreadTimes(thread, &created, &ended, &kernel, &user);
  k.LowPart = kernel.dwLowDateTime, k.HighPart = kernel.dwHighDateTime;
  u.LowPart = user.dwLowDateTime, u.HighPart = user.dwHighDateTime;
  return (unsigned long)((k.QuadPart + u.QuadPart) / 10000);
}

int main(int argc, char **argv) {
  HANDLE threads[MOST];
  DWORD tids[MOST];
  int count = argc - 2;
  if (count < 1 || count > MOST) return 2;
  printf("pid %lu\nready\n", GetCurrentProcessId());
  fflush(stdout);
  for (int i = 0; i < count; i++) {
    size_t loop = 0;
    while (loop < sizeof LOOPS / sizeof *LOOPS && strcmp(LOOPS[loop].name, argv[i + 2])) loop++;
    if (loop == sizeof LOOPS / sizeof *LOOPS) return 2;
    threads[i] = CreateThread(NULL, 0, LOOPS[loop].run, NULL, 0, &tids[i]);
    if (!threads[i]) return 2;
  }
  Sleep(atoi(argv[1]) * 1000);
  for (int i = 0; i < count; i++) {
    if (WaitForSingleObject(threads[i], 0) != WAIT_TIMEOUT) return 3;
    printf("%s %lu %lu\n", argv[i + 2], tids[i], milliseconds(threads[i]));
  }
  fflush(stdout);
  ExitProcess(0);
}
