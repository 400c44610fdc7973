/* Wine 8 lacks bcryptprimitives.dll, from which Rust's std takes its random numbers. This replaces it, in our own prefixes only. */
#include <windows.h>
#include <ntsecapi.h> /* RtlGenRandom */

__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE data, SIZE_T length) {
  while (length > 0) {
    ULONG part = length > 0x10000000 ? 0x10000000 : (ULONG)length;
    if (!RtlGenRandom(data, part))
      return FALSE;
    data += part;
    length -= part;
  }
  return TRUE;
}
