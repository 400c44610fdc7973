// A target that is hard to record: many threads that load and free DLLs, allocate, throw C++ exceptions, take hardware faults, and start and end
// threads, all at once, and that check their own results.
//
//   stress [SECONDS] [COPIES]    default 10 seconds, one copy of each thread
//
// Prints its process id and "ready", then "stress ok" with its counts and exits with 0, or "stress FAILED" with what went wrong and exits with 1.
#define WIN32_LEAN_AND_MEAN
#ifndef NOMINMAX
#define NOMINMAX
#endif
#include <windows.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#if defined(_MSC_VER) && !defined(__clang__)
#define STRESS_NOINLINE __declspec(noinline)
#else
#define STRESS_NOINLINE __attribute__((noinline))
#endif

namespace {

volatile LONG stopping;

enum Kind { loads, allocations, throws, faults, threads_ended, kind_count };
const char *const kind_names[kind_count] = {"loads", "allocations", "throws", "faults", "threads"};
volatile LONG64 counts[kind_count];

CRITICAL_SECTION failure_lock;
LONG failures;

void fail(const char *what, unsigned long detail) {
  EnterCriticalSection(&failure_lock);
  if (failures++ < 20)
    std::fprintf(stderr, "stress: %s (%lu)\n", what, detail);
  LeaveCriticalSection(&failure_lock);
}

void done(Kind kind) { InterlockedIncrement64(&counts[kind]); }

uint64_t next(uint64_t &state) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

// DLLs: an own one, which is mapped and unmapped each time, and a system one, whose dependencies come and go too.

DWORD WINAPI load_own(void *) {
  while (!stopping) {
    HMODULE module = LoadLibraryW(L"stress_plugin.dll");
    if (!module) {
      fail("LoadLibrary stress_plugin.dll", GetLastError());
      return 1;
    }
    auto answer = reinterpret_cast<int (*)(int)>(reinterpret_cast<void *>(GetProcAddress(module, "stress_answer")));
    if (!answer || answer(20) != 41)
      fail("stress_plugin.dll gives a wrong answer", 0);
    if (!FreeLibrary(module))
      fail("FreeLibrary stress_plugin.dll", GetLastError());
    done(loads);
  }
  return 0;
}

DWORD WINAPI load_system(void *) {
  while (!stopping) {
    HMODULE module = LoadLibraryW(L"winhttp.dll");
    if (!module) {
      fail("LoadLibrary winhttp.dll", GetLastError());
      return 1;
    }
    if (!GetProcAddress(module, "WinHttpOpen"))
      fail("winhttp.dll has no WinHttpOpen", GetLastError());
    if (!FreeLibrary(module))
      fail("FreeLibrary winhttp.dll", GetLastError());
    done(loads);
  }
  return 0;
}

// Memory: blocks of changing sizes, each filled with its own pattern, which must still be there when it is freed.

struct Block {
  unsigned char *data;
  size_t size;
  unsigned char pattern;
};

void free_block(Block &block) {
  for (size_t i = 0; i < block.size; i++)
    if (block.data[i] != block.pattern) {
      fail("memory changed at offset", static_cast<unsigned long>(i));
      break;
    }
  std::free(block.data);
  block.data = nullptr;
}

DWORD WINAPI allocate(void *argument) {
  uint64_t state = reinterpret_cast<uintptr_t>(argument) * 2654435761u + 88172645463325252u;
  std::vector<Block> blocks(64);
  while (!stopping) {
    Block &block = blocks[next(state) % blocks.size()];
    if (block.data)
      free_block(block);
    block.size = 1 + next(state) % (next(state) % 16 == 0 ? 300000 : 600);
    block.pattern = static_cast<unsigned char>(next(state));
    block.data = static_cast<unsigned char *>(std::malloc(block.size));
    if (!block.data) {
      fail("malloc", static_cast<unsigned long>(block.size));
      return 1;
    }
    std::memset(block.data, block.pattern, block.size);
    done(allocations);
  }
  for (Block &block : blocks)
    if (block.data)
      free_block(block);
  return 0;
}

// C++ exceptions: thrown from some depth, through frames with destructors, each of which must run once.

struct Counted {
  int &alive;
  explicit Counted(int &count) : alive(count) { alive++; }
  ~Counted() { alive--; }
  Counted(const Counted &) = delete;
  Counted &operator=(const Counted &) = delete;
};

STRESS_NOINLINE int descend(int depth, int &alive, int tag) {
  Counted counted(alive);
  volatile int padding[16];
  padding[depth & 15] = depth;
  if (depth == 0)
    throw std::runtime_error("tag " + std::to_string(tag));
  return descend(depth - 1, alive, tag) + padding[depth & 15];
}

DWORD WINAPI throw_and_catch(void *) {
  int alive = 0;
  for (int tag = 0; !stopping; tag++) {
    bool caught = false;
    try {
      descend(tag % 40, alive, tag);
    } catch (const std::exception &error) {
      caught = error.what() == "tag " + std::to_string(tag);
    }
    if (!caught)
      fail("an exception was not caught, or another one was", static_cast<unsigned long>(tag));
    if (alive != 0)
      fail("destructors left out by an exception", static_cast<unsigned long>(alive));
    done(throws);
  }
  return 0;
}

// Hardware faults: a write to a read-only page, which the vectored handler makes writable before it lets the write run again.

thread_local unsigned char *guarded;
thread_local int faults_handled;

LONG CALLBACK on_fault(EXCEPTION_POINTERS *info) {
  const EXCEPTION_RECORD *record = info->ExceptionRecord;
  if (record->ExceptionCode != EXCEPTION_ACCESS_VIOLATION || !guarded ||
      record->ExceptionInformation[1] != reinterpret_cast<ULONG_PTR>(guarded))
    return EXCEPTION_CONTINUE_SEARCH;
  DWORD old;
  faults_handled++;
  return VirtualProtect(guarded, 4096, PAGE_READWRITE, &old) ? EXCEPTION_CONTINUE_EXECUTION : EXCEPTION_CONTINUE_SEARCH;
}

DWORD WINAPI fault(void *) {
  guarded = static_cast<unsigned char *>(VirtualAlloc(nullptr, 4096, MEM_COMMIT | MEM_RESERVE, PAGE_READWRITE));
  if (!guarded) {
    fail("VirtualAlloc", GetLastError());
    return 1;
  }
  for (int round = 0; !stopping; round++) {
    DWORD old;
    if (!VirtualProtect(guarded, 4096, PAGE_READONLY, &old))
      fail("VirtualProtect", GetLastError());
    unsigned char value = static_cast<unsigned char>(round);
    *static_cast<volatile unsigned char *>(guarded) = value;
    if (*guarded != value || faults_handled != round + 1)
      fail("a fault was lost or handled twice in round", static_cast<unsigned long>(round));
    done(faults);
  }
  return 0;
}

// Threads that only begin and end, in threes, so that thread ids are used again.

DWORD WINAPI short_life(void *argument) {
  InterlockedIncrement(static_cast<volatile LONG *>(argument));
  return 7;
}

DWORD WINAPI spawn(void *) {
  while (!stopping) {
    volatile LONG ran = 0;
    HANDLE children[3];
    unsigned count = 0;
    for (; count < 3; count++) {
      children[count] = CreateThread(nullptr, 0, short_life, const_cast<LONG *>(&ran), 0, nullptr);
      if (!children[count]) {
        fail("CreateThread", GetLastError());
        break;
      }
    }
    for (unsigned i = 0; i < count; i++) {
      DWORD code = 0;
      WaitForSingleObject(children[i], INFINITE);
      if (!GetExitCodeThread(children[i], &code) || code != 7)
        fail("a thread ended with another code", code);
      CloseHandle(children[i]);
      done(threads_ended);
    }
    if (ran != static_cast<LONG>(count))
      fail("threads that did not run", static_cast<unsigned long>(count - ran));
  }
  return 0;
}

} // namespace

