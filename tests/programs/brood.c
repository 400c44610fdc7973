/*
 * A program that starts many short processes, as a build does.
 *
 *   brood.exe COUNT AT_ONCE MS [leaves]
 *
 * Starts itself COUNT times, AT_ONCE at a time, each to work for MS milliseconds; prints `born N` when all have ended. With `leaves` the
 * children leave the job that they are in. Exit code 1 if one could not be started.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <windows.h>

static volatile LONG64 work;

static int child(DWORD ms)
{
    ULONGLONG until = GetTickCount64() + ms;
    while (GetTickCount64() < until) {
        for (int turn = 0; turn < 100000; turn++)
            work++;
        Sleep(5);
    }
    return 0;
}

int main(int argc, char **argv)
{
    HANDLE running[MAXIMUM_WAIT_OBJECTS];
    DWORD count, at_once, left = 0, born = 0;
    char line[2 * MAX_PATH];

    if (argc > 2 && !strcmp(argv[1], "child"))
        return child((DWORD)atoi(argv[2]));
    if (argc < 4)
        return 2;
    count = (DWORD)atoi(argv[1]);
    at_once = (DWORD)atoi(argv[2]);
    snprintf(line, sizeof line, "\"%s\" child %s", argv[0], argv[3]);
    while (born < count || left) {
        while (born < count && left < at_once) {
            STARTUPINFOA startup = {.cb = sizeof startup};
            PROCESS_INFORMATION started;
            if (!CreateProcessA(NULL, line, NULL, NULL, FALSE, argc > 4 ? CREATE_BREAKAWAY_FROM_JOB : 0, NULL, NULL, &startup, &started)) {
                printf("error %lu\n", GetLastError());
                return 1;
            }
            CloseHandle(started.hThread);
            running[left++] = started.hProcess;
            born++;
        }
        DWORD ended = WaitForMultipleObjects(left, running, FALSE, INFINITE) - WAIT_OBJECT_0;
        CloseHandle(running[ended]);
        running[ended] = running[--left];
    }
    printf("born %lu\n", born);
    return 0;
}
