/*
 * A program with a few threads that loads agent.dll itself and drives it through one scenario: the
 * agent's own end-to-end test, without inject. Prints its observations, one `key value` per line.
 *
 *   host.exe AGENT_DLL OUTPUT SCENARIO
 */
#include <windows.h>
#define PSAPI_VERSION 2
#include <psapi.h>
#include <tlhelp32.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../include/stk_agent.h"

/* Values of STK_FLAG_TEST_FREEZE, from stk_schema::control. */
enum { TEST_PANIC_IN_CAPTURE = 10, TEST_PANIC_IN_NOTIFICATION = 11 };

typedef uint32_t(STK_AGENT_CALL *start_fn)(stk_agent_config *);
typedef uint32_t(STK_AGENT_CALL *stop_fn)(void *);
typedef uint32_t(STK_AGENT_CALL *status_fn)(stk_agent_state *);
typedef uint32_t(STK_AGENT_CALL *capture_fn)(uint64_t);
typedef uint32_t(STK_AGENT_CALL *leave_fn)(uintptr_t);
typedef HRESULT(WINAPI *describe_fn)(HANDLE, PCWSTR);

static start_fn agent_start;
static stop_fn agent_stop;
static status_fn agent_status;
static capture_fn agent_capture;

static volatile LONG leaving;
static volatile LONG64 work, rounds[3];

__attribute__((noinline)) int leaf(int n)
{
    int sum = 0;
    for (int i = 0; i < n; i++) {
        sum += i * i;
        work = sum;
    }
    return sum;
}

__attribute__((noinline)) int nested(int n, int depth)
{
    volatile char room[256];
    room[depth & 255] = (char)n;
    int result = depth == 0 ? leaf(2000) : nested(n + 1, depth - 1);
    return result + room[depth & 255];
}

static DWORD WINAPI worker(void *number)
{
    while (!leaving) {
        nested(0, 10 + 20 * (int)(INT_PTR)number);
        rounds[(INT_PTR)number]++;
    }
    return 0;
}

static DWORD WINAPI waiter(void *event)
{
    WaitForSingleObject(event, INFINITE);
    return 0;
}

static DWORD WINAPI brief(void *unused)
{
    Sleep(120);
    return 0;
}

static volatile LONG counter;

static DWORD WINAPI counted(void *unused)
{
    InterlockedIncrement(&counter);
    return 0;
}

__attribute__((noinline)) uint32_t capture_here(uint64_t tag)
{
    uint32_t result = agent_capture(tag);
    work += result;
    return result;
}

static stk_agent_state agent_state(void)
{
    stk_agent_state status;
    memset(&status, 0, sizeof status);
    status.size = sizeof status;
    status.version = STK_CONTROL_VERSION;
    agent_status(&status);
    return status;
}

/* Prints the priority of every thread of this process. */
static void print_priorities(void)
{
    THREADENTRY32 entry;
    memset(&entry, 0, sizeof entry);
    entry.dwSize = sizeof entry;
    HANDLE snapshot = CreateToolhelp32Snapshot(TH32CS_SNAPTHREAD, 0);
    for (BOOL more = Thread32First(snapshot, &entry); more; more = Thread32Next(snapshot, &entry)) {
        if (entry.th32OwnerProcessID != GetCurrentProcessId())
            continue;
        HANDLE thread = OpenThread(THREAD_QUERY_INFORMATION, FALSE, entry.th32ThreadID);
        printf("priority %lu %d\n", entry.th32ThreadID, GetThreadPriority(thread));
        CloseHandle(thread);
    }
    CloseHandle(snapshot);
}

/* The board that the agent publishes for its guard process. */
static const volatile stk_guard_board *board(void)
{
    return (const volatile stk_guard_board *)(UINT_PTR)agent_state().guard_board;
}

/* The slot of the working sampler: its word changes. */
static int active_slot(void)
{
    uint64_t words[3];
    for (int tries = 0; tries < 1000; tries++) {
        for (int i = 0; i < 3; i++)
            words[i] = board()->samplers[i].word;
        Sleep(20);
        for (int i = 0; i < 3; i++)
            if (board()->samplers[i].word >> 8 != words[i] >> 8)
                return i;
    }
    return -1;
}

/*
 * Freezes the active sampler at some moment. Returns how many of the workers never ran again while
 * it stayed frozen, or -1 without a sampler.
 */
