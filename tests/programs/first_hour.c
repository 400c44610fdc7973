/* tests/windows-check.ps1 records this program, one mode per run; see its header.
 *
 *   first_hour MODE SECONDS [ARGUMENT]
 *
 * Prints "pid N" and "ready", works for SECONDS, prints its counts as "key value" lines, and "ok"
 * if its own results were right. A mode exit-* ends as its name says after SECONDS and prints
 * nothing then.
 *
 *   x86_64-w64-mingw32-gcc -O2 -s -o first_hour.exe first_hour.c          cl /O2 first_hour.c */
#define _CRT_SECURE_NO_WARNINGS
#include <windows.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPAWNERS 4
#define HAMMERS 8

static ULONGLONG end;
static volatile LONG64 counted, wrong;
static volatile LONG leaving;

static int over(void) { return GetTickCount64() >= end; }

static unsigned mix(unsigned x) {
  x ^= x << 13;
  x ^= x >> 17;
  return x ^ x << 5;
}

static void start(LPTHREAD_START_ROUTINE routine, void *argument, HANDLE *handle) {
  *handle = CreateThread(NULL, 0, routine, argument, 0, NULL);
  if (!*handle) {
    printf("error CreateThread %lu\n", GetLastError());
    exit(2);
  }
}

static void join(HANDLE *threads, int count) {
  for (int i = 0; i < count; i++) {
    WaitForSingleObject(threads[i], INFINITE);
    CloseHandle(threads[i]);
  }
}

/* A thread that lives 0 to 200 microseconds and leaves a result that its spawner checks. */
struct task {
  unsigned seed, result;
};

static DWORD WINAPI short_life(void *argument) {
  struct task *task = argument;
  LARGE_INTEGER frequency, now, until;
  QueryPerformanceFrequency(&frequency);
  QueryPerformanceCounter(&until);
  until.QuadPart += frequency.QuadPart * (task->seed % 200) / 1000000;
  do QueryPerformanceCounter(&now);
  while (now.QuadPart < until.QuadPart);
  task->result = mix(task->seed);
  return 0;
}

static DWORD WINAPI spawner(void *number) {
  unsigned seed = 77 + (unsigned)(ULONG_PTR)number;
  while (!over()) {
    struct task task = {seed = mix(seed), 0};
    HANDLE thread;
    start(short_life, &task, &thread);
    join(&thread, 1);
    if (task.result != mix(task.seed)) InterlockedIncrement64(&wrong);
    InterlockedIncrement64(&counted);
  }
  return 0;
}

static void churn(void) {
  HANDLE threads[SPAWNERS];
  for (int i = 0; i < SPAWNERS; i++) start(spawner, (void *)(ULONG_PTR)i, &threads[i]);
  join(threads, SPAWNERS);
  printf("threads %lld\n", (long long)counted);
}

static DWORD WINAPI wait_for(void *event) {
  WaitForSingleObject(event, INFINITE);
  return 0;
}

/* Threads that only wait: their CPU time is the cost of the recording. */
static void idle(int count) {
  HANDLE event = CreateEventA(NULL, TRUE, FALSE, NULL);
  HANDLE *threads = calloc(count, sizeof *threads);
  if (!threads) exit(2);
  for (int i = 0; i < count; i++) start(wait_for, event, &threads[i]);
  while (!over()) Sleep(50);
  unsigned long long spent = 0;
  for (int i = 0; i < count; i++) {
    FILETIME created, exited, kernel, user;
    GetThreadTimes(threads[i], &created, &exited, &kernel, &user);
    spent += kernel.dwLowDateTime + (unsigned long long)user.dwLowDateTime;
  }
  SetEvent(event);
  join(threads, count);
  printf("waiting_threads %d\nwaiting_cpu_ms %llu\n", count, spent / 10000);
}

static DWORD WINAPI spin(void *unused) {
  volatile unsigned x = 1;
  (void)unused;
  while (!leaving)
    for (int i = 0; i < 10000; i++) x = x * 1664525u + 1013904223u;
  return 0;
}

/* Twice as many spinning threads as processors, short threads, and a DLL that is loaded and
 * unloaded. */
