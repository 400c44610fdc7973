/* What zstd uses of a C library's header, for MSVC targets without Microsoft's SDK. The agent refuses each call. */
#pragma once
#include <stddef.h>
void *malloc(size_t len);
void *calloc(size_t count, size_t len);
void free(void *memory);
/* Instructions to clang. */
unsigned long _byteswap_ulong(unsigned long word);
unsigned long long _byteswap_uint64(unsigned long long word);
