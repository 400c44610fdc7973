/*
 * The system's part at the end of a session, and a terminal that lets no process leave its job.
 *
 *   session.exe end PID        ends the session for the hidden window of inject PID
 *   session.exe cancel PID     as the user does who cancels a shutdown
 *   session.exe job COMMAND    runs a command line in a job without breakaway; its exit code
 *
 * `end` and `cancel` print what the window answered, `no window` without one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <windows.h>

static HWND window_of(DWORD pid)
{
    HWND window = NULL;
    while ((window = FindWindowExW(NULL, window, L"stk-inject-session", NULL))) {
        DWORD owner = 0;
        GetWindowThreadProcessId(window, &owner);
        if (owner == pid)
            return window;
    }
    return NULL;
}

static int end(const char *kind, DWORD pid)
{
    HWND window = window_of(pid);
    DWORD_PTR answer = 0;
    if (!window) {
        printf("no window\n");
        return 1;
    }
    SendMessageTimeoutW(window, WM_QUERYENDSESSION, 0, (LPARAM)ENDSESSION_LOGOFF, SMTO_NORMAL, 10000, &answer);
    printf("answered %d\n", (int)answer);
    fflush(stdout);
    SendMessageTimeoutW(window, WM_ENDSESSION, !strcmp(kind, "end"), (LPARAM)ENDSESSION_LOGOFF, SMTO_NORMAL, 10000, NULL);
    return 0;
}

static int in_job(char *line)
{
    STARTUPINFOA start = {.cb = sizeof start};
    PROCESS_INFORMATION made;
    HANDLE job = CreateJobObjectW(NULL, NULL);
    DWORD code = 1;
    if (!job || !CreateProcessA(NULL, line, NULL, NULL, TRUE, CREATE_SUSPENDED, NULL, NULL, &start, &made))
        return 2;
    if (!AssignProcessToJobObject(job, made.hProcess))
        return 3;
    ResumeThread(made.hThread);
    WaitForSingleObject(made.hProcess, INFINITE);
    GetExitCodeProcess(made.hProcess, &code);
    return (int)code;
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "job"))
        return in_job(argv[2]);
    if (argc == 3)
        return end(argv[1], (DWORD)strtoul(argv[2], NULL, 10));
    return 2;
}
