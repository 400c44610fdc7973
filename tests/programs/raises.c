/*
 * A program that does, on a thread of its own, what the triggers of a recording look for, and checks
 * that it continues as if nobody had looked.
 *
 *   raises.exe WHAT FILE
 *
 * WHAT: throw (three exceptions like C++'s), fault (an access violation, mended by the handler),
 * breakpoint, storm (3,000 exceptions), overflow (a thread without stack left, which its handler
 * mends), load (version.dll), name (the thread gets its name now; it works before and after).
 * Prints `pid N` and `ready`, waits until FILE exists, does it, prints `done` and what it counted,
 * and lives until it is ended.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <windows.h>

#define NOINLINE __attribute__((noinline))
#define CPP 0xE06D7363u

typedef HRESULT(WINAPI *set_description)(HANDLE, PCWSTR);

static const char *what, *file;
static volatile LONG handled, overflows, wrong;
static char *page;
static volatile unsigned long long work;
static CONTEXT before;

static void name_thread(const wchar_t *name)
{
    HMODULE kernel = GetModuleHandleA("kernelbase.dll");
    set_description set = (set_description)(void *)GetProcAddress(kernel, "SetThreadDescription");
    if (set)
        set(GetCurrentThread(), name);
}

static LONG CALLBACK own_handler(EXCEPTION_POINTERS *info)
{
    DWORD code = info->ExceptionRecord->ExceptionCode;
    if (code == CPP) {
        handled++;
        if (GetLastError() != 77)
            wrong++;
        return EXCEPTION_CONTINUE_EXECUTION;
    }
    if (code == EXCEPTION_ACCESS_VIOLATION && page && info->ExceptionRecord->ExceptionInformation[1] == (ULONG_PTR)page) {
        handled++;
        return VirtualAlloc(page, 4096, MEM_COMMIT, PAGE_READWRITE) ? EXCEPTION_CONTINUE_EXECUTION
                                                                    : EXCEPTION_CONTINUE_SEARCH;
    }
    if (code == EXCEPTION_BREAKPOINT && *(unsigned char *)info->ContextRecord->Rip == 0xCC) {
        handled++;
        info->ContextRecord->Rip++;
        return EXCEPTION_CONTINUE_EXECUTION;
    }
    if (code == EXCEPTION_STACK_OVERFLOW) {
        /* Back to where there was stack. */
        overflows++;
        *info->ContextRecord = before;
        return EXCEPTION_CONTINUE_EXECUTION;
    }
    return EXCEPTION_CONTINUE_SEARCH;
}

NOINLINE static void throw_here(int times)
{
    volatile unsigned long long kept[4] = {1, 22, 333, 4444};
    for (int n = 0; n < times; n++) {
        SetLastError(77);
        RaiseException(CPP, 0, 0, NULL);
        if (GetLastError() != 77 || kept[0] + kept[1] + kept[2] + kept[3] != 4800)
            wrong++;
    }
}

static volatile int deepest = -1;

NOINLINE static int deeper(volatile char *above, int depth)
{
    if (depth == deepest)
        return 0;
    volatile char room[512];
    room[0] = above[0];
    room[511] = (char)depth;
    return deeper(room, depth + 1) + room[511];
}

static DWORD WINAPI overflow(void *unused)
{
    volatile char first[8] = {0};
    (void)unused;
    name_thread(L"overflows");
    RtlCaptureContext(&before);
    return overflows ? 7 : (DWORD)deeper(first, 0);
}

static void do_it(void)
{
    if (strcmp(what, "name"))
        name_thread(L"raiser");
    while (GetFileAttributesA(file) == INVALID_FILE_ATTRIBUTES) {
        work++;
        if (strcmp(what, "name"))
            Sleep(5);
    }
    if (!strcmp(what, "throw"))
        throw_here(3);
    if (!strcmp(what, "storm"))
        throw_here(3000);
    if (!strcmp(what, "fault")) {
        page = VirtualAlloc(NULL, 4096, MEM_RESERVE, PAGE_READWRITE);
        *page = 5;
        wrong += *page != 5;
    }
    if (!strcmp(what, "breakpoint"))
        DebugBreak();
    if (!strcmp(what, "load"))
        wrong += !LoadLibraryA("version.dll");
    if (!strcmp(what, "overflow")) {
        DWORD code = 0;
        HANDLE thread = CreateThread(NULL, 256 << 10, overflow, NULL, STACK_SIZE_PARAM_IS_A_RESERVATION, NULL);
        WaitForSingleObject(thread, INFINITE);
        wrong += !GetExitCodeThread(thread, &code) || code != 7;
    }
    if (!strcmp(what, "name"))
        name_thread(L"late name");
    printf("done\nhandled %ld\noverflows %ld\nwrong %ld\nend\n", handled, overflows, wrong);
    fflush(stdout);
    for (;;) {
        work++;
        if (strcmp(what, "name"))
            Sleep(5);
    }
}

static DWORD WINAPI raiser(void *unused)
{
    (void)unused;
    do_it();
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    what = argv[1];
    file = argv[2];
    name_thread(L"main");
    AddVectoredExceptionHandler(0, own_handler);
    CreateThread(NULL, 0, raiser, NULL, 0, NULL);
    printf("pid %lu\nready\n", GetCurrentProcessId());
    fflush(stdout);
    Sleep(INFINITE);
}
