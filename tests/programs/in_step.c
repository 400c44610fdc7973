/* Works in step with a recorder.
 *
 *   in_step SECONDS RATE
 *
 * RATE times a second: in the first half of each period of the performance counter it works in
 * `first_half`, in the other in `second_half`. */
#include <windows.h>
#include <stdlib.h>

static LONGLONG period;
static volatile unsigned work;

/* Whether this is the first half of a period; it takes a few microseconds. */
static int is_first(void) {
  LARGE_INTEGER now;
  for (int n = 0; n < 1000; n++)
    work += n;
  QueryPerformanceCounter(&now);
  return now.QuadPart % period < period / 2;
}

__declspec(dllexport) __attribute__((noinline)) void first_half(void) {
  while (is_first())
    work++;
}

__declspec(dllexport) __attribute__((noinline)) void second_half(void) {
  while (!is_first())
    work++;
}

int main(int count, char **arguments) {
  DWORD end = GetTickCount() + 1000 * (count > 1 ? atoi(arguments[1]) : 1);
  LARGE_INTEGER frequency;
  QueryPerformanceFrequency(&frequency);
  period = frequency.QuadPart / (count > 2 ? atoi(arguments[2]) : 1000);
  while ((LONG)(end - GetTickCount()) > 0) {
    first_half();
    second_half();
  }
  return 0;
}
