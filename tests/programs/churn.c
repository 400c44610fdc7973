/*
 * Four threads start threads that live 0 to 200 microseconds, for as many seconds as the argument
 * says. Each short thread adds a value made from its number to a sum, which reveals a thread that
 * was lost or ran twice. Prints `pid N` and `ready` first, and `threads N` and `checksum right` at
 * the end.
 *
 *   churn.exe SECONDS
 */
#include <windows.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define SPAWNERS 4

static volatile LONG64 sum, frequency;
static volatile LONG over;
static LONG64 expected[SPAWNERS], started[SPAWNERS];

static uint64_t mix(uint64_t n)
{
    n = (n ^ (n >> 31)) * 0x9E3779B97F4A7C15ull;
    return (n ^ (n >> 29)) & 0xFFFFFF;
}

static DWORD WINAPI brief(void *number)
{
    uint64_t n = (uint64_t)(UINT_PTR)number;
    LARGE_INTEGER begun, now;
    QueryPerformanceCounter(&begun);
    LONG64 ticks = frequency * (LONG64)(mix(n) % 200) / 1000000;
    do
        QueryPerformanceCounter(&now);
    while (now.QuadPart - begun.QuadPart < ticks);
    InterlockedExchangeAdd64(&sum, (LONG64)mix(n));
    return 0;
}

static DWORD WINAPI spawner(void *which)
{
    int index = (int)(INT_PTR)which;
    for (uint64_t n = (uint64_t)index; !over; n += SPAWNERS) {
        HANDLE thread = CreateThread(NULL, 65536, brief, (void *)(UINT_PTR)n, STACK_SIZE_PARAM_IS_A_RESERVATION, NULL);
        if (!thread)
            continue;
        expected[index] += (LONG64)mix(n);
        started[index]++;
        WaitForSingleObject(thread, INFINITE);
        CloseHandle(thread);
    }
    return 0;
}

int main(int argc, char **argv)
{
    LARGE_INTEGER counter;
    HANDLE spawners[SPAWNERS];
    QueryPerformanceFrequency(&counter);
    frequency = counter.QuadPart;
    for (int i = 0; i < SPAWNERS; i++)
        spawners[i] = CreateThread(NULL, 0, spawner, (void *)(INT_PTR)i, 0, NULL);
    printf("pid %lu\nready\n", GetCurrentProcessId());
    fflush(stdout);
    Sleep(1000 * (DWORD)atoi(argc > 1 ? argv[1] : "5"));
    over = 1;
    WaitForMultipleObjects(SPAWNERS, spawners, TRUE, INFINITE);
    LONG64 all = 0, threads = 0;
    for (int i = 0; i < SPAWNERS; i++) {
        all += expected[i];
        threads += started[i];
    }
    printf("threads %lld\nchecksum %s\n", (long long)threads, all == sum ? "right" : "WRONG");
    return all == sum ? 0 : 1;
}
