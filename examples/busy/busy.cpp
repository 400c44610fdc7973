// A program to record: named threads with known stacks. See README.md for what each one shows.
//
//   busy [SECONDS]    runs for so long, or until it is killed
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

void name_thread(HANDLE thread, const wchar_t *name) {
  if (set_description)
    set_description(thread, name);
}

BUSY_NOINLINE int run_parts(unsigned seconds) {
  set_description = reinterpret_cast<SetDescription>(
      reinterpret_cast<void *>(GetProcAddress(GetModuleHandleW(L"kernel32.dll"), "SetThreadDescription")));
  name_thread(GetCurrentThread(), L"main");
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
  const char *space = strrchr(GetCommandLineA(), ' ');
  ExitProcess(static_cast<UINT>(run_parts(space ? static_cast<unsigned>(atoi(space + 1)) : 0)));
}

#ifdef _MSC_VER
int main() { return busy_main(); }
#endif
