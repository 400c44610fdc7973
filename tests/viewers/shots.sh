#!/usr/bin/env bash
# Makes the pictures in docs/images of the kept traces, by Debian's Chromium: the page of `stk report`, a flame graph of differences, and
# `stk stats` and `stk annotate` in a terminal. Look at them before they are committed.
#
#   tests/viewers/shots.sh [FOLDER]      default: docs/images
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
folder=${1:-$root/docs/images}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
stk=${STK_BIN:-${CARGO_TARGET_DIR:-$root/target}/release/stk}
cd "$root/examples/traces"
"$stk" -q report busy.stk mixed.stk --source ../.. -o "$work/report.html"
mkdir "$work/lab"
for run in {1..9}; do cp busy.stk "$work/lab/run-$run.stk"; done
cp mixed.stk "$work/lab/run-5.stk"
"$stk" -q report "$work/lab" -y . -o "$work/many.html"

# What two halves of a recording differ by: the same program, other work.
sides=(base new) times=("0s 4s" "4s 8s")
for side in 0 1; do
  read -r from to <<<"${times[side]}"
  "$stk" -q convert busy.stk --to parquet --from "$from" --until "$to" -y . -o "$work/${sides[side]}.parquet"
done
"$stk" -q diff "$work/base.parquet" "$work/new.parquet" --flamegraph "$work/diff.svg" >"$work/diff.txt" || [ $? = 7 ]

# What a terminal of 110 columns shows.
terminal() { # COMMAND…
  printf '$ stk %s\n' "$*"
  "$stk" -q "$@" | sed -E 's/^(.{109}).{2,}$/\1…/'
}
terminal stats busy.stk --top 8 -y . >"$work/terminal.txt"
terminal annotate busy.stk leaf_shuffle --source ../.. -y . >"$work/source.txt"
node "$here/shots.mjs" "$("$here/../fetch.sh" playwright)" "$work" "$folder"
