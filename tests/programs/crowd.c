/*
 * Very many threads that wait, and some that work.
 *
 *   crowd.exe WAITING BUSY FILE
 *
 * Prints `pid N` and, when all threads are there, `ready`. Works until FILE exists, then wakes the
 * waiting threads and prints how many came (`woke N`), how many of the busy threads worked in each
 * second (`idle seconds N`, of all busy threads together), and `end`. Exit code 0 if all came.
 */
#include <windows.h>
#include <stdio.h>
#include <stdlib.h>

#define MOST_BUSY 64
#define STACK 65536

static HANDLE go;
static volatile LONG here, woke;
static volatile LONG over;
static volatile LONG64 work[MOST_BUSY];

static DWORD WINAPI waiting(void *unused)
{
    InterlockedIncrement(&here);
    WaitForSingleObject(go, INFINITE);
    InterlockedIncrement(&woke);
    return unused != NULL;
}

static DWORD WINAPI busy(void *number)
{
    InterlockedIncrement(&here);
    while (!over)
        work[(INT_PTR)number]++;
    return 0;
}

/* Whether a thread with a small stack was started. */
static int start(LPTHREAD_START_ROUTINE function, INT_PTR number)
{
    HANDLE thread = CreateThread(NULL, STACK, function, (void *)number, STACK_SIZE_PARAM_IS_A_RESERVATION, NULL);
    if (!thread)
        return 0;
    CloseHandle(thread);
    return 1;
}

int main(int argc, char **argv)
{
    int waiters, workers, turn = 0, idle = 0;
    LONG64 before[MOST_BUSY] = {0};

    if (argc < 4 || (waiters = atoi(argv[1])) < 1 || (workers = atoi(argv[2])) > MOST_BUSY)
        return 2;
    go = CreateEventA(NULL, TRUE, FALSE, NULL);
    printf("pid %lu\n", GetCurrentProcessId());
    fflush(stdout);
    for (int i = 0; i < waiters + workers; i++) {
        if (!(i < waiters ? start(waiting, 0) : start(busy, i - waiters))) {
            printf("thread %d could not be started: error %lu\n", i, GetLastError());
            return 3;
        }
    }
    while (here < waiters + workers)
        Sleep(10);
    printf("ready\n");
    fflush(stdout);
    while (GetFileAttributesA(argv[3]) == INVALID_FILE_ATTRIBUTES) {
        Sleep(100);
        if (++turn % 10)
            continue;
        for (int i = 0; i < workers; i++) {
            idle += work[i] == before[i];
            before[i] = work[i];
        }
    }
    SetEvent(go);
    for (int tries = 0; woke < waiters && tries < 6000; tries++)
        Sleep(10);
    over = 1;
    printf("woke %ld\nidle seconds %d\nend\n", woke, idle);
    return woke == waiters ? 0 : 4;
}
