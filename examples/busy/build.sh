#!/usr/bin/env bash
# Builds busy.exe and its two plug-ins, each with a PDB, on a Linux machine: clang-19 and lld-19 over the mingw-w64 headers.
#
#   examples/busy/build.sh [FOLDER]            default: target/examples/busy
#   examples/busy/build.sh --x86 [FOLDER]      32-bit; default: target/examples/busy32. The PDBs then hold FrameData
#   examples/busy/build.sh --arm64 [FOLDER]    arm64; default: target/examples/busy-arm64
#
# The same sources and tools give the same bytes: time stamps and PDB identities are hashes. On Windows use CMakeLists.txt.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
target=x86_64-w64-mingw32 folder=busy plugin_base=0x210000000 more=() headers=()
if [ "${1:-}" = --x86 ]; then
  target=i686-w64-mingw32 folder=busy32 plugin_base=0x21000000
  more=(-static-libgcc) # divisions of 64-bit numbers
  shift
elif [ "${1:-}" = --arm64 ]; then
  # Debian has mingw-w64's headers, which are for arm64 too, but not its libraries: what is called is listed below.
  target=aarch64-w64-mingw32 folder=busy-arm64 more=(-nostdlib kernel32.lib ucrtbase.lib)
  headers=(-D_UCRT -isystem /usr/share/mingw-w64/include)
  shift
fi
out=${1:-${CARGO_TARGET_DIR:-$root/target}/examples/$folder}
mkdir -p "$out"
out=$(cd "$out" && pwd)
clang=${STK_CLANG:-clang-19}

# Compiled from the repository's root, and with no other folder named: the PDBs say `examples/busy/größe.cpp` on every machine.
cd "$root"
recipe=$(cat examples/busy/*.cpp examples/busy/*.hpp examples/busy/*.c examples/busy/build.sh | sha256sum; "$clang" --version; echo $target)
is_built() { [ -e "$out/busy.exe" ] && [ "$(cat "$out/recipe" 2>/dev/null)" = "$recipe" ]; }
if is_built; then exit 0; fi
exec 9>"$out/lock"
flock 9
if is_built; then exit 0; fi # another script has built it meanwhile

compile=(--target=$target -std=c++17 -O2 -g -gcodeview -fno-exceptions -fno-rtti -Wall -Wextra -Werror
  -nostdinc++ -D__USE_MINGW_ANSI_STDIO=0 -ffile-compilation-dir=. -gno-codeview-command-line
  "${headers[@]}")
# -S: without the C runtime's DWARF, which some tools would read instead of the PDB.
link=(--target=$target -fuse-ld=lld -Wl,-S -Wl,-Xlink=-Brepro -Wl,-Xlink=-pdbaltpath:%_PDB%
  -Wl,-Xlink=-pdbsourcepath:.)
# Both plug-ins prefer the same address and may not be moved while it is free: what is loaded second lies where the first was.
plugin=(-shared -Wl,--disable-dynamicbase -Wl,--image-base=$plugin_base)

object() { # NAME: compiles one source and prints nothing
  "$clang" "${compile[@]}" -Xclang "-object-file-name=$1.o" -c "examples/busy/$1.cpp" -o "$out/$1.o"
}
# imports DLL FUNCTION…: the import library of a DLL.
imports() {
  local dll=$1
  shift
  { printf 'LIBRARY %s.dll\nEXPORTS\n' "$dll" && printf '%s\n' "$@"; } >"$out/$dll.def"
  lld-link-19 -lib -machine:arm64 "-def:$out/$dll.def" "-out:$out/$dll.lib"
}
main=(busy recursion leaf_loops größe waiter states spawner plugins)
if [ $target = aarch64-w64-mingw32 ]; then
  imports kernel32 AcquireSRWLockExclusive CloseHandle CreateEventW CreateThread EnterCriticalSection ExitProcess FreeLibrary GetCommandLineA \
    GetCurrentProcess GetCurrentProcessId GetCurrentThread GetLastError GetModuleHandleW GetProcAddress GetProcessTimes GetThreadTimes \
    InitializeCriticalSection LeaveCriticalSection LoadLibraryW ReleaseSRWLockExclusive ResumeThread SetEvent Sleep WaitForMultipleObjects \
    WaitForSingleObject
  imports ucrtbase __acrt_iob_func __stdio_common_vfprintf atoi fflush strrchr strstr
  "$clang" --target=$target -O2 "${headers[@]}" -c examples/busy/runtime_arm64.c -o "$out/runtime_arm64.o"
  more+=(runtime_arm64.o)
  # Windows loads no arm64 image that says it cannot be moved.
  plugin=(-shared -Wl,--image-base=$plugin_base)
fi
for name in "${main[@]}" plugin_a plugin_b; do object "$name"; done
cd "$out"
# No start-up code: see busy_main in busy.cpp.
"$clang" "${link[@]}" -nostartfiles -Wl,--entry=busy_main -Wl,--pdb=busy.pdb -o busy.exe "${main[@]/%/.o}" "${more[@]}"
"$clang" "${link[@]}" "${plugin[@]}" -Wl,--pdb=plugin_a.pdb -o plugin_a.dll plugin_a.o "${more[@]}"
"$clang" "${link[@]}" "${plugin[@]}" -Wl,--pdb=plugin_ä.pdb -o plugin_ä.dll plugin_b.o "${more[@]}"
rm -f ./*.o ./*.def ./*.lib
printf '%s' "$recipe" >recipe