static int stuck_while_frozen(void)
{
    int stuck = 0, slot = active_slot();
    HANDLE thread = slot < 0 ? NULL : OpenThread(THREAD_ALL_ACCESS, FALSE, board()->samplers[slot].sampler);
    if (!thread)
        return -1;
    SuspendThread(thread);
    CONTEXT context;
    context.ContextFlags = CONTEXT_CONTROL;
    GetThreadContext(thread, &context); /* it stands still now */
    Sleep(200);
    for (int i = 0; i < 3; i++) {
        LONG64 before = rounds[i];
        int waited = 0;
        while (rounds[i] == before && waited++ < 2000)
            Sleep(10);
        stuck += rounds[i] == before;
    }
    ResumeThread(thread);
    CloseHandle(thread);
    return stuck;
}

/* Whether some worker still runs. On a loaded machine none may run for a while. */
static int works_on(void)
{
    LONG64 before = work;
    for (int i = 0; i < 2000; i++) {
        Sleep(10);
        if (work != before)
            return 1;
    }
    return 0;
}

/*
 * A thread that cannot stop, like one that waits in a driver. Wine stops a thread by a signal of
 * the host, which this thread blocks by a Linux system call.
 */
static volatile LONG stubborn_asked, stubborn_blocked;

static long block_signals(int how)
{
    uint64_t stops = 1ull << (10 - 1); /* SIGUSR1 */
#ifdef __aarch64__
    register long number __asm__("x8") = 135; /* rt_sigprocmask */
    register long result __asm__("x0") = how;
    register uint64_t *set __asm__("x1") = &stops;
    register long old __asm__("x2") = 0, size __asm__("x3") = sizeof stops;
    __asm__ volatile("svc #0" : "+r"(result) : "r"(number), "r"(set), "r"(old), "r"(size) : "memory");
#else
    long result;
    register long size __asm__("r10") = sizeof stops;
    __asm__ volatile("syscall" : "=a"(result) : "a"(14L), "D"((long)how), "S"(&stops), "d"(0L), "r"(size) : "rcx", "r11", "memory");
#endif
    return result;
}

static DWORD WINAPI stubborn(void *number)
{
    LONG bit = 1 << (int)(INT_PTR)number;
    while (!leaving) {
        if (stubborn_asked & bit) {
            if (block_signals(0) == 0) /* SIG_BLOCK */
                InterlockedOr(&stubborn_blocked, bit);
            while (stubborn_asked & bit)
                work++;
            InterlockedAnd(&stubborn_blocked, ~bit);
            block_signals(1); /* SIG_UNBLOCK */
        }
        work++;
    }
    return 0;
}

/* Sleep as Windows has it where nobody asks for a finer clock: it ends with a clock interrupt, of which there are 64 a second. */
static volatile LONG coarse_sleeps;

static VOID WINAPI coarse_sleep(DWORD milliseconds)
{
    InterlockedIncrement(&coarse_sleeps);
    if (milliseconds != INFINITE)
        milliseconds = (milliseconds * 10 + 155) / 156 * 156 / 10;
    Sleep(milliseconds);
}

/* Gives the module that Sleep in place of kernel32's; 0 if it does not import that. */
static int make_sleeps_coarse(HMODULE module)
{
    BYTE *base = (BYTE *)module;
    const IMAGE_NT_HEADERS *headers = (const IMAGE_NT_HEADERS *)(base + ((const IMAGE_DOS_HEADER *)base)->e_lfanew);
    DWORD rva = headers->OptionalHeader.DataDirectory[IMAGE_DIRECTORY_ENTRY_IMPORT].VirtualAddress, before;
    for (const IMAGE_IMPORT_DESCRIPTOR *dll = (const IMAGE_IMPORT_DESCRIPTOR *)(base + rva); rva && dll->Name; dll++) {
        const IMAGE_THUNK_DATA *name = (const IMAGE_THUNK_DATA *)(base + dll->OriginalFirstThunk);
        IMAGE_THUNK_DATA *function = (IMAGE_THUNK_DATA *)(base + dll->FirstThunk);
        for (; name->u1.AddressOfData; name++, function++) {
            const IMAGE_IMPORT_BY_NAME *by_name = (const IMAGE_IMPORT_BY_NAME *)(base + name->u1.AddressOfData);
            if (IMAGE_SNAP_BY_ORDINAL(name->u1.Ordinal) || strcmp((const char *)by_name->Name, "Sleep"))
                continue;
            VirtualProtect(function, sizeof *function, PAGE_READWRITE, &before);
            function->u1.Function = (ULONG_PTR)coarse_sleep;
            VirtualProtect(function, sizeof *function, before, &before);
            return 1;
        }
    }
    return 0;
}

/* Waits until `count` more samples were taken; 0 if they were not. */
static int more_samples(uint64_t count)
{
    uint64_t before = agent_state().samples;
    for (int i = 0; i < 3000; i++) {
        if (agent_state().samples >= before + count)
            return 1;
        Sleep(10);
    }
    return 0;
}