static void saturate(const char *dll) {
  SYSTEM_INFO system;
  GetSystemInfo(&system);
  int count = (int)system.dwNumberOfProcessors * 2;
  HANDLE *threads = calloc(count + 1, sizeof *threads);
  if (!threads) exit(2);
  for (int i = 0; i < count; i++) start(spin, NULL, &threads[i]);
  start(spawner, NULL, &threads[count]);
  long loads = 0;
  while (!over()) {
    HMODULE module = LoadLibraryA(dll);
    if (module) loads++, FreeLibrary(module);
    Sleep(10);
  }
  leaving = 1;
  join(threads, count + 1);
  printf("spinners %d\nloads %ld\nthreads %lld\n", count, loads, (long long)counted);
}

/* Uses the PEB lock, through the current directory and the environment. */
static DWORD WINAPI hammer(void *number) {
  char name[32], value[32], path[MAX_PATH];
  sprintf(name, "STK_HAMMER_%d", (int)(ULONG_PTR)number);
  for (unsigned n = 0; !over(); n++) {
    SetEnvironmentVariableA(name, n & 1 ? "odd" : "even");
    value[0] = 0;
    GetEnvironmentVariableA(name, value, sizeof value);
    if (strcmp(value, n & 1 ? "odd" : "even") || !GetFullPathNameA("relative", sizeof path, path, NULL))
      InterlockedIncrement64(&wrong);
    InterlockedIncrement64(&counted);
  }
  return 0;
}

static void peb_lock(void) {
  HANDLE threads[HAMMERS];
  for (int i = 0; i < HAMMERS; i++) start(hammer, (void *)(ULONG_PTR)i, &threads[i]);
  join(threads, HAMMERS);
  printf("operations %lld\n", (long long)counted);
}

/* PulseEvent wakes the threads that wait at that moment. It misses a thread that is being suspended
 * just then. */
static HANDLE ping, pong;
static volatile LONG64 lost;

static DWORD WINAPI answerer(void *unused) {
  (void)unused;
  while (!leaving) {
    if (WaitForSingleObject(ping, 500) == WAIT_OBJECT_0) SetEvent(pong);
  }
  return 0;
}

static void pulse(void) {
  HANDLE thread;
  ping = CreateEventA(NULL, TRUE, FALSE, NULL);
  pong = CreateEventA(NULL, FALSE, FALSE, NULL);
  start(answerer, NULL, &thread);
  while (!over()) {
    Sleep(2); /* by now the answerer waits */
    PulseEvent(ping);
    if (WaitForSingleObject(pong, 100) == WAIT_OBJECT_0) InterlockedIncrement64(&counted);
    else InterlockedIncrement64(&lost);
  }
  leaving = 1;
  join(&thread, 1);
  printf("pulses %lld\nlost %lld\n", (long long)counted, (long long)lost);
}

/* Makes the process write its own minidump, which suspends all other threads, including the
 * recorder's. */
static void dumps(void) {
  typedef BOOL(WINAPI * write_dump)(HANDLE, DWORD, HANDLE, int, void *, void *, void *);
  HMODULE dbghelp = LoadLibraryA("dbghelp.dll");
  write_dump dump = dbghelp ? (write_dump)(void *)GetProcAddress(dbghelp, "MiniDumpWriteDump") : NULL;
  HANDLE threads[2];
  for (int i = 0; i < 2; i++) start(spin, NULL, &threads[i]);
  while (dump && !over()) {
    HANDLE file = CreateFileA("first_hour.dmp", GENERIC_WRITE, 0, NULL, CREATE_ALWAYS, FILE_FLAG_DELETE_ON_CLOSE, NULL);
    if (file == INVALID_HANDLE_VALUE || !dump(GetCurrentProcess(), GetCurrentProcessId(), file, 0, NULL, NULL, NULL))
      InterlockedIncrement64(&wrong);
    else InterlockedIncrement64(&counted);
    if (file != INVALID_HANDLE_VALUE) CloseHandle(file);
    Sleep(500);
  }
  leaving = 1;
  join(threads, 2);
  printf("dumps %lld\n", (long long)counted);
}

/* Exceptions like C++'s, each handled at once. */
#define CPP 0xE06D7363u

