#!/usr/bin/env bash
# The page of `stk report` for a million samples with very many distinct stacks, 25 frames deep: its size, and how long headless Chromium
# takes to open it and to answer. Then that of 60 traces: its first view, and the flame graph of all.
#
#   benches/report.sh [SAMPLES]     default: 1000000
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
samples=${1:-1000000}
target=${CARGO_TARGET_DIR:-target}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The selection of tests/run.sh: another one would select other features and compile polars again.
cargo build -q --release --workspace --exclude stk-benches --bin stk --example many_stacks
"$target/release/examples/many_stacks" "$work/many.stk" "$samples"
time "$target/release/stk" -q report "$work/many.stk" -o "$work/many.html"
node benches/report.mjs "$(tests/fetch.sh playwright)" "$work/many.html"

mkdir "$work/lab"
for run in {1..60}; do cp "examples/traces/$([ $((run % 3)) = 0 ] && echo mixed || echo busy).stk" "$work/lab/$run.stk"; done
time "$target/release/stk" -q report "$work/lab" -y examples/traces -o "$work/lab.html"
node benches/report-many.mjs "$(tests/fetch.sh playwright)" "$work/lab.html"
