#!/usr/bin/env bash
# Every test of the project: sets up, builds, runs the host's tests, then the end-to-end tests under Wine. See tests/README.md.
#
#   tests/run.sh [--host-only] [--long]
#
#   --host-only   only what needs neither Wine nor the Windows target. Without it, their absence is a failure, never a skip.
#   --long        the long forms of the stress and kill tests
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../examples/setup.sh"
source "$STK_ROOT/tests/lib.sh"

host_only=
for argument in "$@"; do
  case $argument in
    --host-only) host_only=1 ;;
    --long) export STK_LONG=1 ;;
    *)
      printf 'tests/run.sh: unknown argument: %s\n' "$argument" >&2
      exit 2
      ;;
  esac
done
cd "$STK_ROOT"
tests_begin

if [ -z "$host_only" ]; then
  must "set-up: packages" setup_packages windows windows32 wine test
  must "set-up: Rust std for $STK_WINDOWS_TARGET" setup_rust_target "$STK_WINDOWS_TARGET" "$STK_WINDOWS32_TARGET" "${STK_MSVC_TARGETS[@]}"
  must "set-up: Wine prefix" setup_wine
  setup_wine_session
  must "set-up: 32-bit Wine" setup_wine32
  setup_wine32_session
  must "set-up: programs from elsewhere" fetch_all
  step "types on x86_64-, i686- and aarch64-pc-windows-msvc" check_msvc
  must "build: agent.dll, inject.exe and stk.exe, agent32.dll and inject32.exe" build_windows
  must "build: examples" build_examples
fi
must "build: host" build_host
step "the demo converts its kept trace" examples/demo.sh --no-record
cargo_tests host
[ -n "$host_only" ] || step "outputs in speedscope's importer and DuckDB" tests/viewers/check.sh
[ -n "$host_only" ] || cargo_tests end-to-end
tests_end
