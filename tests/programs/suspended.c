/*
 * Creates the program named by its first argument suspended, prints "pid N" and "ready", and lets
 * it run when the file named by the second is there or a minute is over. Returns its exit code.
 */
#include <stdio.h>
#include <windows.h>

int main(void) {
    int count = 0;
    wchar_t **arguments = CommandLineToArgvW(GetCommandLineW(), &count);
    STARTUPINFOW startup = {.cb = sizeof startup};
    PROCESS_INFORMATION process;
    if (count != 3 || !CreateProcessW(arguments[1], NULL, NULL, NULL, FALSE, CREATE_SUSPENDED, NULL, NULL, &startup, &process)) {
        printf("failed: %lu\n", GetLastError());
        return 1;
    }
    printf("pid %lu\nready\n", process.dwProcessId);
    fflush(stdout);
    for (int tries = 0; tries < 3000 && GetFileAttributesW(arguments[2]) == INVALID_FILE_ATTRIBUTES; tries++)
        Sleep(20);
    ResumeThread(process.hThread);
    DWORD code = 1;
    WaitForSingleObject(process.hProcess, INFINITE);
    GetExitCodeProcess(process.hProcess, &code);
    return (int)code;
}
