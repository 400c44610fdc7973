// A program to record: named threads with known stacks. See README.md for what each one shows.
//
//   busy [SECONDS]           runs for so long, or until it is killed
//   busy states [SECONDS]    instead of its parts runs a thread for each state: one that computes, one that sleeps, two that a lock blocks
//
// Prints its process id and "ready", and at the end how often each part ran and a checksum. The checksum is of one round of each
// part, and every later round is compared with the first: it is the same in every run unless something disturbed the program.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parts.hpp"

namespace {

enum Part { recursion, leaves, sizes, spawning, plugins, part_count };

struct Progress {
  uint64_t expected; // the first round's result
  volatile LONG rounds;
  volatile LONG mismatches;
};

const wchar_t *const thread_names[part_count] = {L"recursion", L"leaf loops", L"größe", L"spawner", L"plugins"};
Progress progress[part_count];
volatile LONG stopping;
unsigned same_place;
volatile LONG plugin_failures;

using SetDescription = HRESULT(WINAPI *)(HANDLE, PCWSTR);
SetDescription set_description; // null before Windows 10 1607, which is worth recording too

void note_round(Part part, uint64_t result) {
  Progress &p = progress[part];
  if (p.rounds == 0)
    p.expected = result;
  else if (result != p.expected)
    InterlockedIncrement(&p.mismatches);
  InterlockedIncrement(&p.rounds);
}

// Each part rests after a round: on a machine with two cores four parts and a recorder must all get their turn.
DWORD WINAPI recursion_main(void *) {
  while (!stopping) {
    for (unsigned i = 0; i < 40; i++)
      note_round(recursion, recurse_even(150, 1));
    Sleep(3);
  }
  return 0;
}

DWORD WINAPI leaves_main(void *) {
  while (!stopping) {
    for (unsigned i = 0; i < 12; i++)
      note_round(leaves, leaf_loops(2));
    Sleep(3);
  }
  return 0;
}

DWORD WINAPI sizes_main(void *) {
  while (!stopping) {
    for (unsigned i = 0; i < 12; i++)
      note_round(sizes, measure_sizes(3));
    Sleep(3);
  }
  return 0;
}

DWORD WINAPI spawner_main(void *) {
  for (unsigned number = 0; !stopping; number++) {
    note_round(spawning, spawn_worker(number, 4));
    Sleep(2);
  }
  return 0;
}

DWORD WINAPI plugins_main(void *) {
  while (!stopping) {
    uint64_t result = 0;
    if (use_plugins(5, &result, &same_place))
      note_round(plugins, result);
    else {
      InterlockedIncrement(&plugin_failures);
      Sleep(100);
    }
  }
  return 0;
}

DWORD WINAPI waiter_main(void *event) {
  return wait_for_event(event) ? 0 : 1;
}

unsigned long long milliseconds(const FILETIME &kernel, const FILETIME &user) {
  ULARGE_INTEGER sum[2] = {{{kernel.dwLowDateTime, kernel.dwHighDateTime}}, {{user.dwLowDateTime, user.dwHighDateTime}}};
  return (sum[0].QuadPart + sum[1].QuadPart) / 10000;
}

volatile LONG threads_cpu; // of the threads of run_states, in milliseconds

// Adds the CPU time of this thread, in milliseconds, with this sign; and returns it. Threads do it at their end: Wine forgets the times of threads
// that ended.
LONG note_cpu(LONG sign = 1) {
  FILETIME created, exited, kernel, user;
  if (!GetThreadTimes(GetCurrentThread(), &created, &exited, &kernel, &user))
    return 0;
  LONG own = static_cast<LONG>(milliseconds(kernel, user));
  InterlockedExchangeAdd(&threads_cpu, sign * own);
  return own;
}

LONG spinner_cpu; // of the spinner alone

DWORD WINAPI spinner_main(void *) {
  bool done = spin_until(&stopping) != 0;
  spinner_cpu = note_cpu();
  return done ? 0 : 1;
}

DWORD WINAPI sleeper_main(void *) {
  bool done = sleep_until(&stopping);
  note_cpu();
  return done ? 0 : 1;
}

DWORD WINAPI blocked_main(void *section) {
  bool done = wait_for_section(static_cast<CRITICAL_SECTION *>(section));
  note_cpu();
  return done ? 0 : 1;
}

DWORD WINAPI blocked_srw_main(void *lock) {
  bool done = wait_for_srw_lock(static_cast<SRWLOCK *>(lock));
  note_cpu();
  return done ? 0 : 1;
}

HANDLE start(LPTHREAD_START_ROUTINE routine, void *argument, const wchar_t *name) {
  HANDLE thread = CreateThread(nullptr, 0, routine, argument, CREATE_SUSPENDED, nullptr);
  if (!thread) {
    printf("busy: CreateThread failed with %lu\n", GetLastError());
    ExitProcess(1);
  }
  name_thread(thread, name);
  ResumeThread(thread);
  return thread;
}

int report() {
  uint64_t checksum = 0;
  long wrong = plugin_failures;
  for (unsigned i = 0; i < part_count; i++) {
    checksum = mix(checksum ^ progress[i].expected);
    wrong += progress[i].mismatches;
  }
  printf("rounds: recursion %ld, leaf loops %ld, sizes %ld, spawner %ld, plugins %ld (%u at the same address)\n",
              progress[recursion].rounds, progress[leaves].rounds, progress[sizes].rounds, progress[spawning].rounds,
              progress[plugins].rounds, same_place);
  if (wrong)
    printf("WRONG: %ld rounds differ from the first or failed\n", wrong);
  printf("checksum %016llx\n", static_cast<unsigned long long>(checksum));
  fflush(stdout);
  return wrong ? 1 : 0;
}

} // namespace

