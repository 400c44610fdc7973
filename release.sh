#!/usr/bin/env bash
# Makes three archives in target/release-zip, two of them for Windows machines without Rust:
#
#   stk-VERSION-x86_64-pc-windows.zip     stk.exe, inject.exe and agent.dll, and inject32.exe and agent32.dll for 32-bit programs
#   stk-VERSION-aarch64-pc-windows.zip    inject.exe and agent.dll for arm64 programs; stk.exe is the x64 one, which Windows on arm64 emulates
#
#   stk-VERSION-symbols.zip               the programs' debug information (DWARF) and symbols, which the archives above go without
#
# With the first two: windows-check.ps1 and its programs, the first hour on a Windows machine that stk has not seen.
#
# Runs on Debian 12 (sets itself up as examples/demo.sh does); needs no Windows.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/tests/setup/setup.sh"
cd "$STK_ROOT"

setup_packages windows windows32 release
setup_rust_target "$STK_WINDOWS_TARGET" "$STK_WINDOWS32_TARGET" "$STK_ARM64_TARGET"
setup_build_recorder -q "$STK_WINDOWS_TARGET" "$STK_WINDOWS32_TARGET" "$STK_ARM64_TARGET"
setup_cargo "$STK_WINDOWS_TARGET" build -q --release -p stk --features swift

first_hour=$STK_TARGET_DIR/examples/first_hour
mkdir -p "$first_hour"
x86_64-w64-mingw32-gcc -O2 -s -o "$first_hour/first_hour.exe" tests/programs/first_hour.c
i686-w64-mingw32-gcc -O2 -s -o "$first_hour/first_hour32.exe" tests/programs/first_hour.c

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
out=$STK_TARGET_DIR/release-zip
x64=$(setup_windows_bin "$STK_WINDOWS_TARGET") x86=$(setup_windows_bin "$STK_WINDOWS32_TARGET") arm64=$(setup_windows_bin "$STK_ARM64_TARGET")

# archive NAME STRIP FOLDER PROGRAM… [-- STRIP FOLDER PROGRAM…]…: the programs of these folders, with the texts; their debug information goes
# to the archive of symbols.
archive() {
  local name=$1 strip folder
  shift
  rm -rf "${out:?}/$name"
  mkdir -p "$out/$name" "$out/$symbols/${name#"stk-$version-"}"
  cp README.md CHANGELOG.md LICENSE* tests/windows-check.ps1 "$first_hour"/*.exe "$out/$name/"
  while [ $# -gt 0 ]; do
    strip=$1 folder=$2
    shift 2
    while [ $# -gt 0 ] && [ "$1" != -- ]; do
      "${strip/strip/objcopy}" --only-keep-debug "$folder/$1" "$out/$symbols/${name#"stk-$version-"}/$1.debug"
      "$strip" --strip-all -o "$out/$name/$1" "$folder/$1"
      "${strip/strip/objcopy}" --add-gnu-debuglink="$out/$symbols/${name#"stk-$version-"}/$1.debug" "$out/$name/$1"
      shift
    done
    [ $# = 0 ] || shift
  done
  pack "$name"
}

# pack NAME: the folder as an archive. The same files in the same order give the same zip, whenever it is made.
pack() {
  rm -f "$out/$1.zip"
  find "$out/$1" -exec touch -h -d "$(git log -1 --format=%cI 2>/dev/null || date -Is)" {} +
  (cd "$out" && find "$1" -type f | LC_ALL=C sort | TZ=UTC zip -X -q "$1.zip" -@)
  printf '%s\n' "$out/$1.zip"
  (cd "$out" && ls -l "$1" "$1.zip")
}

symbols=stk-$version-symbols
rm -rf "${out:?}/$symbols"
archive "stk-$version-x86_64-pc-windows" x86_64-w64-mingw32-strip "$x64" stk.exe inject.exe agent.dll \
  -- i686-w64-mingw32-strip "$x86" inject32.exe agent32.dll
archive "stk-$version-aarch64-pc-windows" llvm-strip-19 "$arm64" inject.exe agent.dll -- x86_64-w64-mingw32-strip "$x64" stk.exe
pack "$symbols"
