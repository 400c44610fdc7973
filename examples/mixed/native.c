/* native.dll: the native frames between the managed frames of mixed.cs. */
#include <windows.h>

#define EXPORT __declspec(dllexport) __attribute__((noinline))

typedef int (WINAPI *callback_t)(int); /* WINAPI, as DllImport and delegates mean it: __stdcall on x86, nothing elsewhere */

/* Calls back. The array gives the function a stack frame. */
EXPORT int WINAPI native_call(callback_t callback, int depth)
{
    volatile char frame[64];
    frame[0] = (char)depth;
    int result = callback(depth);
    return result + frame[0];
}

EXPORT int WINAPI native_work(int rounds)
{
    volatile int sum = 0;
    for (int i = 0; i < rounds; i++)
        sum = sum * 31 + i;
    return sum;
}

EXPORT void WINAPI native_wait(int milliseconds) { Sleep((DWORD)milliseconds); }

EXPORT int WINAPI native_pid(void) { return (int)GetCurrentProcessId(); }

/* Loads a DLL and keeps it loaded. */
EXPORT int WINAPI native_load(const wchar_t *path) { return LoadLibraryW(path) != NULL; }

BOOL WINAPI DllMainCRTStartup(HINSTANCE instance, DWORD reason, void *reserved)
{
    (void)instance;
    (void)reason;
    (void)reserved;
    return TRUE;
}
