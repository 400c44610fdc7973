/*
 * A program with a few threads that loads agent.dll itself and drives it through one scenario: the agent's own end to
 * end test, without inject. Prints what it saw, one `key value` a line.
 *
 *   host.exe AGENT_DLL OUTPUT SCENARIO
 */
#include <windows.h>
#include <tlhelp32.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../include/stk_agent.h"

typedef uint32_t(STK_AGENT_CALL *start_fn)(stk_agent_config *);
typedef uint32_t(STK_AGENT_CALL *stop_fn)(void *);
typedef uint32_t(STK_AGENT_CALL *status_fn)(stk_agent_state *);
typedef uint32_t(STK_AGENT_CALL *capture_fn)(uint64_t);
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

/* The agent's sampler: the one thread here that runs at time-critical priority. */
static HANDLE sampler(void)
{
    THREADENTRY32 entry;
    memset(&entry, 0, sizeof entry);
    entry.dwSize = sizeof entry;
    HANDLE found = NULL, snapshot = CreateToolhelp32Snapshot(TH32CS_SNAPTHREAD, 0);
    for (BOOL more = Thread32First(snapshot, &entry); more && !found; more = Thread32Next(snapshot, &entry)) {
        if (entry.th32OwnerProcessID != GetCurrentProcessId())
            continue;
        HANDLE thread = OpenThread(THREAD_ALL_ACCESS, FALSE, entry.th32ThreadID);
        if (GetThreadPriority(thread) == THREAD_PRIORITY_TIME_CRITICAL)
            found = thread;
        else
            CloseHandle(thread);
    }
    CloseHandle(snapshot);
    return found;
}

/* Freezes the sampler at some moment; returns how many of the workers never ran again although it stayed frozen. */
static int stuck_while_frozen(HANDLE thread)
{
    int stuck = 0;
    SuspendThread(thread);
    CONTEXT context;
    context.ContextFlags = CONTEXT_CONTROL;
    GetThreadContext(thread, &context); /* it stands still now */
    Sleep(200);
    for (int i = 0; i < 3; i++) {
        LONG64 before = rounds[i];
        int waited = 0;
        while (rounds[i] == before && waited++ < 500)
            Sleep(10);
        stuck += rounds[i] == before;
    }
    ResumeThread(thread);
    return stuck;
}

static void describe(HANDLE thread, const wchar_t *name)
{
    describe_fn set = (describe_fn)(void *)GetProcAddress(GetModuleHandleA("kernel32.dll"), "SetThreadDescription");
    if (set)
        set(thread, name);
}

/* Dynamic code for the scenarios of --check-walks: it waits for `leaving`, whose address is its argument. */

/* push rbp; mov ebp,10h; again: cmp dword ptr [rcx],0; je again; pop rbp; ret */
static const BYTE wild_code[] = {0x55, 0xBD, 0x10, 0, 0, 0, 0x83, 0x39, 0, 0x74, 0xFB, 0x5D, 0xC3};
/* UNWIND_INFO that takes rbp for the frame: whoever unwinds it reads address 10h. */
static const BYTE wild_info[] = {0x01, 6, 2, 0x05, 6, 0x03, 1, 0x50};
/* again: cmp dword ptr [rcx],0; je again; ret */
static const BYTE slow_code[] = {0x83, 0x39, 0, 0x74, 0xFB, 0xC3};

static volatile LONG slow_lookups;

/* As a runtime's callback that has to wait for a lock. */
static PRUNTIME_FUNCTION CALLBACK slow_lookup(DWORD64 pc, PVOID context)
{
    if (InterlockedIncrement(&slow_lookups) <= 3)
        Sleep(400);
    return NULL;
}

/* Starts a thread in the dynamic code of a scenario and prints where that lies. */
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

static HANDLE ended;
static uint32_t embed = STK_EMBED_UNWIND;
static const wchar_t *tables;

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
    /* Every scenario stops the agent before the process exits, or is about an exit without a guard. */
    config.flags = flags | STK_FLAG_UNGUARDED;
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
    stk_agent_state status;
    memset(&status, 0, sizeof status);
    status.size = sizeof status;
    status.version = STK_CONTROL_VERSION;
    agent_status(&status);
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

/* Waits until the recording is in full swing: on a loaded machine that takes a while. */
static void wait_for_samples(uint64_t least)
{
    stk_agent_state status;
    for (int i = 0; i < 1500; i++) {
        memset(&status, 0, sizeof status);
        status.size = sizeof status;
        status.version = STK_CONTROL_VERSION;
        agent_status(&status);
        if (status.modules != 0 && status.samples >= least)
            return;
        Sleep(10);
    }
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
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
        /* Everything embedded, and kept in a folder that two recordings share. */
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
    } else if (!strcmp(scenario, "cycles")) {
        for (int i = 0; i < 10; i++) {
            if (start(output, 0, 1000000, 0))
                return 1;
            Sleep(120);
            printf("stop %u\n", agent_stop(NULL));
        }
    } else if (!strcmp(scenario, "panic")) {
        if (start(output, STK_FLAG_TEST_PANIC, 1000000, 0))
            return 1;
        wait_for_end();
        printf("again %u\n", start("other.stk", 0, 1000000, 0));
    } else if (!strcmp(scenario, "frozen")) {
        if (start(output, 0, 1000000, 0))
            return 1;
        wait_for_samples(10);
        HANDLE thread = sampler();
        printf("sampler_found %d\n", thread != NULL);
        int stuck = 0;
        for (int i = 0; thread && i < 20; i++) {
            stuck += stuck_while_frozen(thread);
            Sleep(37);
        }
        printf("stuck %d\n", stuck);
        agent_stop(NULL);
    } else if (!strcmp(scenario, "wild_walk") || !strcmp(scenario, "slow_walk")) {
        HANDLE thread = dynamic_thread(scenario[0] == 'w');
        if (start(output, STK_FLAG_CHECK_WALKS, 1000000, 0))
            return 1;
        wait_for_samples(20);
        /* Faults of the target's own still come to its own handlers. */
        printf("bad_read %d\n", IsBadReadPtr((void *)16, 1) != 0);
        Sleep(1500);
        printf("slow_lookups %ld\n", slow_lookups);
        printf("stop %u\n", agent_stop(NULL));
        leaving = 1;
        printf("left %d\n", WaitForSingleObject(thread, 5000) == WAIT_OBJECT_0);
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
    } else if (!strcmp(scenario, "exit")) {
        if (start(output, 0, 1000000, 0))
            return 1;
        wait_for_samples(60);
        print_status();
        return 7;
    } else {
        return 2;
    }
    LONG64 before = work;
    Sleep(50);
    printf("alive %d\n", work != before);
    print_status();
    leaving = 1;
    SetEvent(event);
    printf("joined %d\n", WaitForMultipleObjects(5, threads, TRUE, 5000) == WAIT_OBJECT_0);
    return 0;
}
