#!/usr/bin/env bash
# Every test of the project: sets up, builds, runs the host's tests, then the end-to-end tests on each machine. See tests/README.md.
#
#   tests/run.sh [core|worlds] [--host-only] [--long]
#
#   core          the host's tests, Wine 8's, the smoke tests on Wine 10, and beside Microsoft's DLLs (unless STK_MICROSOFT=0)
#   worlds        Wine 10 whole, arm64, the tests as Windows programs, other people's viewers
#   --host-only   only what needs neither Wine nor the Windows target. Without it, their absence is a failure, never a skip.
#   --long        the long forms of the stress and kill tests, ten times as many hostile inputs
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup/setup.sh"
source "$STK_ROOT/tests/lib.sh"

host_only= part=all
for argument in "$@"; do
  case $argument in
    core | worlds) part=$argument ;;
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
must "room on the disk" room_on_disk

if [ -n "$host_only" ]; then
  must "build: host" build_host
  step "the demo makes the page of its kept trace" examples/demo.sh --no-record
  host_tests
  tests_end
fi

set_up "packages" setup_packages windows windows32 wine test release
set_up "Rust std for Windows" setup_rust_target "$STK_WINDOWS_TARGET" "$STK_WINDOWS32_TARGET"
# The registries answer while the compilers work. Each step is made again below, at once where it is done: to be counted, for what it
# exports, and where it failed.
(
  set +e
  setup_wine
  setup_wine10
  [ $part = core ] || setup_wine10_twin
  fetch_all
  [ $part = worlds ] || setup_wine32
  [ $part = core ] || setup_wine_arm64
  [ $part = core ] || fetch_viewers
) </dev/null >"$tests_log/prepare" 2>&1 &
prepare=$!
must "build: host" build_host
if [ $part = core ]; then
  must "build: the recorder for x64 and x86" build_recorders
else
  set_up "Rust std for $STK_ARM64_TARGET" setup_rust_target "$STK_ARM64_TARGET"
  must "build: the recorder for x64, x86 and arm64" build_recorders "$STK_ARM64_TARGET"
fi
wait $prepare || true
set_up "Wine 8" setup_wine
setup_wine_session
set_up "Wine 10" setup_wine10
[ $part = core ] || set_up "Wine 10's twin" setup_wine10_twin
set_up "programs from elsewhere" fetch_all
if [ $part != worlds ] && setup_wants_microsoft; then set_up "Microsoft's DLLs" setup_microsoft; fi
must "build: examples" build_examples

set_up "Rust std for MSVC" setup_rust_target "${STK_MSVC_TARGETS[@]}"
if [ $part != worlds ]; then
  set_up "32-bit Wine 8" setup_wine32
fi
if [ $part != core ]; then
  must "build: the agents of the MSVC flavour" setup_build_msvc_agents -q
  set_up "Wine 10 for arm64" setup_wine_arm64
  must "build: examples for arm64" build_examples_arm64
fi

if [ $part != worlds ]; then
  step "types on x86_64-, i686- and aarch64-pc-windows-msvc" check_msvc
  step "the workflows, and the script for a real Windows" "$STK_ROOT/tests/workflows.sh"
  step "import libraries, signatures and paths of a release" release_parts
  [ -z "${STK_LONG:-}" ] || step "two runs of release.sh give the same bytes" "$STK_ROOT/tests/reproducible.sh"
  step "the demo makes the page of its kept trace" examples/demo.sh --no-record
  host_tests
fi
if [ $part != core ]; then
  must "build: stk.exe" build_stk_exe
  must "build: the tests as Windows programs" build_native_tests
fi
all_but() { # MACHINE MODULE…
  local machine=$1
  shift
  machine_tests "$machine" | grep -vxF "$(printf '%s\n' "$@")"
}

# Most of these tests wait most of the time, so three machines are tested at once. The comparison with perf comes first: it needs both cores.
case $part in
  core) at_once "end_to_end wine8" "end_to_end wine10 smoke handover && microsoft_tests" ;;
  *)
    end_to_end wine10 weights
    queue "${STK_LONGEST_TESTS[@]}" $(all_but wine10 weights "${STK_LONGEST_TESTS[@]}")
    others="end_to_end arm64 && end_to_end_msvc arm64"
    [ $part != all ] || others="end_to_end wine8 $(all_but wine8 "${STK_WINE8_ONCE[@]}" | paste -sd' ') && $others"
    [ $part != all ] || microsoft_tests
    at_once "end_to_end wine10 --queue" "use_twin && end_to_end_native && end_to_end_msvc wine10 && end_to_end wine10 --queue" "$others" viewers
    ;;
esac
tests_end
