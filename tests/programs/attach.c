/*
 * A program with a DLL of attach_dll.c. It says whether it is being recorded as it begins, and ends
 * with what the DLL has counted. With MAY_BE_LATE it gives a recorder that comes late 20 seconds:
 * a loaded machine needs them.
 */
#include <stdio.h>
#include <windows.h>

#ifndef MAY_BE_LATE
#define MAY_BE_LATE 0
#endif

__declspec(dllimport) extern int attached;

static int is_recorded(void) {
  return GetModuleHandleW(sizeof(void *) == 8 ? L"agent.dll" : L"agent32.dll") != NULL;
}

int main(void) {
  int at_once = is_recorded();
  printf("recorded %d\n", at_once);
  fflush(stdout);
  for (int tries = 0; MAY_BE_LATE && tries < 2000 && !is_recorded(); tries++)
    Sleep(10);
  Sleep(at_once ? 500 : 1000);
  return attached;
}
