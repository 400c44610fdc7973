/*
 * The system's own price of a suspension: starts a program and, at a rate, suspends each of its threads, reads its context and resumes it.
 * Nothing is copied, kept or written.
 *
 *   bare.exe HZ PROGRAM ARGUMENT…
 *
 * Prints `bare_passes N`, `bare_suspensions N` and `bare_ms N` when the program ends, and ends with its exit code.
 */
#include <stdlib.h>
#include <string.h>

#include "work.h"

#include <tlhelp32.h>

#ifndef CREATE_WAITABLE_TIMER_HIGH_RESOLUTION
#define CREATE_WAITABLE_TIMER_HIGH_RESOLUTION 2
#endif

#define MOST_THREADS 4096
/* Milliseconds between two looks at which threads there are, for the first two seconds and later. */
#define LIST_MS_EARLY 100
#define LIST_MS 1000

static HANDLE handles[MOST_THREADS];
static DWORD ids[MOST_THREADS];
static int threads;

static void list(DWORD pid)
{
    THREADENTRY32 entry = {.dwSize = sizeof entry};
    HANDLE snapshot = CreateToolhelp32Snapshot(TH32CS_SNAPTHREAD, 0);
    for (BOOL more = Thread32First(snapshot, &entry); more; more = Thread32Next(snapshot, &entry)) {
        int known = entry.th32OwnerProcessID != pid;
        for (int i = 0; !known && i < threads; i++)
            known = ids[i] == entry.th32ThreadID;
        if (known || threads == MOST_THREADS)
            continue;
        HANDLE handle = OpenThread(THREAD_SUSPEND_RESUME | THREAD_GET_CONTEXT | SYNCHRONIZE, FALSE, entry.th32ThreadID);
        if (handle) {
            ids[threads] = entry.th32ThreadID;
            handles[threads++] = handle;
        }
    }
    CloseHandle(snapshot);
}

static void forget(int index)
{
    CloseHandle(handles[index]);
    threads--;
    handles[index] = handles[threads];
    ids[index] = ids[threads];
}

static int suspend(HANDLE thread)
{
    static _Alignas(16) CONTEXT context;
    if (SuspendThread(thread) == (DWORD)-1)
        return 0;
    context.ContextFlags = CONTEXT_CONTROL | CONTEXT_INTEGER;
    GetThreadContext(thread, &context);
    ResumeThread(thread);
    return 1;
}

typedef LONG(NTAPI *delay_function)(BOOLEAN, const LARGE_INTEGER *);

int main(int argc, char **argv)
{
    char line[8192] = "";
    if (argc < 3)
        return 2;
    for (int i = 2; i < argc; i++)
        snprintf(line + strlen(line), sizeof line - strlen(line), "\"%s\" ", argv[i]);
    STARTUPINFOA startup = {.cb = sizeof startup};
    PROCESS_INFORMATION process;
    if (!CreateProcessA(NULL, line, NULL, NULL, TRUE, 0, NULL, NULL, &startup, &process))
        return 126;
    double period = 1000.0 / atof(argv[1]), began = milliseconds(), due = began, list_due = began;
    long passes = 0, suspensions = 0;
    SetThreadPriority(GetCurrentThread(), THREAD_PRIORITY_TIME_CRITICAL);
    HANDLE timer = CreateWaitableTimerExW(NULL, NULL, CREATE_WAITABLE_TIMER_HIGH_RESOLUTION, TIMER_ALL_ACCESS);
    HANDLE events[2] = {process.hProcess, timer};
    /* Under Wine the end of a wait is the kernel's, as the recorder's is. */
    HMODULE ntdll = GetModuleHandleA("ntdll.dll");
    delay_function delay = GetProcAddress(ntdll, "wine_get_version") ? (delay_function)(void *)GetProcAddress(ntdll, "NtDelayExecution") : NULL;
    for (;;) {
        double now = milliseconds();
        if (now >= list_due) {
            list(process.dwProcessId);
            list_due = now + (now - began < 2000 ? LIST_MS_EARLY : LIST_MS);
        }
        for (int i = 0; i < threads; i++) {
            if (suspend(handles[i]))
                suspensions++;
            else if (WaitForSingleObject(handles[i], 0) == WAIT_OBJECT_0)
                forget(i--);
        }
        passes++;
        now = milliseconds();
        due += period;
        if (due < now)
            due += period * (long)((now - due) / period + 1);
        LARGE_INTEGER relative = {.QuadPart = -(LONGLONG)((due - now) * 10000) - 1};
        if (delay) {
            delay(FALSE, &relative);
            if (WaitForSingleObject(process.hProcess, 0) == WAIT_OBJECT_0)
                break;
            continue;
        }
        SetWaitableTimer(timer, &relative, 0, NULL, NULL, FALSE);
        if (WaitForMultipleObjects(2, events, FALSE, INFINITE) == WAIT_OBJECT_0)
            break;
    }
    DWORD code = 0;
    GetExitCodeProcess(process.hProcess, &code);
    printf("bare_passes %ld\nbare_suspensions %ld\nbare_ms %.0f\n", passes, suspensions, milliseconds() - began);
    return (int)code;
}
