// The parts of a C runtime for arm64 that busy and its plug-ins need and that no DLL has. For
// build.sh --arm64, where there is no mingw library.
#include <stdarg.h>
#include <stdio.h>
#undef printf

// The universal C runtime exports printf only in parts.
int printf(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  int written = __stdio_common_vfprintf(0, __acrt_iob_func(1), format, 0, arguments);
  va_end(arguments);
  return written;
}

// The entry point of a DLL that does nothing when it is loaded.
int DllMainCRTStartup(void *module, unsigned long reason, void *reserved) {
  (void)module, (void)reason, (void)reserved;
  return 1;
}
