#!/usr/bin/env bash
# Makes target/release-zip/stk-VERSION-x86_64-pc-windows.zip: stk.exe, inject.exe and agent.dll, and inject32.exe and agent32.dll for
# 32-bit programs, for Windows machines without Rust.
# Runs on Debian 12 (sets itself up as examples/demo.sh does); needs no Windows.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/examples/setup.sh"
source "$STK_ROOT/tests/lib.sh"
cd "$STK_ROOT"

setup_packages windows windows32 release
setup_rust_target "$STK_WINDOWS_TARGET" "$STK_WINDOWS32_TARGET"
build_recorders
setup_cargo "$STK_WINDOWS_TARGET" build -q --release -p stk

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
name=stk-$version-x86_64-pc-windows
out=$STK_TARGET_DIR/release-zip
rm -rf "${out:?}/$name" "$out/$name.zip"
mkdir -p "$out/$name"
cp README.md CHANGELOG.md LICENSE* "$out/$name/"
for program in stk.exe inject.exe agent.dll; do
  # Line tables are for whoever debugs stk; those who use it need not carry them.
  x86_64-w64-mingw32-strip --strip-debug -o "$out/$name/$program" "$STK_WINDOWS_BIN/$program"
done
for program in inject32.exe agent32.dll; do
  i686-w64-mingw32-strip --strip-debug -o "$out/$name/$program" "$STK_WINDOWS32_BIN/$program"
done
# The same files in the same order give the same zip, whenever it is made.
find "$out/$name" -exec touch -h -d "$(git log -1 --format=%cI 2>/dev/null || date -Is)" {} +
(cd "$out" && find "$name" -type f | LC_ALL=C sort | TZ=UTC zip -X -q "$name.zip" -@)
printf '%s\n' "$out/$name.zip"
(cd "$out" && ls -l "$name")
