/*
 * A program with a few working threads that ends in the way and at the time that its arguments say,
 * while it is recorded.
 *
 *   ends.exe WAY MILLISECONDS [FILE]
 *
 * WAY: exit (ExitProcess from main), exit_other (ExitProcess from another thread), terminate
 * (TerminateProcess of itself), last_thread (every thread ends, main as the last by ExitThread with
 * code 9), abort, main_thread (only main ends, by ExitThread; the others work on),
 * alone (one thread, which works until FILE exists and calls ExitProcess), never.
 * Prints `pid N` and `ready` first. The time counts from then, or from the moment when FILE exists.
 */
#include <windows.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static volatile LONG leaving, work;

static DWORD WINAPI worker(void *unused)
{
    char name[64];
    (void)unused;
    while (!leaving) {
        for (int i = 0; i < 2000; i++)
            work += i;
        /* Takes the PEB lock, as the end of a process does. */
        GetEnvironmentVariableA("PATH", name, sizeof name);
    }
    return 1;
}

static DWORD WINAPI leave(void *milliseconds)
{
    Sleep((DWORD)(UINT_PTR)milliseconds);
    ExitProcess(5);
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    const char *way = argv[1];
    DWORD milliseconds = (DWORD)atoi(argv[2]);
    HANDLE threads[3];
    int alone = !strcmp(way, "alone");
    for (int i = 0; i < 3 && !alone; i++)
        threads[i] = CreateThread(NULL, 0, worker, NULL, 0, NULL);
    printf("pid %lu\nready\n", GetCurrentProcessId());
    fflush(stdout);
    if (alone) {
        while (GetTickCount64() % 16 || GetFileAttributesA(argc > 3 ? argv[3] : "") == INVALID_FILE_ATTRIBUTES)
            work++;
        ExitProcess(4);
    }
    while (argc > 3 && GetFileAttributesA(argv[3]) == INVALID_FILE_ATTRIBUTES)
        Sleep(5);
    if (!strcmp(way, "exit_other")) {
        CreateThread(NULL, 0, leave, (void *)(UINT_PTR)milliseconds, 0, NULL);
        Sleep(INFINITE);
    }
    if (!strcmp(way, "never"))
        Sleep(INFINITE);
    Sleep(milliseconds);
    if (!strcmp(way, "exit"))
        ExitProcess(4);
    if (!strcmp(way, "terminate"))
        TerminateProcess(GetCurrentProcess(), 6);
    if (!strcmp(way, "abort"))
        abort();
    if (!strcmp(way, "main_thread"))
        ExitThread(3);
    if (!strcmp(way, "last_thread")) {
        leaving = 1;
        WaitForMultipleObjects(3, threads, TRUE, INFINITE);
        for (int i = 0; i < 3; i++)
            CloseHandle(threads[i]);
        ExitThread(9);
    }
    return 2;
}