/*
 * Calls functions that take the locks of ExitProcess, of the loader and of the environment.
 * Returns 1; if one of these locks were held, it would not return.
 */
static int locks_are_free(void)
{
    static char text[64];
    SetEnvironmentVariableA("STK_TEST", "on");
    DWORD index = TlsAlloc();
    TlsFree(index);
    HMODULE dll = LoadLibraryA("version.dll");
    FreeLibrary(dll);
    return GetEnvironmentVariableA("STK_TEST", text, sizeof text) == 2 && index != TLS_OUT_OF_INDEXES && dll;
}

static void describe(HANDLE thread, const wchar_t *name)
{
    describe_fn set = (describe_fn)(void *)GetProcAddress(GetModuleHandleA("kernel32.dll"), "SetThreadDescription");
    if (set)
        set(thread, name);
}

/*
 * Dynamic code for the scenarios of --check-walks. It waits for `leaving`, whose address is its
 * argument.
 */

/* push rbp; mov ebp,10h; again: cmp dword ptr [rcx],0; je again; pop rbp; ret */
static const BYTE wild_code[] = {0x55, 0xBD, 0x10, 0, 0, 0, 0x83, 0x39, 0, 0x74, 0xFB, 0x5D, 0xC3};
/* UNWIND_INFO with rbp as the frame register: an unwinder reads address 10h. */
static const BYTE wild_info[] = {0x01, 6, 2, 0x05, 6, 0x03, 1, 0x50};
/* again: cmp dword ptr [rcx],0; je again; ret */
static const BYTE slow_code[] = {0x83, 0x39, 0, 0x74, 0xFB, 0xC3};

static volatile LONG slow_lookups;

/* Behaves like a runtime's callback that must wait for a lock. */
static PRUNTIME_FUNCTION CALLBACK slow_lookup(DWORD64 pc, PVOID context)
{
    if (InterlockedIncrement(&slow_lookups) <= 3)
        Sleep(400);
    return NULL;
}

/* Starts a thread in the dynamic code of a scenario and prints the code's address. */
static HANDLE dynamic_thread(int wild)
{
    BYTE *page = VirtualAlloc(NULL, 4096, MEM_COMMIT | MEM_RESERVE, PAGE_EXECUTE_READWRITE);
    memcpy(page, wild ? wild_code : slow_code, wild ? sizeof wild_code : sizeof slow_code);
    if (wild) {
        RUNTIME_FUNCTION *function = (RUNTIME_FUNCTION *)(page + 0x180);
        memcpy(page + 0x100, wild_info, sizeof wild_info);
        function->BeginAddress = 0;
#ifndef __aarch64__
        function->EndAddress = sizeof wild_code;
#endif
        function->UnwindData = 0x100;
        printf("registered %d\n", RtlAddFunctionTable(function, 1, (DWORD64)(UINT_PTR)page));
    } else {
        printf("registered %d\n", RtlInstallFunctionTableCallback((DWORD64)(UINT_PTR)page | 3, (DWORD64)(UINT_PTR)page, 4096,
                                                                  slow_lookup, NULL, NULL));
    }
    printf("code %llu\n", (unsigned long long)(UINT_PTR)page);
    return CreateThread(NULL, 0, (LPTHREAD_START_ROUTINE)(void *)page, (void *)&leaving, 0, NULL);
}

/*
 * A thread whose environment block is unmapped while the recorder looks at it, as Windows does when
 * a thread ends (Wine keeps the block). The recorder's queries about threads are diverted to
 * query_without_block. It reports a freed address as the block of `doomed`, and lets that thread
 * end before it answers the next query, so that the thread cannot be suspended.
 */
typedef LONG(WINAPI *query_fn)(HANDLE, ULONG, void *, ULONG, ULONG *);
static query_fn query_thread;
static HANDLE doomed, doom;
static DWORD doomed_tid;
static volatile LONG answers_without_block;

/* GetThreadId would call the diverted function again. */
static DWORD tid_of(HANDLE thread)
{
    ULONG_PTR basic[6] = {0}; /* THREAD_BASIC_INFORMATION: the thread's id is its fourth word */
    query_thread(thread, 0, basic, sizeof basic, NULL);
    return (DWORD)basic[3];
}

