#!/usr/bin/env bash
# Makes three archives and their sums in target/release-zip, two of them for Windows machines without Rust:
#
#   stk-VERSION-x86_64-pc-windows.zip     stk.exe, inject.exe and agent.dll, and inject32.exe and agent32.dll for 32-bit programs
#   stk-VERSION-aarch64-pc-windows.zip    inject.exe and agent.dll for arm64 programs; stk.exe is the x64 one, which Windows on arm64 emulates
#
#   stk-VERSION-symbols.zip               the programs' debug information (DWARF) and symbols, which the archives above go without
#   SHA256SUMS                            of the three: sha256sum -c SHA256SUMS
#
# With the first two: README.txt; stk_agent.h and import libraries for programs that load the agent themselves; windows-check.ps1 and its
# programs, the first hour on a Windows machine that stk has not seen.
#
#   ./release.sh [--recorder]     --recorder: without stk.exe, which takes most of the time; for tests
#
# The same commit and tools give the same bytes, wherever the checkout lies (tests/reproducible.sh compares). Programs are signed where
# STK_SIGN_PKCS12 names a certificate; tests/setup/release.sh lists the variables. A signature holds its time, so signed programs differ by it.
# Where the sources are no checkout of git's, STK_COMMIT says what `--version` shows of the commit. Nothing that is shipped may name a path of this machine.
#
# Runs on Debian 12 (sets itself up as examples/demo.sh does); needs no Windows.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/tests/setup/setup.sh"
cd "$STK_ROOT"

recorder=
case "${1:-}" in
  '') ;;
  --recorder) recorder=1 ;;
  *)
    printf 'release.sh: unknown argument: %s\n' "$1" >&2
    exit 2
    ;;
esac

# Other flags than for daily work: a folder of its own, so that neither rebuilds the other's dependencies.
out=$STK_TARGET_DIR/release-zip
export CARGO_TARGET_DIR=$STK_TARGET_DIR/release-build
STK_TARGET_DIR=$CARGO_TARGET_DIR
umask 022

setup_packages windows windows32 release
setup_rust_target "$STK_WINDOWS_TARGET" "$STK_WINDOWS32_TARGET" "$STK_ARM64_TARGET"
setup_reproducible
# What is linked gets the commit's time, of which cargo does not know.
for target in "$STK_WINDOWS_TARGET" "$STK_WINDOWS32_TARGET" "$STK_ARM64_TARGET"; do
  cargo clean -q --profile agent --target "$target" -p stk-agent
  cargo clean -q --release --target "$target" -p stk-inject -p stk
done
setup_build_recorder -q "$STK_WINDOWS_TARGET" "$STK_WINDOWS32_TARGET" "$STK_ARM64_TARGET"
stk=()
[ -n "$recorder" ] || { setup_cargo "$STK_WINDOWS_TARGET" build -q --release -p stk --features swift && stk=(stk.exe); }

first_hour=$STK_TARGET_DIR/first_hour
mkdir -p "$first_hour"
x86_64-w64-mingw32-gcc -O2 -s -o "$first_hour/first_hour.exe" tests/programs/first_hour.c
i686-w64-mingw32-gcc -O2 -s -o "$first_hour/first_hour32.exe" tests/programs/first_hour.c

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
symbols=stk-$version-symbols
x64=$(setup_windows_bin "$STK_WINDOWS_TARGET") x86=$(setup_windows_bin "$STK_WINDOWS32_TARGET") arm64=$(setup_windows_bin "$STK_ARM64_TARGET")

# programs NAME STRIP FOLDER PROGRAM…: the programs go to the folder of the archive NAME, signed; their debug information to that of the symbols.
programs() {
  local name=$1 strip=$2 folder=$3 program debug
  shift 3
  mkdir -p "$out/$name" "$out/$symbols/${name#"stk-$version-"}"
  for program in "$@"; do
    debug=$out/$symbols/${name#"stk-$version-"}/$program.debug
    # rustc has dlltool name symbols after a folder for the moment, with this machine's path.
    "${strip/strip/objcopy}" --wildcard --strip-symbol='*_rustc??????_*_imports_lib*' "$folder/$program" "$debug.whole"
    release_same_build_id "$debug.whole"
    "${strip/strip/objcopy}" --only-keep-debug "$debug.whole" "$debug"
    "$strip" --strip-all -o "$out/$name/$program" "$debug.whole"
    rm "$debug.whole"
    "${strip/strip/objcopy}" --add-gnu-debuglink="$debug" "$out/$name/$program"
    release_sign "$out/$name/$program"
  done
}

# texts NAME: what an archive has beside its programs.
texts() {
  local signed='These programs are not signed: security software may hold them back.'
  [ -z "${STK_SIGN_PKCS12:-}" ] || signed='These programs are signed.'
  cp README.md CHANGELOG.md LICENSE* agent/include/stk_agent.h tests/windows-check.ps1 "$first_hour"/*.exe "$out/$1/"
  # Windows' own editor of old shows lines that end as its texts do.
  sed -e "s/@VERSION@/$version/; s/@SIGNED@/$signed/" -e 's/$/\r/' build/release-readme.txt >"$out/$1/README.txt"
}

# pack NAME: the folder as an archive. The same files in the same order give the same zip, whenever it is made.
pack() {
  rm -f "$out/$1.zip"
  find "$out/$1" -type d -exec chmod 755 {} + -o -type f -name '*.exe' -exec chmod 755 {} + -o -type f -exec chmod 644 {} +
  find "$out/$1" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
  (cd "$out" && find "$1" -type f | LC_ALL=C sort | TZ=UTC zip -X -D -q "$1.zip" -@)
  printf '%s\n' "$out/$1.zip"
  (cd "$out" && ls -l "$1" "$1.zip")
}

for_x64=stk-$version-x86_64-pc-windows for_arm64=stk-$version-aarch64-pc-windows
rm -rf "$out"
programs "$for_x64" x86_64-w64-mingw32-strip "$x64" "${stk[@]}" inject.exe agent.dll
programs "$for_x64" i686-w64-mingw32-strip "$x86" inject32.exe agent32.dll
programs "$for_arm64" llvm-strip-19 "$arm64" inject.exe agent.dll
[ -n "$recorder" ] || cp "$out/$for_x64/stk.exe" "$out/$for_arm64/"
release_import_library "$out/$for_x64/agent.dll" i386:x86-64 x86_64-w64-mingw32-gcc "$out/$for_x64/agent.lib"
release_import_library "$out/$for_x64/agent32.dll" i386 i686-w64-mingw32-gcc "$out/$for_x64/agent32.lib"
release_import_library "$out/$for_arm64/agent.dll" arm64 'clang-19 --target=aarch64-pc-windows-msvc -ffreestanding' "$out/$for_arm64/agent.lib"
texts "$for_x64"
texts "$for_arm64"
release_names_no_path "$out"
for name in "$for_x64" "$for_arm64" "$symbols"; do pack "$name"; done
(cd "$out" && sha256sum ./*.zip | sed 's|\./||' >SHA256SUMS && cat SHA256SUMS)
