/* What zstd uses of a C library's header, for MSVC targets without Microsoft's SDK. The agent defines these functions. */
#pragma once
#include <stddef.h>
void *memcpy(void *to, const void *from, size_t len);
void *memmove(void *to, const void *from, size_t len);
void *memset(void *to, int byte, size_t len);
int memcmp(const void *one, const void *other, size_t len);