// The first thread owns both locks from before the others start until they shall end. At the end it says what the clocks of the spinner, of
// all its threads, and of the process show, to which a recorder's threads belong.
BUSY_NOINLINE int run_states(unsigned seconds) {
  note_cpu(-1); // what the system needed to start it
  CRITICAL_SECTION section;
  InitializeCriticalSection(&section);
  SRWLOCK lock = SRWLOCK_INIT;
  EnterCriticalSection(&section);
  AcquireSRWLockExclusive(&lock);
  HANDLE threads[] = {
      start(spinner_main, nullptr, L"spinner"),
      start(sleeper_main, nullptr, L"sleeper"),
      start(blocked_main, &section, L"blocked"),
      start(blocked_srw_main, &lock, L"blocked srw"),
  };
  printf("pid %lu\nready\n", GetCurrentProcessId());
  fflush(stdout);

  Sleep(seconds ? seconds * 1000 : INFINITE);
  InterlockedExchange(&stopping, 1);
  ReleaseSRWLockExclusive(&lock);
  LeaveCriticalSection(&section);
  WaitForMultipleObjects(sizeof threads / sizeof *threads, threads, TRUE, INFINITE);
  note_cpu();
  FILETIME created, exited, kernel, user;
  if (!GetProcessTimes(GetCurrentProcess(), &created, &exited, &kernel, &user))
    return 1;
  printf("spinner %ld ms, threads %ld ms, process %llu ms\n", spinner_cpu, threads_cpu, milliseconds(kernel, user));
  fflush(stdout);
  return 0;
}

void name_thread(HANDLE thread, const wchar_t *name) {
  if (set_description)
    set_description(thread, name);
}

BUSY_NOINLINE int run_parts(unsigned seconds) {
  HANDLE event = CreateEventW(nullptr, TRUE, FALSE, nullptr);
  HANDLE threads[] = {
      start(recursion_main, nullptr, thread_names[recursion]), start(leaves_main, nullptr, thread_names[leaves]),
      start(sizes_main, nullptr, thread_names[sizes]),         start(spawner_main, nullptr, thread_names[spawning]),
      start(plugins_main, nullptr, thread_names[plugins]),     start(waiter_main, event, L"waiter"),
  };
  printf("pid %lu\nready\n", GetCurrentProcessId());
  fflush(stdout);

  Sleep(seconds ? seconds * 1000 : INFINITE);
  InterlockedExchange(&stopping, 1);
  SetEvent(event);
  WaitForMultipleObjects(sizeof threads / sizeof *threads, threads, TRUE, INFINITE);
  return report();
}

// The entry point. Where build.sh makes the program it is the very first function: mingw's start-up code has no records in a PDB and would be
// a frame without a name. So the only arguments are the command line, and the end is ExitProcess.
extern "C" int busy_main() {
  const char *line = GetCommandLineA(), *space = strrchr(line, ' ');
  unsigned seconds = space ? static_cast<unsigned>(atoi(space + 1)) : 0;
  set_description = reinterpret_cast<SetDescription>(
      reinterpret_cast<void *>(GetProcAddress(GetModuleHandleW(L"kernel32.dll"), "SetThreadDescription")));
  name_thread(GetCurrentThread(), L"main");
  int result = strstr(line, " states") ? run_states(seconds) : run_parts(seconds);
  ExitProcess(static_cast<UINT>(result));
}

#ifdef _MSC_VER
int main() { return busy_main(); }
#endif
