/*
 * A program that says how its threads use heaps, and one that leaves a heap's lock locked.
 *
 *   heaps.exe count FILE    counts the calls of the system's heap functions that threads make as
 *                           they begin and end, before it prints `ready` and again from when FILE
 *                           exists; prints both
 *   heaps.exe orphan FILE   a thread takes the lock of the C runtime's heap and is terminated; the
 *                           process ends by ExitProcess with code 6 as soon as FILE exists
 *
 * Prints `pid N` and `ready`. x64 only, and only where the functions begin with room for a hook: 8
 * bytes that do nothing, as in Wine.
 */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <windows.h>

#define THREADS 40

static volatile LONG calls[65536];

/* Called with the registers of the hooked call kept. */
static void count(void)
{
    InterlockedIncrement(&calls[(GetCurrentThreadId() / 4) % 65536]);
}

/* Lets `name` of ntdll call `count` before it does anything else. */
static int hook(const char *name)
{
    static const unsigned char nothing[] = {0x48, 0x8d, 0xa4, 0x24, 0, 0, 0, 0}; /* lea rsp, [rsp+0] */
    static const unsigned char code[] = {
        0x51, 0x52, 0x41, 0x50, 0x41, 0x51,                         /* push rcx, rdx, r8, r9 */
        0x48, 0x83, 0xec, 0x28, 0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, /* sub rsp, 0x28; mov rax, count */
        0xff, 0xd0, 0x48, 0x83, 0xc4, 0x28,                         /* call rax; add rsp, 0x28 */
        0x41, 0x59, 0x41, 0x58, 0x5a, 0x59,                         /* pop r9, r8, rdx, rcx */
        0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0,             /* mov rax, behind the hook; jmp rax */
    };
    unsigned char *function = (unsigned char *)(void *)GetProcAddress(GetModuleHandleA("ntdll.dll"), name);
    unsigned char *stub = NULL, *behind, jump[8] = {0xe9, 0, 0, 0, 0, 0x90, 0x90, 0x90};
    void (*counts)(void) = count;
    DWORD before;
    LONG distance;

    if (!function || memcmp(function, nothing, sizeof nothing))
        return 0;
    behind = function + sizeof nothing;
    for (ULONG_PTR at = ((ULONG_PTR)function & ~0xffffULL) - 0x10000; !stub && at > (ULONG_PTR)function - 0x70000000; at -= 0x10000)
        stub = VirtualAlloc((void *)at, sizeof code, MEM_COMMIT | MEM_RESERVE, PAGE_EXECUTE_READWRITE);
    if (!stub)
        return 0;
    memcpy(stub, code, sizeof code);
    memcpy(stub + 12, &counts, 8);
    memcpy(stub + 34, &behind, 8);
    distance = (LONG)(stub - (function + 5));
    memcpy(jump + 1, &distance, 4);
    VirtualProtect(function, sizeof jump, PAGE_EXECUTE_READWRITE, &before);
    memcpy(function, jump, sizeof jump);
    VirtualProtect(function, sizeof jump, before, &before);
    FlushInstructionCache(GetCurrentProcess(), function, sizeof jump);
    return 1;
}

static DWORD WINAPI nothing_to_do(void *unused)
{
    (void)unused;
    return 0;
}

/* The fewest calls of a thread's life: another thread may have had its id. */
static LONG fewest(void)
{
    LONG least = 0x7fffffff;
    for (int i = 0; i < THREADS; i++) {
        DWORD id;
        HANDLE thread = CreateThread(NULL, 0, nothing_to_do, NULL, CREATE_SUSPENDED, &id);
        volatile LONG *its = &calls[(id / 4) % 65536];
        LONG from = *its;
        ResumeThread(thread);
        WaitForSingleObject(thread, INFINITE);
        CloseHandle(thread);
        if (*its - from < least)
            least = *its - from;
    }
    return least;
}

static DWORD WINAPI orphan(void *locked)
{
    HeapLock((HANDLE)_get_heap_handle());
    SetEvent(locked);
    Sleep(INFINITE);
    return 0;
}

static void wait_for(const char *file)
{
    while (GetFileAttributesA(file) == INVALID_FILE_ATTRIBUTES)
        Sleep(5);
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    setvbuf(stdout, NULL, _IONBF, 0);
    printf("pid %lu\n", GetCurrentProcessId());
    if (!strcmp(argv[1], "count")) {
        if (!hook("RtlAllocateHeap") || !hook("RtlFreeHeap")) {
            printf("the heap's functions do not begin as expected\n");
            return 3;
        }
        printf("alone %ld\nready\n", fewest());
        wait_for(argv[2]);
        printf("recorded %ld\nend\n", fewest());
        Sleep(INFINITE);
    }
    HANDLE locked = CreateEventA(NULL, FALSE, FALSE, NULL);
    HANDLE thread = CreateThread(NULL, 0, orphan, locked, 0, NULL);
    printf("ready\n");
    wait_for(argv[2]);
    WaitForSingleObject(locked, INFINITE);
    TerminateThread(thread, 0);
    ExitProcess(6);
}
