/*
 * A program with functions of ntdll hooked before a recorder comes, as security software hooks
 * them: their first bytes jump to code that counts the call, then continues with the function or
 * refuses.
 *
 *   hooked.exe FUNCTION FILE [HOW VALUE]
 *
 * FUNCTION: the one whose hook does something else than to call on, or "none". What it does:
 *   (nothing)     refuses each call with STATUS_ACCESS_DENIED
 *   every N       refuses each call but each Nth so
 *   delay MS      waits before each call
 *   later STATUS  refuses each call with this status (hexadecimal) from when FILE.fault exists
 * Prints `pid N` and `ready`, then works on two threads until FILE exists, takes the hooks away,
 * prints the calls of each function and whether both threads continued, and `end`, and lives until it
 * is ended. x64 only.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <windows.h>

/* mov r10, rcx; mov eax, number; test byte [0x7ffe0308], 1: no byte depends on where it lies. */
#define STUB 16
#define HOOKS 5

static const char *names[HOOKS] = {"NtSuspendThread", "NtGetContextThread", "NtQueryInformationThread", "NtResumeThread", "NtWriteFile"};
static unsigned char *functions[HOOKS], kept[HOOKS][STUB];
static volatile LONG64 calls[HOOKS];
static volatile LONG64 work, turns;
static const char *how = "";
static int value;
/* The status with which calls are refused now; 0: they are not. */
static volatile LONG refusal;

/* What a hook that does something else than to call on returns; 0: it calls on. */
static LONG special(LONG64 call)
{
    if (!strcmp(how, "every"))
        return call % value ? refusal : 0;
    if (!strcmp(how, "delay"))
        Sleep(value);
    return refusal;
}

static unsigned char *put(unsigned char *at, const void *bytes, size_t len)
{
    memcpy(at, bytes, len);
    return at + len;
}

/* jmp [rip+0]; the address follows. */
static unsigned char *put_jump(unsigned char *at, const void *to)
{
    at = put(at, "\xff\x25\0\0\0\0", 6);
    return put(at, &to, 8);
}

static void write_over(unsigned char *function, const unsigned char *bytes)
{
    DWORD before;
    VirtualProtect(function, STUB, PAGE_EXECUTE_READWRITE, &before);
    memcpy(function, bytes, STUB);
    VirtualProtect(function, STUB, before, &before);
    FlushInstructionCache(GetCurrentProcess(), function, STUB);
}

static int hook(int number, unsigned char *code, int is_special)
{
    static const unsigned char begin[] = {0x4c, 0x8b, 0xd1, 0xb8}, test[] = {0xf6, 0x04, 0x25, 0x08, 0x03, 0xfe, 0x7f, 0x01};
    /* Calls special(the number of this call), and keeps the arguments that are in registers. */
    static const unsigned char asks[] = {
        0x51, 0x52, 0x41, 0x50, 0x41, 0x51, /* push rcx, rdx, r8, r9 */
        0x48, 0x83, 0xec, 0x28,             /* sub rsp, 0x28 */
        0x49, 0x8b, 0x0b,                   /* mov rcx, [r11] */
        0xff, 0xd0,                         /* call rax */
        0x48, 0x83, 0xc4, 0x28,             /* add rsp, 0x28 */
        0x41, 0x59, 0x41, 0x58, 0x5a, 0x59, /* pop r9, r8, rdx, rcx */
        0x85, 0xc0, 0x74, 0x01, 0xc3,       /* test eax, eax; jz behind the ret; ret */
    };
    unsigned char jump[STUB];
    const volatile void *counter = &calls[number];
    LONG (*decides)(LONG64) = special;
    unsigned char *function = (unsigned char *)(void *)GetProcAddress(GetModuleHandleA("ntdll.dll"), names[number]);

    if (!function || memcmp(function, begin, sizeof begin) || memcmp(function + 8, test, sizeof test))
        return 0;
    functions[number] = function;
    memcpy(kept[number], function, STUB);
    memset(jump, 0x90, sizeof jump);
    put_jump(jump, code);
    code = put(code, "\x49\xbb", 2); /* mov r11, counter; lock inc qword [r11] */
    code = put(code, &counter, 8);
    code = put(code, "\xf0\x49\xff\x03", 4);
    if (is_special) {
        code = put(code, "\x48\xb8", 2); /* mov rax, special */
        code = put(code, &decides, 8);
        code = put(code, asks, sizeof asks);
    }
    code = put(code, function, STUB);
    put_jump(code, function + STUB);
    write_over(function, jump);
    return 1;
}

static DWORD WINAPI worker(void *unused)
{
    while (!unused)
        InterlockedIncrement64(&work);
    return 0;
}

/* Works until `file` exists. Calls are refused with `status` from when `fault` exists. */
static void work_until(const char *file, const char *fault, LONG status)
{
    while (GetFileAttributesA(file) == INVALID_FILE_ATTRIBUTES) {
        if (status && !refusal && GetFileAttributesA(fault) != INVALID_FILE_ATTRIBUTES)
            refusal = status;
        turns++;
        Sleep(5);
    }
}

int main(int argc, char **argv)
{
    unsigned char *code = VirtualAlloc(NULL, HOOKS * 128, MEM_COMMIT | MEM_RESERVE, PAGE_EXECUTE_READWRITE);
    char fault[MAX_PATH + 8];
    LONG later = 0;
    LONG64 from;

    if (argc < 3 || !code)
        return 2;
    if (argc > 4) {
        how = argv[3];
        value = atoi(argv[4]);
        if (!strcmp(how, "later"))
            later = (LONG)strtoul(argv[4], NULL, 16);
    }
    snprintf(fault, sizeof fault, "%s.fault", argv[2]);
    if (!later && strcmp(how, "delay"))
        refusal = (LONG)0xc0000022; /* STATUS_ACCESS_DENIED */
    CreateThread(NULL, 0, worker, NULL, 0, NULL);
    printf("pid %lu\n", GetCurrentProcessId());
    fflush(stdout);
    /* NtWriteFile last of all: after the last line that is printed with hooks in place. */
    for (int number = 0; number < HOOKS - 1; number++) {
        if (!hook(number, code + number * 128, !strcmp(argv[1], names[number]))) {
            printf("%s does not begin as expected\n", names[number]);
            return 3;
        }
    }
    printf("ready\n");
    fflush(stdout);
    if (!hook(HOOKS - 1, code + (HOOKS - 1) * 128, !strcmp(argv[1], names[HOOKS - 1]))) {
        printf("%s does not begin as expected\n", names[HOOKS - 1]);
        return 3;
    }
    work_until(argv[2], fault, later);
    for (int number = 0; number < HOOKS; number++)
        write_over(functions[number], kept[number]);
    from = work;
    Sleep(50);
    for (int tries = 0; work == from && tries < 1000; tries++)
        Sleep(10);
    for (int number = 0; number < HOOKS; number++)
        printf("%s %lld\n", names[number], (long long)calls[number]);
    printf("turns %lld\n", (long long)turns);
    printf(work == from ? "the worker stands still\nend\n" : "both continued\nend\n");
    fflush(stdout);
    Sleep(INFINITE);
}
