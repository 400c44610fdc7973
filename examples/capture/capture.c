/*
 * Records itself through agent.dll, by the functions of stk_agent.h alone:
 *
 *   capture.exe AGENT.DLL TRACE.stk [--pointers | --trigger-api | --exit]
 *
 * Prints `name value` lines, which the test reads. Captures have the tags 1 (stk_capture), 2 (an
 * exception's context), 3 (a function that keeps secrets in its locals), 4 (while version.dll is
 * loaded), 5 (--exit: the process ends right after it, while it is recorded).
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <windows.h>

#include "stk_agent.h"

#define NOINLINE __attribute__((noinline))

typedef uint32_t(STK_AGENT_CALL *start_function)(stk_agent_config *);
typedef uint32_t(STK_AGENT_CALL *stop_function)(void *);
typedef uint32_t(STK_AGENT_CALL *capture_function)(uint64_t);
typedef uint32_t(STK_AGENT_CALL *context_function)(const CONTEXT *, uint64_t);
typedef uint32_t(STK_AGENT_CALL *backtrace_function)(const CONTEXT *, void **, uint32_t, uint32_t);
typedef uint32_t(STK_AGENT_CALL *text_function)(const char *);

static start_function start;
static stop_function stop;
static capture_function capture;
static context_function capture_context;
static backtrace_function backtrace;
static text_function mark, thread_name;
static uint32_t before_start = 99, thread_named = 99, before_frames;
static void *exception_pcs[64];
static uint32_t exception_frames, exception_result = 99;
static volatile uint64_t kept;
static void *volatile seen; /* what it points to must be in memory */

static FARPROC find(HMODULE agent, const char *name) {
    FARPROC found = GetProcAddress(agent, name);
    if (!found) {
        printf("missing %s\n", name);
        ExitProcess(2);
    }
    return found;
}

/* Runs before main: a static initialiser. */
__attribute__((constructor)) static void initialise(void) {
    wchar_t *line = GetCommandLineW(), path[MAX_PATH];
    int count = 0;
    /* The second word of the command line; paths of this example have no spaces. */
    wchar_t *word = wcschr(line + 1, line[0] == '"' ? '"' : ' ');
    if (!word) return;
    while (*word == '"' || *word == ' ') word++;
    while (word[count] && word[count] != ' ' && word[count] != '"' && count < MAX_PATH - 1) {
        path[count] = word[count];
        count++;
    }
    path[count] = 0;
    HMODULE agent = LoadLibraryW(path);
    if (!agent) return;
    start = (start_function)(void *)find(agent, "stk_agent_start");
    stop = (stop_function)(void *)find(agent, "stk_agent_stop");
    capture = (capture_function)(void *)find(agent, "stk_capture");
    capture_context = (context_function)(void *)find(agent, "stk_capture_context");
    backtrace = (backtrace_function)(void *)find(agent, "stk_backtrace");
    mark = (text_function)(void *)find(agent, "stk_mark");
    thread_name = (text_function)(void *)find(agent, "stk_thread_name");
    void *pcs[8];
    before_start = capture(1);
    before_frames = backtrace(NULL, pcs, 8, 0);
    thread_named = thread_name("main thread ä");
}

NOINLINE static uint32_t innermost(void **pcs, uint32_t max, uint32_t skip) {
    uint32_t found = backtrace(NULL, pcs, max, skip);
    kept++;
    return found;
}

NOINLINE static uint32_t caller(void **pcs, uint32_t max, uint32_t skip) {
    uint32_t found = innermost(pcs, max, skip);
    kept++;
    return found;
}

NOINLINE static uint32_t capture_here(uint64_t tag) {
    uint32_t result = capture(tag);
    kept++;
    return result;
}

/* Keeps secrets of every kind in locals while it captures itself. */
NOINLINE static uint32_t keep_secrets(const char *text, const wchar_t *wide, uint64_t number, double real) {
    char local_text[64];
    wchar_t local_wide[32];
    volatile uint64_t numbers[4] = {number, number ^ 1, number + 2, number * 3};
    volatile uint32_t small[2] = {(uint32_t)number, 7};
    volatile double reals[2] = {real, real * 2};
    volatile float half = (float)real;
    strcpy(local_text, text);
    wcscpy(local_wide, wide);
    seen = local_text;
    seen = local_wide;
    seen = (void *)&half;
    /* The compiler may keep these in registers across the call. */
    uint64_t a = numbers[0], b = numbers[1], c = numbers[2];
    uint32_t result = capture(3);
    kept += a + b + c + small[0] + (uint64_t)reals[1] + (uint64_t)half + local_text[3] + local_wide[3] + numbers[3];
    return result;
}

NOINLINE static void raise_here(void) {
    RaiseException(0xE0001234, 0, 0, NULL);
    kept++;
}

static LONG CALLBACK on_exception(EXCEPTION_POINTERS *info) {
    if (info->ExceptionRecord->ExceptionCode != 0xE0001234) return EXCEPTION_CONTINUE_SEARCH;
    exception_result = capture_context(info->ContextRecord, 2);
    exception_frames = backtrace(info->ContextRecord, exception_pcs, 64, 0);
    return EXCEPTION_CONTINUE_EXECUTION;
}

