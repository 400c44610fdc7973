#!/usr/bin/env bash
# Builds capture.exe, with a PDB, on a Linux machine: clang-19 and lld-19 over the mingw-w64 headers.
#
#   examples/capture/build.sh [FOLDER]         default: target/examples/capture
#   examples/capture/build.sh --x86 [FOLDER]   32-bit; default: target/examples/capture32
#   examples/capture/build.sh --arm64 [FOLDER] arm64, by zig (STK_ZIG), which brings the C runtime; default: target/examples/capture-arm64
#
# On Windows: cl /Zi /I agent\include examples\capture\capture.c
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
target=x86_64-w64-mingw32 folder=capture more=()
if [ "${1:-}" = --x86 ]; then
  # stk_backtrace follows frame pointers there.
  target=i686-w64-mingw32 folder=capture32 more=(-fno-omit-frame-pointer)
  shift
elif [ "${1:-}" = --arm64 ]; then
  target=aarch64-windows-gnu folder=capture-arm64
  shift
fi
out=${1:-${CARGO_TARGET_DIR:-$root/target}/examples/$folder}
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$root"
if [ "$out/capture.exe" -nt examples/capture/capture.c ] && [ "$out/capture.exe" -nt agent/include/stk_agent.h ]; then exit 0; fi
common=(-O2 -g ${more[@]+"${more[@]}"} -gcodeview -Wall -Wextra -Wno-cast-function-type -Iagent/include -ffile-compilation-dir=. -o "$out/capture.exe"
  examples/capture/capture.c)
if [ $target = aarch64-windows-gnu ]; then
  # zig writes the PDB beside the program.
  exec tests/setup/zig-cc.sh "${common[@]}"
fi
"${STK_CLANG:-clang-19}" --target=$target -fuse-ld=lld -Wl,-S "-Wl,--pdb=$out/capture.pdb" "${common[@]}"
