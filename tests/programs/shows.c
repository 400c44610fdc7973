// In the place of stk.exe: writes its arguments, a line each, to the file shown.txt beside itself..
#include <stdio.h>
#include <string.h>
#include <windows.h>

int main(int count, char **arguments) {
    char path[MAX_PATH + 16];
    DWORD length = GetModuleFileNameA(NULL, path, MAX_PATH);
    char *name = length ? strrchr(path, '\\') : NULL;
    if (!name) return 100;
    strcpy(name + 1, "shown.txt");
    FILE *shown = fopen(path, "w");
    if (!shown) return 101;
    for (int n = 1; n < count; n++) fprintf(shown, "%s\n", arguments[n]);
    return fclose(shown) ? 102 : 0;
}
