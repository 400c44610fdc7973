/* A type that clang's headers for intrinsics name; nothing uses it. */
#pragma once
typedef int jmp_buf[1];
