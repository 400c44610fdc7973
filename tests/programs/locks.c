/*
 * A program with threads that hold a lock of the system for long while they work, are named after
 * it, and print at the end how often they took it:
 *
 *   locks.exe SECONDS
 *
 * "loader lock" (LdrLockLoaderLock), "heap lock" (HeapLock of the process heap), "critical section"
 * and "SRW lock", the latter two each with a thread that waits for it. Each is held for half a
 * second and then free for a moment. Another thread, "suspender", suspends and resumes the thread
 * that holds the SRW lock all the time. Prints `pid N` and `ready` first, and `done` at the end.
 */
#include <windows.h>
#include <stdio.h>
#include <stdlib.h>

typedef LONG(WINAPI *lock_function)(ULONG flags, ULONG *state, ULONG_PTR *cookie);
typedef LONG(WINAPI *unlock_function)(ULONG flags, ULONG_PTR cookie);
typedef HRESULT(WINAPI *describe_function)(HANDLE thread, const wchar_t *name);

static volatile LONG leaving, work, rounds[4];
static CRITICAL_SECTION section;
static SRWLOCK srw = SRWLOCK_INIT;
static lock_function lock_loader;
static unlock_function unlock_loader;

static void spin(DWORD milliseconds)
{
    ULONGLONG end = GetTickCount64() + milliseconds;
    while (GetTickCount64() < end)
        for (int i = 0; i < 1000; i++)
            work += i;
}

static DWORD WINAPI holder(void *which)
{
    INT_PTR kind = (INT_PTR)which;
    while (!leaving) {
        ULONG_PTR cookie = 0;
        switch (kind) {
        case 0:
            lock_loader(0, NULL, &cookie);
            spin(500);
            unlock_loader(0, cookie);
            break;
        case 1:
            HeapLock(GetProcessHeap());
            spin(500);
            HeapUnlock(GetProcessHeap());
            break;
        case 2:
            EnterCriticalSection(&section);
            spin(500);
            LeaveCriticalSection(&section);
            break;
        default:
            AcquireSRWLockExclusive(&srw);
            spin(500);
            ReleaseSRWLockExclusive(&srw);
        }
        rounds[kind]++;
        Sleep(20);
    }
    return 0;
}

static DWORD WINAPI waiter(void *which)
{
    while (!leaving) {
        if (which) {
            AcquireSRWLockExclusive(&srw);
            ReleaseSRWLockExclusive(&srw);
        } else {
            EnterCriticalSection(&section);
            LeaveCriticalSection(&section);
        }
        Sleep(1);
    }
    return 0;
}

static DWORD WINAPI suspender(void *thread)
{
    CONTEXT context;
    while (!leaving) {
        context.ContextFlags = CONTEXT_CONTROL;
        SuspendThread(thread);
        GetThreadContext(thread, &context);
        ResumeThread(thread);
        Sleep(3);
    }
    return 0;
}

int main(int argc, char **argv)
{
    static const wchar_t *names[] = {L"loader lock", L"heap lock", L"critical section", L"SRW lock"};
    HMODULE ntdll = GetModuleHandleA("ntdll.dll");
    describe_function describe =
        (describe_function)(void *)GetProcAddress(GetModuleHandleA("kernel32.dll"), "SetThreadDescription");
    HANDLE threads[7];
    if (argc < 2)
        return 2;
    lock_loader = (lock_function)(void *)GetProcAddress(ntdll, "LdrLockLoaderLock");
    unlock_loader = (unlock_function)(void *)GetProcAddress(ntdll, "LdrUnlockLoaderLock");
    if (!lock_loader || !unlock_loader || !describe)
        return 3;
    InitializeCriticalSection(&section);
    for (INT_PTR i = 0; i < 4; i++) {
        threads[i] = CreateThread(NULL, 0, holder, (void *)i, 0, NULL);
        describe(threads[i], names[i]);
    }
    threads[4] = CreateThread(NULL, 0, waiter, NULL, 0, NULL);
    threads[5] = CreateThread(NULL, 0, waiter, (void *)1, 0, NULL);
    threads[6] = CreateThread(NULL, 0, suspender, threads[3], 0, NULL);
    printf("pid %lu\nready\n", GetCurrentProcessId());
    fflush(stdout);
    spin(1);
    Sleep((DWORD)atoi(argv[1]) * 1000);
    leaving = 1;
    WaitForMultipleObjects(7, threads, TRUE, INFINITE);
    printf("rounds %ld %ld %ld %ld\ndone\n", rounds[0], rounds[1], rounds[2], rounds[3]);
    return 0;
}
