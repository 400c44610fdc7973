/*
 * Runs code in an image that the loader does not know: a section of the file unlisted.dll beside
 * this program. The program maps it by the loader's system calls, but without the loader, like
 * programs that hide a DLL, and like the system with hot-patch images.
 *
 *   unlisted.exe SECONDS     prints `unlisted BASE ENTRY` (hex), calls the image's entry for
 *                            SECONDS, unmaps it, runs for another second
 */
#include <windows.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef SEC_IMAGE
#define SEC_IMAGE 0x01000000
#endif

typedef LONG(NTAPI *create_section_fn)(HANDLE *, ACCESS_MASK, void *, LARGE_INTEGER *, ULONG, ULONG, HANDLE);
typedef LONG(NTAPI *map_fn)(HANDLE, HANDLE, void **, ULONG_PTR, SIZE_T, LARGE_INTEGER *, SIZE_T *, ULONG, ULONG, ULONG);
typedef LONG(NTAPI *unmap_fn)(HANDLE, void *);
typedef int (*round_fn)(int (*back)(int), int rounds);

static volatile LONG work;

/* The image calls this, so that stacks lead through the image. */
__declspec(dllexport) __attribute__((noinline)) int back(int n)
{
    for (int i = 0; i < 20000; i++)
        work += i * n;
    return n;
}

static FARPROC ntdll(const char *name)
{
    return GetProcAddress(GetModuleHandleA("ntdll.dll"), name);
}

int main(int argc, char **argv)
{
    char path[MAX_PATH];
    if (argc < 2 || !GetModuleFileNameA(NULL, path, sizeof path - 8))
        return 2;
    strcpy(strrchr(path, '.'), ".dll");
    create_section_fn create_section = (create_section_fn)(void *)ntdll("NtCreateSection");
    map_fn map = (map_fn)(void *)ntdll("NtMapViewOfSection");
    unmap_fn unmap = (unmap_fn)(void *)ntdll("NtUnmapViewOfSection");
    HANDLE file = CreateFileA(path, GENERIC_READ | GENERIC_EXECUTE, FILE_SHARE_READ, NULL, OPEN_EXISTING, 0, NULL), section = NULL;
    BYTE *base = NULL;
    SIZE_T size = 0;
    LONG status = create_section(&section, SECTION_MAP_READ | SECTION_MAP_EXECUTE | SECTION_QUERY, NULL, NULL, PAGE_EXECUTE_READ, SEC_IMAGE, file);
    if (status >= 0)
        status = map(section, GetCurrentProcess(), (void **)&base, 0, 0, NULL, &size, 1 /* ViewShare */, 0, PAGE_EXECUTE_READ);
    if (status < 0) {
        printf("not mapped: %lx\n", status);
        return 3;
    }
    CloseHandle(section);
    CloseHandle(file);
    IMAGE_NT_HEADERS *headers = (IMAGE_NT_HEADERS *)(base + ((IMAGE_DOS_HEADER *)base)->e_lfanew);
    DWORD entry = headers->OptionalHeader.AddressOfEntryPoint;
    printf("unlisted %llx %lx\n", (unsigned long long)(ULONG_PTR)base, entry);
    fflush(stdout);
    DWORD end = GetTickCount() + 1000 * atoi(argv[1]);
    while ((int)(end - GetTickCount()) > 0)
        ((round_fn)(void *)(base + entry))(back, 100);
    printf("unmapped %lx\n", unmap(GetCurrentProcess(), base));
    fflush(stdout);
    end = GetTickCount() + 1000;
    while ((int)(end - GetTickCount()) > 0)
        back(1);
    return 7;
}
