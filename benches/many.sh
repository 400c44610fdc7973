#!/usr/bin/env bash
# Whether stk's time grows with the number of traces on its command line and no faster: 5,000 beside 1,000 of the same trace.
#
#   benches/many.sh [TRACE]     default: examples/traces/busy.stk; STK_BIN: which stk, else a release build without Parquet
#
# Prints for info, verify, stats and convert the processor time (user and system), the wall time and the memory of both, the least of three
# runs each, and the ratio of the processor times; 5 is linear, 5.5 the most allowed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
trace=$(realpath "${1:-examples/traces/busy.stk}")
if [ -z "${STK_BIN:-}" ]; then
  cargo build -q --release -p stk --no-default-features
  STK_BIN=$(realpath "${CARGO_TARGET_DIR:-target}/release/stk")
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 - "$STK_BIN" "$trace" "$work" <<'PYTHON'
import os, sys, time
stk, trace, work = sys.argv[1:]
os.chdir(work)
names = [f"{i}.stk" for i in range(5000)]
for name in names:
    os.link(trace, name) if os.stat(trace).st_dev == os.stat(".").st_dev else os.symlink(trace, name)

def run(arguments, count):
    begun = time.monotonic()
    silent = [(os.POSIX_SPAWN_OPEN, n, os.devnull, os.O_WRONLY, 0) for n in (1, 2)]
    pid = os.posix_spawn(stk, [stk, *arguments, *names[:count]], os.environ, file_actions=silent)
    _, status, used = os.wait4(pid, 0)
    if status != 0:
        sys.exit(f"stk {arguments[0]} failed: {status}")
    return used.ru_utime + used.ru_stime, time.monotonic() - begun, used.ru_maxrss / 1024

def least(arguments, count):
    return [min(column) for column in zip(*(run(arguments, count) for _ in range(3)))]

print(f"{'':<10}{'1000, CPU s':>12}{'wall s':>8}{'MiB':>8}{'5000, CPU s':>13}{'wall s':>8}{'MiB':>8}{'CPU ratio':>11}")
for arguments in (["info"], ["verify"], ["stats"], ["convert", "--to", "speedscope", "-o", "out/"]):
    (few, few_wall, few_memory), (many, many_wall, many_memory) = least(arguments, 1000), least(arguments, 5000)
    few_text = f"{few:>12.2f}{few_wall:>8.1f}{few_memory:>8.0f}"
    print(f"{arguments[0]:<10}{few_text}{many:>13.2f}{many_wall:>8.1f}{many_memory:>8.0f}{many / few:>11.2f}")
PYTHON
