/*
 * A program that opens a file as soon as it is there and keeps it open for a while, as virus scanners and indexers do: others may read and
 * write it meanwhile, but neither delete nor rename it.
 *
 *   scanner.exe PATTERN MS [UNTIL]
 *
 * PATTERN: the file's path, with wildcards in its name. Keeps it open for MS milliseconds, which begin when the file UNTIL exists. Prints
 * `ready`, `opened`, `closed`.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <windows.h>

int main(int argc, char **argv)
{
    WIN32_FIND_DATAA found;
    HANDLE file = INVALID_HANDLE_VALUE;
    char path[2 * MAX_PATH];
    const char *name;

    if (argc < 3)
        return 2;
    name = strrchr(argv[1], '\\');
    name = name ? name + 1 : argv[1];
    printf("ready\n");
    fflush(stdout);
    while (file == INVALID_HANDLE_VALUE) {
        HANDLE search = FindFirstFileA(argv[1], &found);
        if (search != INVALID_HANDLE_VALUE) {
            FindClose(search);
            snprintf(path, sizeof path, "%.*s%s", (int)(name - argv[1]), argv[1], found.cFileName);
            file = CreateFileA(path, GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_WRITE, NULL, OPEN_EXISTING, 0, NULL);
        }
        if (file == INVALID_HANDLE_VALUE)
            Sleep(1);
    }
    printf("opened\n");
    fflush(stdout);
    while (argc > 3 && GetFileAttributesA(argv[3]) == INVALID_FILE_ATTRIBUTES)
        Sleep(1);
    Sleep((DWORD)atoi(argv[2]));
    CloseHandle(file);
    printf("closed\n");
    fflush(stdout);
    return 0;
}
