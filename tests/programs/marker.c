/*
 * A program that works until it is killed. Whenever the file that its first argument names appears,
 * it deletes that file and leaves a mark by the agent that an inject has loaded into it, or, with a
 * second argument, captures its own stack with that number as tag. It prints `marked N` or
 * `captured N`, N being what the agent answered (99: there is no such function).
 *
 *   marker.exe FILE [TAG]
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <windows.h>

typedef uint32_t(WINAPI *mark_function)(const char *text);
typedef uint32_t(WINAPI *capture_function)(uint64_t tag);

__attribute__((noinline)) static void act(HMODULE agent, const char *tag)
{
    mark_function mark = (mark_function)(void *)GetProcAddress(agent, "stk_mark");
    capture_function capture = (capture_function)(void *)GetProcAddress(agent, "stk_capture");
    if (tag)
        printf("captured %u\n", capture ? capture(strtoull(tag, NULL, 10)) : 99u);
    else
        printf("marked %u\n", mark ? mark("the moment") : 99u);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    volatile unsigned work = 0;
    if (argc < 2)
        return 2;
    printf("pid %lu\nready\n", GetCurrentProcessId());
    fflush(stdout);
    for (;;) {
        for (int i = 0; i < 100000; i++)
            work += i;
        HMODULE agent = GetModuleHandleA("agent.dll");
        if (!agent)
            agent = GetModuleHandleA("agent32.dll");
        if (!agent || GetFileAttributesA(argv[1]) == INVALID_FILE_ATTRIBUTES)
            continue;
        DeleteFileA(argv[1]);
        act(agent, argc > 2 ? argv[2] : NULL);
    }
}