static LONG WINAPI query_without_block(HANDLE thread, ULONG class, void *buffer, ULONG size, ULONG *needed)
{
    LONG status = query_thread(thread, class, buffer, size, needed);
    if (tid_of(thread) != doomed_tid)
        return status;
    if (class == 0 && status >= 0) { /* ThreadBasicInformation: its second word is the block */
        void *gone = VirtualAlloc(NULL, 65536, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
        VirtualFree(gone, 0, MEM_RELEASE);
        ((void **)buffer)[1] = gone;
        InterlockedIncrement(&answers_without_block);
    } else if (class == 9) { /* ThreadQuerySetWin32StartAddress: follows the reading of the block */
        SetEvent(doom);
        WaitForSingleObject(doomed, INFINITE);
    }
    return status;
}

/*
 * Diverts NtQueryInformationThread to query_without_block. The function is a few instructions
 * around a system call, which work at any address.
 */
static int divert_query(void)
{
    BYTE *function = (BYTE *)(void *)GetProcAddress(GetModuleHandleA("ntdll.dll"), "NtQueryInformationThread");
    BYTE *copy = VirtualAlloc(NULL, 4096, MEM_RESERVE | MEM_COMMIT, PAGE_EXECUTE_READWRITE);
    static const BYTE system_call[] = {0x4C, 0x8B, 0xD1, 0xB8}; /* mov r10,rcx; mov eax,… */
    DWORD old;
    if (memcmp(function, system_call, sizeof system_call) != 0 || !VirtualProtect(function, 32, PAGE_EXECUTE_READWRITE, &old))
        return 0;
    memcpy(copy, function, 32);
    query_thread = (query_fn)(void *)copy;
    void *here = (void *)query_without_block;
    BYTE jump[12] = {0x48, 0xB8, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xE0}; /* mov rax,…; jmp rax */
    memcpy(jump + 2, &here, 8);
    memcpy(function, jump, sizeof jump);
    return 1;
}

static HANDLE ended;
static uint32_t embed = STK_EMBED_UNWIND;
static const wchar_t *tables;
static HANDLE guard_process;
static uint32_t unguarded = STK_FLAG_UNGUARDED;
static uint64_t max_bytes;

static uint32_t start(const char *output, uint32_t flags, uint32_t rate_mhz, uint32_t duration_ms)
{
    static const char metadata[] = "label\0from the host";
    stk_agent_config config;
    memset(&config, 0, sizeof config);
    config.size = sizeof config;
    config.version = STK_CONTROL_VERSION;
    config.output = (uint64_t)(UINT_PTR)CreateFileA(output, GENERIC_WRITE, FILE_SHARE_READ, NULL, CREATE_ALWAYS, 0, NULL);
    config.rate_mhz = rate_mhz;
    /* The agent closes its handle. */
    HANDLE signal = NULL;
    if (!ended)
        ended = CreateEventA(NULL, TRUE, FALSE, NULL);
    DuplicateHandle(GetCurrentProcess(), ended, GetCurrentProcess(), &signal, 0, FALSE, DUPLICATE_SAME_ACCESS);
    config.ended_event = (uint64_t)(UINT_PTR)signal;
    /*
     * Every scenario stops the agent before the process exits, or tests an exit without a guard.
     */
    config.flags = flags | unguarded;
    if (guard_process) {
        HANDLE guard = NULL;
        DuplicateHandle(GetCurrentProcess(), guard_process, GetCurrentProcess(), &guard, SYNCHRONIZE, FALSE, 0);
        config.guard = (uint64_t)(UINT_PTR)guard;
        config.flags = flags;
    }
    config.max_bytes = max_bytes;
    config.embed = embed;
    config.tables_dir = (uint64_t)(UINT_PTR)tables;
    config.duration_ms = duration_ms;
    for (int i = 0; i < 16; i++)
        config.uuid[i] = (uint8_t)(i * 17 + 3);
    config.metadata = (uint64_t)(UINT_PTR)metadata;
    config.metadata_len = sizeof metadata;
    uint32_t result = agent_start(&config);
    if (result)
        printf("start_failed %u error %u\n", result, config.system_error);
    return result;
}

static void print_status(void)
{
    stk_agent_state status = agent_state();
    printf("state %u\nend_reason %u\nthreads %u\nmodules %u\nsamples %llu\ndropped %llu\nbytes %llu\npasses %llu\nelapsed_ms %llu\nmessage %.*s\n",
           status.state, status.end_reason, status.threads, status.modules, (unsigned long long)status.samples,
           (unsigned long long)status.dropped, (unsigned long long)status.bytes, (unsigned long long)status.passes,
           (unsigned long long)status.elapsed_ms, (int)status.message_len, (const char *)status.message);
    fflush(stdout);
}

static void wait_for_end(void)
{
    printf("ended %d\n", WaitForSingleObject(ended, 60000) == WAIT_OBJECT_0);
}

/* Waits until the recording has samples and modules: on a loaded machine that takes a while. */
static void wait_for_samples(uint64_t least)
{
    for (int i = 0; i < 1500; i++) {
        stk_agent_state status = agent_state();
        if (status.modules != 0 && status.samples >= least)
            return;
        Sleep(10);
    }
}

/*
 * Records a child of this program whose sampler stops forever in a phase, and checks it from
 * outside, like the guard: any thread inside can be the one that is held.
 */
static int freeze(const char *self, const char *agent, const char *output, const char *phase)
{
    static char command[4096], text[4096];
    HANDLE reader, writer;
    SECURITY_ATTRIBUTES inherited = {sizeof inherited, NULL, TRUE};
    CreatePipe(&reader, &writer, &inherited, 0);
    snprintf(command, sizeof command, "\"%s\" \"%s\" \"%s\" freeze_child %s", self, agent, output, phase);
    STARTUPINFOA startup;
    PROCESS_INFORMATION child;
    memset(&startup, 0, sizeof startup);
    startup.cb = sizeof startup;
    startup.dwFlags = STARTF_USESTDHANDLES;
    startup.hStdOutput = startup.hStdError = writer;
    if (!CreateProcessA(NULL, command, NULL, NULL, TRUE, 0, NULL, NULL, &startup, &child))
        return 1;
    CloseHandle(writer);
    char *found = NULL;
    DWORD got, len = 0;
    while (!(found && strchr(found, '\n')) && ReadFile(reader, text + len, sizeof text - 1 - len, &got, NULL) && got) {
        len += got;
        found = strstr(text, "board ");
    }
    if (!found) {
        printf("child %s\n", text);
        return 1;
    }
    const stk_guard_board *remote = (const stk_guard_board *)(UINT_PTR)strtoull(found + 6, NULL, 10);
    stk_guard_board seen, later;
    memset(&seen, 0, sizeof seen);
    for (int i = 0; i < 6000 && (seen.samplers[0].word & 0xff) != (unsigned)atoi(phase); i++) {
        Sleep(5);
        ReadProcessMemory(child.hProcess, remote, &seen, sizeof seen, NULL);
        if ((seen.samplers[0].word & 0xff) != (unsigned)atoi(phase))
            continue;
        /* The sampler may only have passed through the phase: check that it stays there. */
        Sleep(300);
        ReadProcessMemory(child.hProcess, remote, &later, sizeof later, NULL);
        if (later.samplers[0].word != seen.samplers[0].word)
            seen.samplers[0].word = 0;
    }
    /* The watchdog must not change it. */
    Sleep(2500);
    ReadProcessMemory(child.hProcess, remote, &later, sizeof later, NULL);
    uint64_t word = seen.samplers[0].word;
    printf("version %u\nphase %u\nunchanged %d\n", seen.version, (unsigned)(word & 0xff), later.samplers[0].word == word);
    HANDLE held = OpenThread(THREAD_SUSPEND_RESUME, FALSE, (DWORD)(word >> 32));
    printf("suspended %d\n", held ? (int)ResumeThread(held) : -1);
    TerminateProcess(child.hProcess, 0);
    return WaitForSingleObject(child.hProcess, 20000) == WAIT_OBJECT_0 ? 0 : 1;
}

/* Threads of this process. */
static unsigned count_threads(void)
{
    HANDLE all = CreateToolhelp32Snapshot(TH32CS_SNAPTHREAD, 0);
    THREADENTRY32 entry = {.dwSize = sizeof entry};
    unsigned threads = 0;
    for (BOOL more = Thread32First(all, &entry); more; more = Thread32Next(all, &entry))
        threads += entry.th32OwnerProcessID == GetCurrentProcessId();
    CloseHandle(all);
    return threads;
}

/* Handles of this process. Wine 8 does not count them: there each number that a handle may have is tried. Numbers are given from the
 * lowest on, so that a leak, too, is below the limit. */
static DWORD count_handles(void)
{
    DWORD handles = 0, flags;
    GetProcessHandleCount(GetCurrentProcess(), &handles);
    if (!handles)
        for (UINT_PTR number = 4; number < 16384; number += 4)
            handles += GetHandleInformation((HANDLE)number, &flags) != 0;
    return handles;
}

/* Threads, handles and private bytes of this process, once the recorder's threads have ended and it has at most `most` handles. Both are
 * waited for, ten seconds each: the last recording is taken apart after its end. */
static DWORD print_usage(const char *when, DWORD most)
{
    PROCESS_MEMORY_COUNTERS memory = {.cb = sizeof memory};
    /* The main thread, three workers and two waiters. */
    for (int tries = 0; tries < 1000 && count_threads() > 6; tries++)
        Sleep(10);
    for (int tries = 0; tries < 1000 && count_handles() > most; tries++)
        Sleep(10);
    DWORD handles = count_handles();
    GetProcessMemoryInfo(GetCurrentProcess(), &memory, sizeof memory);
    printf("%s_threads %u\n%s_handles %lu\n%s_kib %llu\n", when, count_threads(), when, handles, when,
           (unsigned long long)memory.PagefileUsage >> 10);
    return handles;
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    if (!strcmp(argv[3], "freeze"))
        return freeze(argv[0], argv[1], argv[2], argv[4]);
    const char *output = argv[2], *scenario = argv[3];
    HMODULE agent = LoadLibraryA(argv[1]);
    if (!agent) {
        printf("load_failed %lu\n", GetLastError());
        return 1;
    }
    agent_start = (start_fn)(void *)GetProcAddress(agent, "stk_agent_start");
    agent_stop = (stop_fn)(void *)GetProcAddress(agent, "stk_agent_stop");
    agent_status = (status_fn)(void *)GetProcAddress(agent, "stk_agent_status");
    agent_capture = (capture_fn)(void *)GetProcAddress(agent, "stk_capture");
    if (!agent_start || !agent_stop || !agent_status || !agent_capture)
        return 1;

    HANDLE event = CreateEventA(NULL, TRUE, FALSE, NULL), threads[5];
    for (int i = 0; i < 3; i++)
        threads[i] = CreateThread(NULL, 0, worker, (void *)(INT_PTR)i, 0, NULL);
    threads[3] = CreateThread(NULL, 0, waiter, event, 0, NULL);
    threads[4] = CreateThread(NULL, 0, waiter, event, 0, NULL);
    describe(threads[0], L"shallow");
    describe(threads[2], L"tiefer F\u00e4den \U0001F9F5");
    describe(threads[3], L"waiter");

    printf("capture_idle %u\n", agent_capture(1));
    printf("stop_idle %u\n", agent_stop(NULL));
    if (!strcmp(scenario, "plain")) {
        if (start(output, 0, 1000000, 0))
            return 1;
        printf("again %u\n", start("other.stk", 0, 1000000, 0));
        wait_for_samples(10);
        for (int i = 0; i < 8; i++) {
            CloseHandle(CreateThread(NULL, 0, brief, NULL, 0, NULL));
            HMODULE dll = LoadLibraryA(i & 1 ? "version.dll" : "winmm.dll");
            Sleep(150);
            printf("captured %u\n", capture_here(100 + i));
            FreeLibrary(dll);
        }
        Sleep(argc > 4 ? (DWORD)atoi(argv[4]) : 500);
        printf("stop %u\n", agent_stop(NULL));
    } else if (!strcmp(scenario, "once")) {
        if (start(output, STK_FLAG_ONCE, 1000000, 0))
            return 1;
        wait_for_end();
    } else if (!strcmp(scenario, "tables")) {
        /* Embeds everything, and keeps it in a folder that two recordings share. */
        static wchar_t folder[1024];
        MultiByteToWideChar(CP_UTF8, 0, argv[4], -1, folder, 1024);
        tables = folder;
        embed = STK_EMBED_FULL;
        for (int i = 0; i < 2; i++) {
            if (start(output, STK_FLAG_ONCE, 1000000, 0))
                return 1;
            wait_for_end();
            ResetEvent(ended);
        }
    } else if (!strcmp(scenario, "none")) {
        embed = STK_EMBED_NONE;
        if (start(output, STK_FLAG_ONCE, 1000000, 0))
            return 1;
        wait_for_end();
    } else if (!strcmp(scenario, "duration")) {
        if (start(output, 0, 200000, 700))
            return 1;
        wait_for_end();
    } else if (!strcmp(scenario, "priorities")) {
        if (start(output, 0, 1000000, 0))
            return 1;
        wait_for_samples(10);
        print_priorities();
        /* The cost of a suspension and losses are written once a second. */
        Sleep(1500);
        printf("stop %u\n", agent_stop(NULL));
    } else if (!strcmp(scenario, "cycles")) {
        int cycles = argc > 4 ? atoi(argv[4]) : 10;
        DWORD handles = MAXDWORD;
        for (int i = 0; i < cycles; i++) {
            /* Caches of the system and of the C library are full by then. */
            if (i == cycles / 2)
                handles = print_usage("half", MAXDWORD);
            if (start(output, 0, 1000000, 0))
                return 1;
            Sleep(cycles > 10 ? 20 : 120);
            /* On a loaded machine none may be there yet: a recording that took none used less memory than the next. */
            if (cycles <= 10)
                wait_for_samples(1);
            printf("stop %u\n", agent_stop(NULL));
        }
        print_usage("end", handles);
    } else if (!strcmp(scenario, "panic")) {
        if (start(output, STK_FLAG_TEST_PANIC, 1000000, 0))
            return 1;
        wait_for_end();
        printf("again %u\n", start("other.stk", 0, 1000000, 0));
    } else if (!strcmp(scenario, "panic_capture") || !strcmp(scenario, "panic_notification")) {
        /* The agent panics on a thread of this program, inside a call that must return. */
        int in_capture = scenario[6] == 'c';
        if (start(output, (in_capture ? TEST_PANIC_IN_CAPTURE : TEST_PANIC_IN_NOTIFICATION) << 24, 1000000, 0))
            return 1;
        wait_for_samples(10);
        if (in_capture)
            printf("captured %u\n", capture_here(1));
        else
            printf("locks_free %d\n", locks_are_free());
        wait_for_end();
        printf("capture_later %u\n", capture_here(2));
        /* A new thread needs the loader's lock. */
        HANDLE thread = CreateThread(NULL, 0, counted, NULL, 0, NULL);
        WaitForSingleObject(thread, 60000);
        printf("new_threads %ld\nlocks_free_later %d\n", counter, locks_are_free());
        printf("again %u\n", start("other.stk", 0, 1000000, 0));
    } else if (!strcmp(scenario, "frozen")) {
        if (start(output, 0, 1000000, 0))
            return 1;
        wait_for_samples(10);
        int stuck = 0, frozen = 0;
        /* If the watchdog had to resume a stopped thread, it ends the recording. */
        for (int i = 0; i < 20 && agent_state().state == STK_STATE_RECORDING; i++) {
            int more = stuck_while_frozen();
            frozen += more >= 0;
            stuck += more > 0 ? more : 0;
            Sleep(37);
        }
        printf("frozen %d\nstuck %d\n", frozen, stuck);
        agent_stop(NULL);
    } else if (!strcmp(scenario, "wild_walk") || !strcmp(scenario, "slow_walk")) {
        HANDLE thread = dynamic_thread(scenario[0] == 'w');
        if (start(output, STK_FLAG_CHECK_WALKS, 1000000, 0))
            return 1;
        wait_for_samples(20);
        /* The target's own faults still reach its own handlers. */
        printf("bad_read %d\n", IsBadReadPtr((void *)16, 1) != 0);
        Sleep(1500);
        printf("slow_lookups %ld\n", slow_lookups);
        printf("stop %u\n", agent_stop(NULL));
        leaving = 1;
        printf("left %d\n", WaitForSingleObject(thread, 5000) == WAIT_OBJECT_0);
    } else if (!strcmp(scenario, "coarse_clock")) {
        /* The stop, a host that wants the agent to leave, and another recording, while a sampler is stuck in its call. */
        leave_fn leave = (leave_fn)(void *)GetProcAddress(agent, "stk_agent_leave");
        HANDLE thread = CreateThread(NULL, 0, stubborn, NULL, 0, NULL);
        ULONGLONG since;
        printf("coarse %d\n", make_sleeps_coarse(agent));
        if (!leave || start(output, 0, 1000000, 0))
            return 1;
        wait_for_samples(60);
        stubborn_asked = 1;
        while (!stubborn_blocked)
            Sleep(1);
        /* Time for a spare sampler to take over. */
        Sleep(3000);
        since = GetTickCount64();
        printf("stop %u\n", agent_stop(NULL));
        wait_for_end();
        printf("stop_ms %llu\n", GetTickCount64() - since);
        since = GetTickCount64();
        printf("leave %u\n", leave(0));
        printf("leave_ms %llu\n", GetTickCount64() - since);
        since = GetTickCount64();
        printf("again %u\n", start("other.stk", 0, 1000000, 0));
        printf("again_ms %llu\n", GetTickCount64() - since);
        stubborn_asked = 0;
        leaving = 1;
        printf("left %d\n", WaitForSingleObject(thread, 20000) == WAIT_OBJECT_0);
        printf("leave_later %u\nsleeps %ld\n", leave(0), coarse_sleeps);
    } else if (!strcmp(scenario, "stubborn") || !strcmp(scenario, "stubborn_three")) {
        int many = scenario[8] ? 3 : 1, all = (1 << many) - 1;
        HANDLE stubborns[3];
        for (int i = 0; i < many; i++) {
            stubborns[i] = CreateThread(NULL, 0, stubborn, (void *)(INT_PTR)i, 0, NULL);
            describe(stubborns[i], L"stubborn");
        }
        if (start(output, 0, 1000000, 0))
            return 1;
        wait_for_samples(60);
        stubborn_asked = all;
        while (stubborn_blocked != all)
            Sleep(1);
        /* Time to ask each of them, and for the spare samplers to take over. */
        Sleep(many == 1 ? 3000 : 6000);
        printf("captured %u\n", capture_here(1));
        if (many == 1)
            printf("sampled_on %d\n", more_samples(200));
        printf("captured %u\n", capture_here(2));
        printf("locks_free %d\nstill_blocked %d\n", locks_are_free(), stubborn_blocked == all);
        int held = 0;
        for (int i = 0; i < 3; i++)
            for (int thread = 0; thread < many; thread++)
                held += board()->samplers[i].word >> 32 == GetThreadId(stubborns[thread]) && (board()->samplers[i].word & 0xff) != 0;
        printf("held %d\nworking %d\n", held, works_on());
        stubborn_asked = 0;
        printf("sampled_after %d\n", more_samples(200));
        /* The sampler leaves them alone for 5 s after the call that asked them has returned. */
        Sleep(7000);
        printf("captured %u\n", capture_here(3));
        printf("stop %u\nalive %d\n", agent_stop(NULL), works_on());
        leaving = 1;
        printf("left %d\n", WaitForMultipleObjects(many, stubborns, TRUE, 20000) < WAIT_OBJECT_0 + 3);
    } else if (!strcmp(scenario, "freeze_child")) {
        uint32_t phase = (uint32_t)atoi(argv[4]);
        if (start(output, phase << 24 | (phase == 6 ? STK_FLAG_CHECK_WALKS : 0), 1000000, 0))
            return 1;
        printf("board %llu\n", (unsigned long long)(UINT_PTR)board());
        fflush(stdout);
        Sleep(INFINITE);
    } else if (!strcmp(scenario, "brief")) {
        if (start(output, 0, 1000000, 0))
            return 1;
        for (int i = 0; i < 300; i++) {
            HANDLE thread = CreateThread(NULL, 0, counted, NULL, 0, NULL);
            if (i % 3 == 0)
                describe(thread, L"brief");
            WaitForSingleObject(thread, INFINITE);
            CloseHandle(thread);
        }
        printf("counted %ld\nstop %u\n", counter, agent_stop(NULL));
    } else if (!strcmp(scenario, "block_gone")) {
        doom = CreateEventA(NULL, TRUE, FALSE, NULL);
        doomed = CreateThread(NULL, 0, waiter, doom, 0, &doomed_tid);
        printf("diverted %d\n", divert_query());
        if (start(output, 0, 1000000, 0))
            return 1;
        wait_for_samples(20);
        printf("answers_without_block %ld\nstop %u\n", answers_without_block, agent_stop(NULL));
        printf("doomed_tid %lu\n", doomed_tid);
    } else if (!strcmp(scenario, "guard_gone")) {
        /* Any process can be the guard: the agent only waits for its end. A suspended one does not end by itself. */
        STARTUPINFOA startup;
        PROCESS_INFORMATION guard;
        memset(&startup, 0, sizeof startup);
        startup.cb = sizeof startup;
        char line[] = "cmd.exe /c pause";
        printf("guard %d\n", CreateProcessA(NULL, line, NULL, NULL, FALSE, CREATE_NEW_CONSOLE | CREATE_SUSPENDED, NULL, NULL, &startup, &guard));
        guard_process = guard.hProcess;
        if (start(output, 0, 1000000, 0))
            return 1;
        wait_for_samples(20);
        TerminateProcess(guard.hProcess, 0);
        wait_for_end();
    } else if (!strcmp(scenario, "no_guard")) {
        unguarded = 0;
        start(output, 0, 1000000, 0);
    } else if (!strcmp(scenario, "size_limit")) {
        /* Only samples fill the trace. */
        embed = STK_EMBED_NONE;
        max_bytes = 128 << 10;
        if (start(output, 0, 1000000, 0))
            return 1;
        wait_for_end();
    } else if (!strcmp(scenario, "exit")) {
        if (start(output, 0, 1000000, 0))
            return 1;
        wait_for_samples(60);
        print_status();
        return 7;
    } else {
        return 2;
    }
    if (!leaving)
        printf("alive %d\n", works_on());
    print_status();
    leaving = 1;
    SetEvent(event);
    printf("joined %d\n", WaitForMultipleObjects(5, threads, TRUE, 5000) == WAIT_OBJECT_0);
    fflush(stdout);
    return 0;
}
