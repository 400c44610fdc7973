/*
 * Does to a recorded process what the system does when it exits: ends the recorder's sampler and
 * watchdog from outside, once the sampler (which a test has frozen) holds the process's first
 * thread. Prints `held`, then `gone_after N` (milliseconds from their end to the process's end), or
 * `hangs` after 20 s.
 *
 *   cull.exe PID
 */
#include <windows.h>
#include <tlhelp32.h>
#include <stdio.h>
#include <stdlib.h>

/*
 * Finds threads of the process: `first` gets the one with the lowest id that is not the recorder's,
 * `own` the recorder's, which are known by their priorities.
 */
static int threads(DWORD pid, HANDLE *first, HANDLE *own)
{
    THREADENTRY32 entry = {.dwSize = sizeof entry};
    HANDLE snapshot = CreateToolhelp32Snapshot(TH32CS_SNAPTHREAD, 0);
    int count = 0;
    for (BOOL more = Thread32First(snapshot, &entry); more; more = Thread32Next(snapshot, &entry)) {
        HANDLE thread = entry.th32OwnerProcessID == pid ? OpenThread(THREAD_ALL_ACCESS, FALSE, entry.th32ThreadID) : NULL;
        if (!thread)
            continue;
        int priority = GetThreadPriority(thread);
        if ((priority == THREAD_PRIORITY_TIME_CRITICAL || priority == THREAD_PRIORITY_HIGHEST) && count < 8)
            own[count++] = thread;
        else if (!*first)
            *first = thread;
    }
    CloseHandle(snapshot);
    return count;
}

/*
 * How often the thread is suspended, as SuspendThread counts; -1 if the system does not say. This
 * program must not suspend the thread to find out: a watchdog that resumes the thread at that
 * moment would take that suspension for the sampler's.
 */
static LONG suspensions(HANDLE thread)
{
    typedef LONG(NTAPI * query_function)(HANDLE, int, void *, ULONG, ULONG *);
    const int thread_suspend_count = 35;
    ULONG count = 0;
    query_function query = (query_function)(void *)GetProcAddress(GetModuleHandleA("ntdll.dll"), "NtQueryInformationThread");
    return !query || query(thread, thread_suspend_count, &count, sizeof count, NULL) ? -1 : (LONG)count;
}

int main(int argc, char **argv)
{
    DWORD pid = (DWORD)atoi(argc > 1 ? argv[1] : "0");
    HANDLE process = OpenProcess(PROCESS_ALL_ACCESS, FALSE, pid), first = NULL, own[8];
    int count = threads(pid, &first, own);
    /* On a loaded machine they have not all raised their priorities yet. */
    for (int tries = 0; count < 2 && tries < 500; tries++) {
        Sleep(20);
        first = NULL;
        count = threads(pid, &first, own);
    }
    if (!process || !first || count < 2) {
        printf("no recorder: %d threads\n", count);
        return 1;
    }
    for (int held = 0, tries = 0; held < 20; tries++) {
        LONG suspended = suspensions(first);
        held = suspended > 0 ? held + 1 : 0;
        if (suspended < 0 || tries > 1000) {
            printf(suspended < 0 ? "the system does not count suspensions\n" : "never held\n");
            return 1;
        }
        Sleep(20);
    }
    printf("held\n");
    fflush(stdout);
    for (int i = 0; i < count; i++)
        TerminateThread(own[i], 0);
    for (int i = 0; i < count; i++)
        WaitForSingleObject(own[i], INFINITE);
    ULONGLONG begun = GetTickCount64();
    if (WaitForSingleObject(process, 20000) == WAIT_OBJECT_0)
        printf("gone_after %llu\n", (unsigned long long)(GetTickCount64() - begun));
    else
        printf("hangs\n");
    return 0;
}
