/*
 * Fixed work whose time is measured from inside, so that starting the program and the recorder is no part of it.
 *
 *   hammers.exe lock|heap|environment|waiters ROUNDS DONE
 *
 * Prints `elapsed_ms N` and ends when the file DONE exists.
 */
#include <stdlib.h>
#include <string.h>

#include "work.h"

#define HAMMERS 2
#define WAITERS 300

static int rounds;
static volatile LONG64 result;
static CRITICAL_SECTION lock;
static HANDLE never;

static LONG64 compute(int n)
{
    volatile LONG64 sum = 0;
    for (int i = 0; i < n; i++)
        sum += (LONG64)i * i;
    return sum;
}

/* Two threads that want the same lock. */
static DWORD WINAPI hammer_lock(void *unused)
{
    for (int i = 0; i < rounds; i++) {
        EnterCriticalSection(&lock);
        result += compute(20);
        LeaveCriticalSection(&lock);
        compute(60);
    }
    return 0;
}

/* Two threads that allocate and free in the process's heap. */
static DWORD WINAPI hammer_heap(void *unused)
{
    void *kept[64] = {0};
    unsigned random = 1;
    for (int i = 0; i < rounds; i++) {
        random = random * 1103515245 + 12345;
        void **place = &kept[random >> 16 & 63];
        HeapFree(GetProcessHeap(), 0, *place);
        *place = HeapAlloc(GetProcessHeap(), 0, 16 + (random >> 8 & 1023));
    }
    for (int i = 0; i < 64; i++)
        HeapFree(GetProcessHeap(), 0, kept[i]);
    return 0;
}

/* Two threads that read and write the environment, which a lock in the process environment block guards. */
static DWORD WINAPI hammer_environment(void *number)
{
    char name[32], text[64];
    sprintf(name, "STK_HAMMER_%d", (int)(INT_PTR)number);
    for (int i = 0; i < rounds; i++) {
        if (i % 16 == 0)
            SetEnvironmentVariableA(name, i & 16 ? "some text" : "other text");
        result += GetEnvironmentVariableA(name, text, sizeof text);
    }
    return 0;
}

static DWORD WINAPI wait_for_ever(void *unused)
{
    WaitForSingleObject(never, INFINITE);
    return 0;
}

static void run(LPTHREAD_START_ROUTINE hammer)
{
    HANDLE threads[HAMMERS];
    for (int i = 0; i < HAMMERS; i++)
        threads[i] = CreateThread(NULL, 0, hammer, (void *)(INT_PTR)i, 0, NULL);
    WaitForMultipleObjects(HAMMERS, threads, TRUE, INFINITE);
}

/* One thread that works, among many that wait. */
static void run_among_waiters(void)
{
    for (int i = 0; i < rounds; i++)
        result += compute(100000);
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    rounds = atoi(argv[2]);
    InitializeCriticalSection(&lock);
    never = CreateEventA(NULL, TRUE, FALSE, NULL);
    int waiters = !strcmp(argv[1], "waiters");
    for (int i = 0; waiters && i < WAITERS; i++)
        CloseHandle(CreateThread(NULL, 64 << 10, wait_for_ever, NULL, STACK_SIZE_PARAM_IS_A_RESERVATION, NULL));
    /* Until the recorder, or the bare loop, knows all threads. */
    Sleep(700);
    double before = milliseconds();
    if (waiters)
        run_among_waiters();
    else if (!strcmp(argv[1], "lock"))
        run(hammer_lock);
    else if (!strcmp(argv[1], "heap"))
        run(hammer_heap);
    else if (!strcmp(argv[1], "environment"))
        run(hammer_environment);
    else
        return 2;
    printf("elapsed_ms %.3f\n", milliseconds() - before);
    fflush(stdout);
    while (GetFileAttributesA(argv[3]) == INVALID_FILE_ATTRIBUTES)
        Sleep(50);
    return 0;
}
