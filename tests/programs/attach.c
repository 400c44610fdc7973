/* A program with a DLL of attach_dll.c. It says whether it is being recorded as it begins, and ends with what the DLL has counted. */
#include <stdio.h>
#include <windows.h>

__declspec(dllimport) extern int attached;

int main(void) {
  printf("recorded %d\n", GetModuleHandleW(sizeof(void *) == 8 ? L"agent.dll" : L"agent32.dll") != NULL);
  fflush(stdout);
  Sleep(500);
  return attached;
}
