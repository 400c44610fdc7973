/* Works in step with milliseconds, as a recorder at 1 kHz may.
 *
 *   in_step SECONDS
 *
 * In the first half of each millisecond of the performance counter it works in `first_half`, in the
 * other in `second_half`. */
#include <windows.h>
#include <stdlib.h>

static LONGLONG second;
static volatile unsigned work;

/* Whether this is the first half of a millisecond; it takes a few microseconds. */
static int is_first(void) {
  LARGE_INTEGER now;
  for (int n = 0; n < 1000; n++)
    work += n;
  QueryPerformanceCounter(&now);
  return now.QuadPart % (second / 1000) < second / 2000;
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
  second = frequency.QuadPart;
  while ((LONG)(end - GetTickCount()) > 0) {
    first_half();
    second_half();
  }
  return 0;
}
