#!/usr/bin/env bash
# What recording costs the recorded program: fixed work alone, under a bare loop of suspensions, and recorded, at 100 and 1,000 Hz, under Wine.
#
#   benches/overhead.sh [--runs N] [--only NAME,…] [--rates HZ,…]
#
# Without options: 11 runs (about 50 min), at 100 and 1,000 Hz, of cmake, cmake-start, node, lock, heap, environment, waiters.
#
# The work times itself, so that starting programs is no part of it. In each run every program is run in every way, in an order of the run's
# own. The columns: time alone; then for each rate the bare loop's and the recorder's time divided by the time alone; "beyond", what the
# recorder adds to the bare loop, in percent of the time alone, with its 95 % interval (bootstrap over the runs); the CPU time of the
# recorder's own threads in percent of one core; suspensions a second of either, without which "beyond" compares two different things. All
# are medians over the runs. The machine has to be quiet: the load at the start and at the end is printed. The bare loop
# (benches/overhead/bare.c) suspends from another process, reads contexts and nothing else.
#
# Variables: STK_BIN, STK_WINDOWS_BIN, STK_FETCH_DIR (see tests/README.md); what is not set is built and fetched.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
runs=11 only=cmake,cmake-start,node,lock,heap,environment,waiters rates=100,1000
while [ $# -gt 0 ]; do
  case $1 in
    --runs) runs=$2 ;;
    --only) only=$2 ;;
    --rates) rates=$2 ;;
    *) sed -n '2,6s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2 && exit 2 ;;
  esac
  shift 2
done

source tests/setup/setup.sh
setup_recorder
if [ -z "${STK_BIN:-}" ]; then
  cargo build -q --release -p stk --bin stk
  STK_BIN=$STK_TARGET_DIR/release/stk
fi
export STK_BIN STK_WINDOWS_BIN
for name in cmake node; do
  case ,$only, in *,$name[,-]*) tests/fetch.sh "$name" >/dev/null ;; esac
done
export STK_FETCH_DIR=${STK_FETCH_DIR:-$STK_ROOT/tests/.cache}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for program in hammers bare; do
  x86_64-w64-mingw32-gcc -O2 -Wall -Wextra -Wno-unused-parameter -D_WIN32_WINNT=0x0A00 -o "$work/$program.exe" "benches/overhead/$program.c"
done
setup_wine_session 7200
python3 benches/overhead/run.py "$work" "$runs" "$only" "$rates"
