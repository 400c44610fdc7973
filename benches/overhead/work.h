/* What the programs of benches/overhead.sh share. */
#include <stdio.h>
#include <windows.h>

static double milliseconds(void)
{
    LARGE_INTEGER now, frequency;
    QueryPerformanceCounter(&now);
    QueryPerformanceFrequency(&frequency);
    return now.QuadPart * 1000.0 / frequency.QuadPart;
}
