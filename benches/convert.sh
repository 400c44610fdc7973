#!/usr/bin/env bash
# How fast `stk convert` is on a trace of a million samples, 25 frames deep, grown from a real one, and how much memory it takes.
#
#   benches/convert.sh [TRACE] [SAMPLES]     default: examples/traces/busy.stk, 1000000
#
# Prints what the grown trace holds (distinct stacks, equal consecutive pairs), then samples/s and peak RSS for speedscope, and the same
# for half the samples: memory must not grow with their number. Best of three runs; the files are in the page cache.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
trace=${1:-examples/traces/busy.stk}
samples=${2:-1000000}
target=${CARGO_TARGET_DIR:-target}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cargo build -q --release -p stk --bin stk
cargo build -q --release -p stk-benches --example grow
for n in $((samples / 2)) "$samples"; do
  "$target/release/examples/grow" "$trace" "$work/grown.stk" "$n" 25
  python3 - "$target/release/stk" "$work/grown.stk" "$n" "$(dirname "$trace")" <<'PYTHON'
import os, sys, time
stk, trace, samples, symbols = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
best, peak = None, 0
for _ in range(3):
    start = time.monotonic()
    pid = os.posix_spawn(stk, [stk, "convert", trace, "--to", "speedscope", "-y", symbols, "-o", trace + ".speedscope.json"],
                         os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)])
    _, status, usage = os.wait4(pid, 0)
    seconds = time.monotonic() - start
    if status != 0:
        sys.exit(f"stk convert failed: {status}")
    best, peak = min(best or seconds, seconds), max(peak, usage.ru_maxrss)
print(f"convert --to speedscope: {samples} samples in {best:.2f} s, {samples / best:,.0f} samples/s, peak RSS {peak / 1024:.0f} MB, "
      f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
PYTHON
done