static LONG CALLBACK handle(EXCEPTION_POINTERS *info) {
  if (info->ExceptionRecord->ExceptionCode != CPP) return EXCEPTION_CONTINUE_SEARCH;
  if (info->ExceptionRecord->ExceptionInformation[0] == (ULONG_PTR)counted + 1) counted++;
  else wrong++;
  return EXCEPTION_CONTINUE_EXECUTION;
}

static void throws(void) {
  long long raised = 0;
  AddVectoredExceptionHandler(0, handle);
  while (!over()) {
    for (int i = 0; i < 10; i++) {
      ULONG_PTR number = (ULONG_PTR)++raised;
      RaiseException(CPP, 0, 1, &number);
    }
    Sleep(1);
  }
  if (counted != raised) wrong++;
  printf("exceptions %lld\n", raised);
}

/* Starts this program again and again, a few at once, until the time is over. */
#define BROOD 4

static void children(void) {
  char program[MAX_PATH], line[MAX_PATH + 32];
  long born = 0;
  GetModuleFileNameA(NULL, program, sizeof program);
  while (!over()) {
    HANDLE brood[BROOD];
    for (int i = 0; i < BROOD; i++) {
      STARTUPINFOA startup = {.cb = sizeof startup};
      PROCESS_INFORMATION child;
      sprintf(line, "\"%s\" exit-main 3", program);
      if (!CreateProcessA(program, line, NULL, NULL, FALSE, 0, NULL, NULL, &startup, &child)) {
        printf("error CreateProcess %lu\n", GetLastError());
        exit(2);
      }
      CloseHandle(child.hThread);
      brood[i] = child.hProcess;
      born++;
    }
    for (int i = 0; i < BROOD; i++) {
      DWORD code = 0;
      WaitForSingleObject(brood[i], INFINITE);
      if (!GetExitCodeProcess(brood[i], &code) || code != 7) wrong++;
      CloseHandle(brood[i]);
    }
  }
  printf("children %ld\n", born);
}

/* Ends the process from a thread other than main. */
static DWORD WINAPI ender(void *unused) {
  (void)unused;
  Sleep((DWORD)(end - GetTickCount64()));
  ExitProcess(7);
}

static void ending(const char *how) {
  HANDLE threads[3];
  for (int i = 0; i < 2; i++) start(spin, NULL, &threads[i]);
  if (!strcmp(how, "exit-thread")) start(ender, NULL, &threads[2]), Sleep(INFINITE);
  while (!over()) Sleep(1);
  if (!strcmp(how, "exit-main")) ExitProcess(7);
  if (!strcmp(how, "exit-terminate")) TerminateProcess(GetCurrentProcess(), 7);
  if (!strcmp(how, "exit-abort")) {
#ifdef _MSC_VER /* no dialog */
    _set_abort_behavior(0, _WRITE_ABORT_MSG | _CALL_REPORTFAULT);
#endif
    abort();
  }
  leaving = 1; /* exit-last: the last thread to leave ends the process */
  join(threads, 2);
  ExitThread(7);
}

int main(int count, char **arguments) {
  if (count < 3) return 2;
  const char *mode = arguments[1], *more = count > 3 ? arguments[3] : NULL;
  end = GetTickCount64() + (ULONGLONG)(atof(arguments[2]) * 1000);
  printf("pid %lu\nready\n", GetCurrentProcessId());
  fflush(stdout);
  if (!strcmp(mode, "churn")) churn();
  else if (!strcmp(mode, "idle")) idle(more ? atoi(more) : 300);
  else if (!strcmp(mode, "saturate")) saturate(more ? more : "cabinet.dll");
  else if (!strcmp(mode, "peb-lock")) peb_lock();
  else if (!strcmp(mode, "pulse")) pulse();
  else if (!strcmp(mode, "dumps")) dumps();
  else if (!strcmp(mode, "throws")) throws();
  else if (!strcmp(mode, "children")) children();
  else if (!strncmp(mode, "exit-", 5)) ending(mode);
  else return 2;
  if (wrong) printf("WRONG %lld\n", (long long)wrong);
  else printf("ok\n");
  return wrong != 0;
}
