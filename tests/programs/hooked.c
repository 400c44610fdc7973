/*
 * A program with functions of ntdll hooked before a recorder comes, as security software hooks
 * them: their first bytes jump to code that counts the call, then goes on with the function or
 * refuses.
 *
 *   hooked.exe REFUSED FILE
 *
 * REFUSED: the function whose hook refuses with STATUS_ACCESS_DENIED, or "none". Prints `pid N` and
 * `ready`, then works on two threads until FILE exists, takes the hooks away, prints the calls of
 * each function and whether both threads went on, and `end`, and lives until it is ended. x64 only.
 */
#include <stdio.h>
#include <string.h>
#include <windows.h>

/* mov r10, rcx; mov eax, number; test byte [0x7ffe0308], 1: no byte depends on where it lies. */
#define STUB 16
#define HOOKS 4

static const char *names[HOOKS] = {"NtSuspendThread", "NtGetContextThread", "NtQueryInformationThread", "NtWriteFile"};
static unsigned char *functions[HOOKS], kept[HOOKS][STUB];
static volatile LONG64 calls[HOOKS];
static volatile LONG64 work;

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

static int hook(int number, unsigned char *code, int refuses)
{
    static const unsigned char begin[] = {0x4c, 0x8b, 0xd1, 0xb8}, test[] = {0xf6, 0x04, 0x25, 0x08, 0x03, 0xfe, 0x7f, 0x01};
    unsigned char jump[STUB];
    const volatile void *counter = &calls[number];
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
    if (refuses) {
        put(code, "\xb8\x22\0\0\xc0\xc3", 6); /* mov eax, STATUS_ACCESS_DENIED; ret */
    } else {
        code = put(code, function, STUB);
        put_jump(code, function + STUB);
    }
    write_over(function, jump);
    return 1;
}

static DWORD WINAPI worker(void *unused)
{
    while (!unused)
        InterlockedIncrement64(&work);
    return 0;
}

int main(int argc, char **argv)
{
    unsigned char *code = VirtualAlloc(NULL, HOOKS * 128, MEM_COMMIT | MEM_RESERVE, PAGE_EXECUTE_READWRITE);
    LONG64 from;

    if (argc < 3 || !code)
        return 2;
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
    while (GetFileAttributesA(argv[2]) == INVALID_FILE_ATTRIBUTES)
        Sleep(5);
    for (int number = 0; number < HOOKS; number++)
        write_over(functions[number], kept[number]);
    from = work;
    Sleep(50);
    for (int tries = 0; work == from && tries < 1000; tries++)
        Sleep(10);
    for (int number = 0; number < HOOKS; number++)
        printf("%s %lld\n", names[number], (long long)calls[number]);
    printf(work == from ? "the worker stands still\nend\n" : "both went on\nend\n");
    fflush(stdout);
    Sleep(INFINITE);
}
