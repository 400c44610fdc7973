// Threads whose stack pointer lies outside of the bounds in their environment block, for
// tests/tests/e2e/foreign.rs:
//
//   foreign    runs on separate memory, like a goroutine of Go; its bounds stay those of its stack
//   lying      has written StackBase = ~0 and StackLimit = 0, as some runtimes do to silence checks
//   fiber      runs in a fiber: other bounds, and true ones
//   growing    recurses deeply and returns, so that its StackLimit changes
//   untouched  has its stack pointer below StackLimit, as between `sub rsp` and the first write
//
// foreign_stack.exe SECONDS: prints "NAME TID START END" of each thread's stack (foreign: of the
// memory; untouched: END and LIMIT), runs SECONDS, ends with exit code 7.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <windows.h>

#define FOREIGN_BYTES (256 << 10)
#define MARKER 0x5354414b4d41524bULL

static ULONGLONG end_at;
static HANDLE printed;

static uintptr_t *stack_base(void) { return (uintptr_t *)((char *)NtCurrentTeb() + 8); }
static uintptr_t *stack_limit(void) { return (uintptr_t *)((char *)NtCurrentTeb() + 16); }

static void print_stack(const char *name, uintptr_t start, uintptr_t end) {
    WaitForSingleObject(printed, INFINITE);
    printf("%s %lu %llx %llx\n", name, GetCurrentThreadId(), (unsigned long long)start, (unsigned long long)end);
    fflush(stdout);
    ReleaseMutex(printed);
}

// GetTickCount64 reads shared memory, so no system call runs on the foreign stack.
__attribute__((noinline)) void spin(void) {
    while (GetTickCount64() < end_at)
        for (volatile int i = 0; i < 1000; i++) {}
}

// Runs `function` on the stack that ends at `top`.
void run_on(void *top, void (*function)(void));
__asm__(".globl run_on\n"
        ".seh_proc run_on\n"
        "run_on:\n"
        "push %rbp\n"
        ".seh_pushreg %rbp\n"
        "mov %rsp, %rbp\n"
        ".seh_setframe %rbp, 0\n"
        ".seh_endprologue\n"
        "lea -32(%rcx), %rsp\n"
        "call *%rdx\n"
        "mov %rbp, %rsp\n"
        "pop %rbp\n"
        "ret\n"
        ".seh_endproc\n");

// Counts `rounds` down with the stack pointer at `sp`; nothing is written there.
static void wait_at(uintptr_t sp, uint64_t rounds) {
    __asm__ volatile("mov %%rsp, %%rbx\n"
                     "mov %0, %%rsp\n"
                     "1: dec %1\n"
                     "jnz 1b\n"
                     "mov %%rbx, %%rsp\n"
                     : "+r"(sp), "+r"(rounds)
                     :
                     : "rbx", "cc", "memory");
}

static DWORD WINAPI foreign(void *unused) {
    (void)unused;
    char *memory = VirtualAlloc(NULL, FOREIGN_BYTES, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
    char *top = memory + FOREIGN_BYTES - 4096;
    *(uint64_t *)top = MARKER;
    print_stack("foreign", (uintptr_t)memory, (uintptr_t)memory + FOREIGN_BYTES);
    run_on(top, spin);
    return 0;
}

static DWORD WINAPI lying(void *unused) {
    (void)unused;
    uintptr_t base = *stack_base(), limit = *stack_limit();
    print_stack("lying", limit, base);
    *stack_base() = ~(uintptr_t)7;
    *stack_limit() = 0;
    spin();
    *stack_base() = base;
    *stack_limit() = limit;
    return 0;
}

static void *main_fiber;

static void WINAPI in_fiber(void *unused) {
    (void)unused;
    print_stack("fiber", *stack_limit(), *stack_base());
    spin();
    SwitchToFiber(main_fiber);
}

static DWORD WINAPI fiber(void *unused) {
    (void)unused;
    main_fiber = ConvertThreadToFiber(NULL);
    SwitchToFiber(CreateFiber(256 << 10, in_fiber, NULL));
    return 0;
}

__attribute__((noinline)) static int deeper(int depth) {
    volatile char room[4096];
    room[0] = (char)depth;
    for (volatile int i = 0; i < 20000; i++) {}
    return depth == 0 ? room[0] : deeper(depth - 1) + room[0];
}

static DWORD WINAPI growing(void *unused) {
    (void)unused;
    print_stack("growing", *stack_limit(), *stack_base());
    for (int depth = 1; GetTickCount64() < end_at; depth = depth % 60 + 1) deeper(depth);
    return 0;
}

static DWORD WINAPI untouched(void *unused) {
    (void)unused;
    print_stack("untouched", *stack_limit(), *stack_base());
    while (GetTickCount64() < end_at) wait_at(*stack_limit() - 0x400, 50 * 1000 * 1000);
    return 0;
}

int main(int argc, char **argv) {
    LPTHREAD_START_ROUTINE functions[] = {foreign, lying, fiber, growing, untouched};
    HANDLE threads[5];
    printed = CreateMutexA(NULL, FALSE, NULL);
    end_at = GetTickCount64() + 1000 * (argc > 1 ? atoi(argv[1]) : 5);
    for (int i = 0; i < 5; i++) threads[i] = CreateThread(NULL, 0, functions[i], NULL, 0, NULL);
    WaitForMultipleObjects(5, threads, TRUE, INFINITE);
    return 7;
}
