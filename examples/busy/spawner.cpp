#include "parts.hpp"

namespace {

struct Task {
  uint64_t seed;
  uint64_t result;
};

BUSY_NOINLINE uint64_t short_lived_work(uint64_t seed) {
  for (unsigned i = 0; i < 200000; i++)
    seed = mix(seed ^ i);
  return seed;
}

DWORD WINAPI worker_main(void *argument) {
  Task *task = static_cast<Task *>(argument);
  task->result = short_lived_work(task->seed);
  Sleep(200); // long enough to be seen on a loaded machine too
  return 0;
}

} // namespace

BUSY_NOINLINE uint64_t spawn_worker(unsigned number, uint64_t seed) {
  Task task = {seed, 0};
  HANDLE thread = CreateThread(nullptr, 0, worker_main, &task, CREATE_SUSPENDED, nullptr);
  if (!thread)
    return 0;
  wchar_t name[] = L"worker 0";
  name[7] = static_cast<wchar_t>(L'0' + number % 10);
  name_thread(thread, name);
  ResumeThread(thread);
  WaitForSingleObject(thread, INFINITE);
  CloseHandle(thread);
  return task.result;
}
