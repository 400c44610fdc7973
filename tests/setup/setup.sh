#!/usr/bin/env bash
# Installs what demo.sh, tests/run.sh and release.sh need on a fresh Debian 12 with Rust and git (apt as root or through sudo).
# It prints what it installs, and does nothing for what is installed already.
#
#   tests/setup/setup.sh                      everything
#   source tests/setup/setup.sh               the functions: setup_packages, setup_rust_target, setup_cargo, setup_wine …
#
# Variables: CARGO_TARGET_DIR, STK_WINE_PREFIX (default: wine/ in the target folder), STK_WINE32_DIR (wine32/),
# STK_NO_RUSTUP_TARGET=1 (build the Windows std from source even where rustup has it).

STK_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
STK_TARGET_DIR=${CARGO_TARGET_DIR:-$STK_ROOT/target}
case $STK_TARGET_DIR in /*) ;; *) STK_TARGET_DIR=$PWD/$STK_TARGET_DIR ;; esac
STK_WINDOWS_TARGET=x86_64-pc-windows-gnu
STK_WINDOWS32_TARGET=i686-pc-windows-gnu

source "$STK_ROOT/tests/setup/packages.sh"
source "$STK_ROOT/tests/setup/debian.sh"
source "$STK_ROOT/tests/setup/rust.sh"
source "$STK_ROOT/tests/setup/wine.sh"
source "$STK_ROOT/tests/setup/wine32.sh"
source "$STK_ROOT/tests/setup/wine10.sh"
source "$STK_ROOT/tests/setup/arm64.sh"
source "$STK_ROOT/tests/setup/microsoft.sh"
source "$STK_ROOT/tests/setup/release.sh"
source "$STK_ROOT/tests/setup/msvc.sh"

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  set -euo pipefail
  setup_packages windows windows32 wine test release
  setup_rust_target "$STK_WINDOWS_TARGET" "$STK_WINDOWS32_TARGET"
  setup_wine
  setup_wine32
  setup_say "ready"
fi