int main(int argc, char **argv) {
  unsigned seconds = argc > 1 ? static_cast<unsigned>(std::atoi(argv[1])) : 10;
  unsigned copies = argc > 2 ? static_cast<unsigned>(std::atoi(argv[2])) : 1;
  const LPTHREAD_START_ROUTINE routines[] = {load_own, load_system, allocate, throw_and_catch, fault, spawn};
  const unsigned routine_count = sizeof routines / sizeof *routines;
  if (copies < 1 || copies * routine_count > MAXIMUM_WAIT_OBJECTS) {
    std::fprintf(stderr, "stress: COPIES must be 1 to %u\n", MAXIMUM_WAIT_OBJECTS / routine_count);
    return 2;
  }
  InitializeCriticalSection(&failure_lock);
  AddVectoredExceptionHandler(1, on_fault);

  std::vector<HANDLE> threads;
  for (unsigned i = 0; i < copies * routine_count; i++) {
    void *number = reinterpret_cast<void *>(static_cast<uintptr_t>(i));
    HANDLE thread = CreateThread(nullptr, 0, routines[i % routine_count], number, 0, nullptr);
    if (!thread) {
      std::fprintf(stderr, "stress: CreateThread failed with %lu\n", GetLastError());
      return 1;
    }
    threads.push_back(thread);
  }
  std::printf("pid %lu\nready\n", GetCurrentProcessId());
  std::fflush(stdout);

  Sleep(seconds * 1000);
  InterlockedExchange(&stopping, 1);
  // A thread that does not end is a failure of its own: a deadlock.
  DWORD waited = WaitForMultipleObjects(static_cast<DWORD>(threads.size()), threads.data(), TRUE, 60000);
  if (waited == WAIT_TIMEOUT)
    fail("threads still running 60 s after the end", 0);
  for (unsigned i = 0; i < kind_count; i++)
    if (counts[i] == 0)
      fail(kind_names[i], 0);

  std::printf("stress %s:", failures ? "FAILED" : "ok");
  for (unsigned i = 0; i < kind_count; i++)
    std::printf(" %s %lld", kind_names[i], static_cast<long long>(counts[i]));
  std::printf(" failures %ld\n", failures);
  std::fflush(stdout);
  // Not by a plain return: after a deadlock the loader lock may be held, and ending in order would hang.
  TerminateProcess(GetCurrentProcess(), failures ? 1 : 0);
}
