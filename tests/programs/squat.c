/*
 * Makes the diagnostics pipe of another process in its runtime's place, as any process may.
 *
 *   squat.exe PID
 *
 * Prints `pid N` and `ready`, then for every client that comes `a client sent N bytes`, until it is
 * ended.
 */
#include <stdio.h>
#include <windows.h>

int main(int argc, char **argv)
{
    char name[64], bytes[256];
    snprintf(name, sizeof name, "\\\\.\\pipe\\dotnet-diagnostic-%s", argc > 1 ? argv[1] : "0");
    HANDLE pipe = CreateNamedPipeA(name, PIPE_ACCESS_DUPLEX, PIPE_TYPE_BYTE | PIPE_WAIT, 1, 4096, 4096, 0, NULL);
    if (pipe == INVALID_HANDLE_VALUE) {
        printf("no pipe: error %lu\n", GetLastError());
        return 1;
    }
    printf("pid %lu\nready\n", GetCurrentProcessId());
    fflush(stdout);
    for (;;) {
        DWORD read = 0, sent = 0;
        ConnectNamedPipe(pipe, NULL);
        while (ReadFile(pipe, bytes, sizeof bytes, &read, NULL) && read)
            sent += read;
        printf("a client sent %lu bytes\n", sent);
        fflush(stdout);
        DisconnectNamedPipe(pipe);
    }
}
