#!/usr/bin/env bash
# A night of 1,000 different traces through `stk batch --to parquet`: the bytes with -j 1 and -j 2, and after three kills; memory, use of both
# cores, and whether every trace and every sample is in the dataset.
#
#   benches/batch.sh [--traces N] [--samples MEAN] [--seed N] [--keep FOLDER] [SOURCE.stk…]     default: 1,000 traces of 10,000 samples each
#
# The traces are grown (benches/examples/grow, --night) from busy.stk and mixed.stk of examples/traces, and from cmake and node, which are
# recorded under Wine for it; from the SOURCEs alone where some are given. A fiftieth of them has flipped bytes, a fiftieth is cut off.
#
# Printed are for each run: wall time, CPU time, its share of two cores, and "ready": in what share of the time that two cores have threads of
# stk were running or waiting for a processor, by the states of its threads 50 times a second. On a quiet machine both are the same; on a
# loaded one only the second shows what stk would use. Memory: the greatest resident set, and how much of it is not of files. Then the datasets are compared
# byte by byte, and DuckDB counts trace ids and samples beside `stk batch`'s log, `stk stats` of the dataset and of the traces, and what was
# written into the traces. Anything that differs makes the exit code 1.
#
# STK_BIN: another stk instead of a release build. --keep keeps traces and datasets in FOLDER, and takes the traces that lie there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
traces=1000 samples=10000 seed=1 keep= sources=()
while [ $# -gt 0 ]; do
  case $1 in
    --traces) traces=$2; shift ;;
    --samples) samples=$2; shift ;;
    --seed) seed=$2; shift ;;
    --keep) keep=$2; shift ;;
    -*) sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    *) sources+=("$(realpath "$1")") ;;
  esac
  shift
done
target=${CARGO_TARGET_DIR:-target}
if [ -z "${STK_BIN:-}" ]; then
  # The selection of tests/run.sh: another one would select other features and compile polars again.
  cargo build -q --release --workspace --exclude stk-benches --bin stk
  STK_BIN=$target/release/stk
fi
stk=$(realpath "$STK_BIN")
work=${keep:-$(mktemp -d)}
mkdir -p "$work"
work=$(realpath "$work")
[ -n "$keep" ] || trap 'rm -rf "$work"' EXIT

record() { # NAME PROGRAM ARGUMENTS…: eight seconds of it, to $work/NAME.stk
  local name=$1
  shift
  (cd "$work" && "$STK_WINE" "$STK_WINDOWS_BIN/inject.exe" -r 1000 --duration 8s -o "$name.stk" -- "$@" </dev/null >"$name.log" 2>&1) &
}

record_sources() {
  source tests/setup/setup.sh
  setup_recorder
  setup_wine_session 600
  # They are at work for longer than that, and end with the session.
  record cmake "$(tests/fetch.sh cmake)/cmake/data/bin/cmake.exe" -DROUNDS=1000000 -DDONE=never -P "$PWD/benches/overhead/work.cmake"
  record node "$(tests/fetch.sh node)/bin/node.exe" "$PWD/benches/overhead/work.js" 1000000 never
  for _ in $(seq 240); do
    if "$stk" info "$work/cmake.stk" "$work/node.stk" >"$work/info.txt" 2>&1 && ! grep -q 'not finished' "$work/info.txt"; then break; fi
    sleep 0.5
  done
  setup_wine_end
}

if [ ! -s "$work/night.tsv" ]; then
  cargo build -q --release -p stk-benches --example grow
  if [ ${#sources[@]} = 0 ]; then
    record_sources
    sources=("$PWD"/examples/traces/{busy,mixed}.stk "$work"/{cmake,node}.stk)
  fi
  fiftieth=$(((traces + 49) / 50))
  "$target/release/examples/grow" --night "$work/night" "$traces" "$samples" "$fiftieth" "$fiftieth" "${sources[@]}" >"$work/night.part"
  mv "$work/night.part" "$work/night.tsv"
fi

PYTHONPATH=$(tests/fetch.sh duckdb) PYTHONDONTWRITEBYTECODE=1 python3 benches/batch/run.py "$stk" "$work" "$PWD/examples/traces" "$seed"