/* Waits until the recorder knows this thread and the modules, captures it and ends the process. */
NOINLINE static void exit_here(const volatile stk_agent_state *state) {
    while (state->samples == 0 || state->modules == 0) Sleep(1);
    Sleep(300); /* the modules' tables are read */
    printf("last %u\n", capture(5));
    fflush(stdout);
    ExitProcess(0);
}

static int is_within(void *pc, void *function) {
    return (char *)pc > (char *)function && (char *)pc < (char *)function + 512;
}

/* Microseconds of one call with a stack of 8 KB. */
NOINLINE static void measure(void) {
    volatile char room[8192];
    LARGE_INTEGER from, to, frequency;
    void *pcs[64];
    int taken = 0;
    memset((void *)room, 1, sizeof room);
    QueryPerformanceFrequency(&frequency);
    double best = 1e9;
    for (int n = 0; n < 100; n++) {
        QueryPerformanceCounter(&from);
        uint32_t result = capture(9);
        QueryPerformanceCounter(&to);
        double us = (double)(to.QuadPart - from.QuadPart) * 1e6 / (double)frequency.QuadPart;
        if (result == 0) {
            taken++;
            if (us < best) best = us;
        } else {
            Sleep(1);
        }
    }
    printf("capture_us %.2f\ncaptures_taken %d\n", best, taken);
    QueryPerformanceCounter(&from);
    uint32_t frames = 0;
    for (int n = 0; n < 1000; n++) frames = backtrace(NULL, pcs, 64, 0);
    QueryPerformanceCounter(&to);
    printf("backtrace_us %.2f\n", (double)(to.QuadPart - from.QuadPart) * 1e3 / (double)frequency.QuadPart);
    printf("backtrace_frames %u\n", frames + room[5] - 1);
}

int main(int count, char **arguments) {
    if (count < 3 || !start) {
        puts("usage: capture.exe AGENT.DLL TRACE.stk [--pointers | --trigger-api | --exit]");
        return 2;
    }
    stk_agent_config config;
    memset(&config, 0, sizeof config);
    HANDLE output = CreateFileA(arguments[2], GENERIC_WRITE, FILE_SHARE_READ, NULL, CREATE_ALWAYS, 0, NULL);
    config.size = sizeof config;
    config.version = STK_CONTROL_VERSION;
    config.output = (uint64_t)(uintptr_t)output;
    config.rate_mhz = 100000;
    config.flags = STK_FLAG_UNGUARDED | STK_FLAG_NO_COMMAND_LINE;
    if (count > 3 && !strcmp(arguments[3], "--pointers")) config.flags |= STK_FLAG_POINTERS_ONLY;
    /* As `inject --trigger api`: each capture leaves a mark, too. */
    static const char options[] = "trigger\0api";
    if (count > 3 && !strcmp(arguments[3], "--trigger-api")) {
        config.flags |= STK_FLAG_OPTIONS;
        config.options = (uint64_t)(uintptr_t)options;
        config.options_len = sizeof options;
    }
    config.embed = STK_EMBED_UNWIND;
    config.uuid[0] = 1;
    printf("before_start %u\nbefore_frames %u\nthread_named %u\n", before_start, before_frames, thread_named);
    printf("mark_before %u\n", mark("too early"));
    printf("start %u\n", start(&config));

    if (count > 3 && !strcmp(arguments[3], "--exit")) exit_here((stk_agent_state *)(uintptr_t)config.status_address);

    void *pcs[64];
    uint32_t frames = caller(pcs, 64, 0);
    printf("frames %u\n", frames);
    printf("innermost_first %d\n", is_within(pcs[0], (void *)innermost) && is_within(pcs[1], (void *)caller));
    frames = caller(pcs, 64, 1);
    printf("skipped_one %d\n", is_within(pcs[0], (void *)caller) && frames > 1);
    printf("at_most_two %u\n", caller(pcs, 2, 0));

    printf("mark %u\n", mark("half way: ä"));
    printf("no_mark %u\nbad_mark %u\n", mark(NULL), mark("\xff\xfe"));
    printf("capture %u\n", capture_here(1));
    AddVectoredExceptionHandler(1, on_exception);
    raise_here();
    printf("exception %u\nexception_frames %u\n", exception_result, exception_frames);
    int raised = 0;
    for (uint32_t n = 0; n < exception_frames; n++) raised |= is_within(exception_pcs[n], (void *)raise_here);
    printf("exception_in_raiser %d\n", raised);
    printf("no_context %u\n", capture_context(NULL, 2));
    printf("secrets %u\n", keep_secrets("correct horse battery staple", L"Pa$$w\xf6rd of Alice", 0x5ec2e7d15c0de42fULL, 1234.56789));
    Sleep(200); /* loads are recorded by now */
    HMODULE version = LoadLibraryA("version.dll"); /* comes and goes while it is recorded */
    printf("loaded %u\n", version ? capture_here(4) : 99);
    Sleep(200);
    FreeLibrary(version);
    Sleep(300); /* the recorder finds the thread, and stores what waits */
    measure();
    Sleep(700); /* thread names are read twice a second */
    printf("stop %u\n", stop(NULL));
    printf("after_stop %u\n", capture(1));
    fflush(stdout);
    return 0;
}
