/*
 * A program that works until it is killed, and leaves a mark by the agent that an inject has loaded
 * into it whenever the file that its argument names appears; it deletes the file then.
 *
 *   marker.exe FILE
 */
#include <windows.h>
#include <stdio.h>

typedef UINT32(WINAPI *mark_function)(const char *text);

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
        if (!agent || GetFileAttributesA(argv[1]) == INVALID_FILE_ATTRIBUTES)
            continue;
        mark_function mark = (mark_function)(void *)GetProcAddress(agent, "stk_mark");
        DeleteFileA(argv[1]);
        printf("marked %u\n", mark ? mark("the moment") : 99u);
        fflush(stdout);
    }
}
