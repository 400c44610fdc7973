#include "parts.hpp"

// As in waiter.cpp, each has something left to do after its last call.

BUSY_NOINLINE uint64_t spin_until(const volatile LONG *stop) {
  uint64_t value = 1;
  while (!*stop)
    for (unsigned i = 0; i < 10000; i++)
      value = mix(value + i);
  return value | 1;
}

BUSY_NOINLINE bool sleep_until(const volatile LONG *stop) {
  while (!*stop)
    Sleep(200);
  return true;
}

BUSY_NOINLINE bool wait_for_section(CRITICAL_SECTION *section) {
  EnterCriticalSection(section);
  LeaveCriticalSection(section);
  return section != nullptr;
}

BUSY_NOINLINE bool wait_for_srw_lock(SRWLOCK *lock) {
  AcquireSRWLockExclusive(lock);
  ReleaseSRWLockExclusive(lock);
  return lock != nullptr;
}
