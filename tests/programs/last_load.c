/*
 * Loads five DLLs right before it ends, so that a recorder has no time left to read them.
 *
 *   last_load.exe MILLISECONDS     works for MILLISECONDS, prints a line, loads them, ends with
 *                                  exit code 7
 */
#include <windows.h>
#include <stdio.h>
#include <stdlib.h>

static volatile LONG work;

int main(int argc, char **argv)
{
    static const char *const last[] = {"winmm.dll", "ws2_32.dll", "dbghelp.dll", "cabinet.dll", "version.dll"};
    if (argc < 2)
        return 2;
    DWORD end = GetTickCount() + (DWORD)atoi(argv[1]);
    do
        work++;
    while ((int)(end - GetTickCount()) > 0);
    printf("loading\n");
    fflush(stdout);
    for (int i = 0; i < 5; i++)
        if (!LoadLibraryA(last[i]))
            return 1;
    return 7;
}
