/*
 * A program that the agent visits and leaves.
 *
 *   guest.exe MODE COMMAND_FILE AGENT.DLL
 *
 * MODE: calm, or storm (threads raise exceptions, load and free a DLL, begin and end, all the time).
 * Prints `pid N` and `ready`. Each time COMMAND_FILE appears, it is deleted and its first letter
 * obeyed: r reports, l loads AGENT.DLL, f frees it, c calls stk_capture of an agent that is loaded
 * already, s (in a storm) suspends a thread that raises exceptions in the moment in which it is in
 * the agent, g resumes it, q ends the program. Then it prints a line: `N r handles … threads … private … agent …
 * raised … loaded … begun … wrong …` (private: committed bytes; agent: whether one is loaded), or
 * `N LETTER RESULT`.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <windows.h>
#include <tlhelp32.h>

#define OWN_CODE 0xE0C0FFEEu

typedef uint32_t(WINAPI *capture_function)(uint64_t);

static const char *file, *agent_path;
static volatile LONG raised, loaded, begun, wrong, over;
static HANDLE raiser;

static LONG CALLBACK own_handler(EXCEPTION_POINTERS *info)
{
    if (info->ExceptionRecord->ExceptionCode != OWN_CODE)
        return EXCEPTION_CONTINUE_SEARCH;
    InterlockedIncrement(&raised);
    return EXCEPTION_CONTINUE_EXECUTION;
}

static DWORD WINAPI raises(void *unused)
{
    (void)unused;
    while (!over) {
        volatile LONG kept = raised;
        RaiseException(OWN_CODE, 0, 0, NULL);
        if (raised == kept)
            InterlockedIncrement(&wrong);
    }
    return 0;
}

static DWORD WINAPI loads(void *unused)
{
    (void)unused;
    while (!over) {
        HMODULE module = LoadLibraryA("version.dll");
        if (!module || !GetProcAddress(module, "GetFileVersionInfoW") || !FreeLibrary(module))
            InterlockedIncrement(&wrong);
        InterlockedIncrement(&loaded);
    }
    return 0;
}

static DWORD WINAPI brief(void *number)
{
    return (DWORD)(uintptr_t)number;
}

static DWORD WINAPI begins(void *unused)
{
    (void)unused;
    for (DWORD number = 1; !over; number++) {
        DWORD code = 0;
        HANDLE thread = CreateThread(NULL, 64 << 10, brief, (void *)(uintptr_t)number, STACK_SIZE_PARAM_IS_A_RESERVATION, NULL);
        if (!thread || WaitForSingleObject(thread, INFINITE) || !GetExitCodeThread(thread, &code) || code != number)
            InterlockedIncrement(&wrong);
        if (thread)
            CloseHandle(thread);
        InterlockedIncrement(&begun);
    }
    return 0;
}

static unsigned own_threads(void)
{
    unsigned count = 0;
    HANDLE snapshot = CreateToolhelp32Snapshot(TH32CS_SNAPTHREAD, 0);
    THREADENTRY32 entry = {.dwSize = sizeof entry};
    for (BOOL more = Thread32First(snapshot, &entry); more; more = Thread32Next(snapshot, &entry))
        count += entry.th32OwnerProcessID == GetCurrentProcessId();
    CloseHandle(snapshot);
    return count;
}

static size_t private_bytes(void)
{
    MEMORY_BASIC_INFORMATION known;
    size_t sum = 0;
    for (char *at = NULL; VirtualQuery(at, &known, sizeof known); at = (char *)known.BaseAddress + known.RegionSize) {
        if (known.State == MEM_COMMIT && known.Type == MEM_PRIVATE)
            sum += known.RegionSize;
        if ((char *)known.BaseAddress + known.RegionSize <= at)
            break;
    }
    return sum;
}

/* Wine 8 has no GetProcessHandleCount. Handles are given out from the lowest on. */
static unsigned own_handles(void)
{
    unsigned count = 0;
    DWORD flags;
    for (uintptr_t value = 4; value < 16384; value += 4)
        count += GetHandleInformation((HANDLE)value, &flags) != 0;
    return count;
}

static HMODULE agent(void)
{
    HMODULE found = GetModuleHandleA("agent.dll");
    return found ? found : GetModuleHandleA("agent32.dll");
}

static void report(int number)
{
    printf("%d r handles %u threads %u private %llu agent %d raised %ld loaded %ld begun %ld wrong %ld end\n", number, own_handles(),
           own_threads(), (unsigned long long)private_bytes(), agent() != NULL, raised, loaded, begun, wrong);
}

/* Whether the thread's next instruction is the agent's. */
static int is_in_agent(HANDLE thread)
{
    CONTEXT context = {.ContextFlags = CONTEXT_CONTROL};
    MEMORY_BASIC_INFORMATION known;
    if (!agent() || !GetThreadContext(thread, &context))
        return 0;
#ifdef _WIN64
    const void *ip = (const void *)context.Rip;
#else
    const void *ip = (const void *)context.Eip;
#endif
    return VirtualQuery(ip, &known, sizeof known) && known.AllocationBase == (void *)agent();
}

/* Suspends the first raiser in the agent's handler; 0 if it was never met there. */
static int suspend_in_agent(void)
{
    for (int n = 0; n < 200000; n++) {
        SuspendThread(raiser);
        if (is_in_agent(raiser))
            return 1;
        ResumeThread(raiser);
    }
    return 0;
}

static void capture(int number)
{
    FARPROC found = agent() ? GetProcAddress(agent(), "stk_capture") : NULL;
    printf("%d c %u end\n", number, found ? ((capture_function)(void *)found)(1) : 99);
}

/* The first letter of the command file, which is deleted; 0 = there is none. */
static char command(void)
{
    char letter = 0;
    DWORD read = 0;
    HANDLE from = CreateFileA(file, GENERIC_READ, FILE_SHARE_READ, NULL, OPEN_EXISTING, 0, NULL);
    if (from == INVALID_HANDLE_VALUE)
        return 0;
    ReadFile(from, &letter, 1, &read, NULL);
    CloseHandle(from);
    return read && DeleteFileA(file) ? letter : 0;
}

int main(int count, char **arguments)
{
    if (count < 4)
        return 2;
    file = arguments[2];
    agent_path = arguments[3];
    AddVectoredExceptionHandler(0, own_handler);
    if (!strcmp(arguments[1], "storm")) {
        LPTHREAD_START_ROUTINE work[] = {raises, raises, loads, begins};
        raiser = CreateThread(NULL, 0, raises, NULL, 0, NULL);
        for (int n = 1; n < 4; n++)
            CreateThread(NULL, 0, work[n], NULL, 0, NULL);
    }
    printf("pid %lu\nready\n", GetCurrentProcessId());
    fflush(stdout);
    for (int number = 1;; number++) {
        char letter;
        HMODULE module;
        while (!(letter = command()))
            Sleep(5);
        switch (letter) {
        case 'r':
            report(number);
            break;
        case 'l':
            module = LoadLibraryA(agent_path);
            printf("%d l %d end\n", number, module != NULL);
            break;
        case 'f':
            printf("%d f %d end\n", number, FreeLibrary(agent()));
            break;
        case 'c':
            capture(number);
            break;
        case 's':
            printf("%d s %d end\n", number, suspend_in_agent());
            break;
        case 'g':
            printf("%d g %d end\n", number, ResumeThread(raiser) == 1);
            break;
        default:
            over = 1;
            Sleep(100);
            printf("%d q wrong %ld end\n", number, wrong);
            fflush(stdout);
            return wrong ? 3 : 0;
        }
        fflush(stdout);
    }
}
