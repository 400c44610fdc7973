#!/usr/bin/env bash
# Builds stress.exe and its DLL on a Linux machine: clang-19 and lld-19 over the mingw-w64 headers and libstdc++. On Windows use CMakeLists.txt.
#
#   examples/stress/build.sh [FOLDER]      default: target/examples/stress
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
out=${1:-${CARGO_TARGET_DIR:-$root/target}/examples/stress}
mkdir -p "$out"
out=$(cd "$out" && pwd)
clang=${STK_CLANGXX:-clang++-19}

cd "$root"
recipe=$(cat examples/stress/*.cpp examples/stress/build.sh | sha256sum; "$clang" --version)
is_built() { [ -e "$out/stress.exe" ] && [ "$(cat "$out/recipe" 2>/dev/null)" = "$recipe" ]; }
if is_built; then exit 0; fi
exec 9>"$out/lock"
flock 9
if is_built; then exit 0; fi # another script has built it meanwhile

flags=(--target=x86_64-w64-mingw32 -std=c++17 -O2 -g -gcodeview -Wall -Wextra -Werror -fuse-ld=lld
  -ffile-compilation-dir=. -gno-codeview-command-line
  -Wl,-S -Wl,-Xlink=-Brepro -Wl,-Xlink=-pdbaltpath:%_PDB% -Wl,-Xlink=-pdbsourcepath:.)
# -static: no libstdc++ or libgcc DLL to carry along.
"$clang" "${flags[@]}" -static -Wl,--pdb="$out/stress.pdb" -o "$out/stress.exe" examples/stress/stress.cpp
"$clang" "${flags[@]}" -static -shared -Wl,--pdb="$out/stress_plugin.pdb" -o "$out/stress_plugin.dll" examples/stress/stress_plugin.cpp
printf '%s' "$recipe" >"$out/recipe"
