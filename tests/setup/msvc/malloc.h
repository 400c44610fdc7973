/* Included by clang's headers for intrinsics; see stdlib.h. */
#pragma once
#include <stdlib.h>
void *_aligned_malloc(size_t len, size_t alignment);
void _aligned_free(void *memory);
