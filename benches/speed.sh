#!/usr/bin/env bash
# How fast stk converts a trace of a million samples with very many distinct stacks, 25 frames deep, on one core and on two, and in how
# much memory; and how fast it answers `stk stats`.
#
#   benches/speed.sh [--large] [--peers] [--trace FILE.stk SAMPLES]
#
# --large   ten million samples too
# --peers   `perf script` and `samply import` too, of a perf.data of the same depth and stack bytes, where these programs are on the PATH
# --trace   that trace instead of the one that cli/examples/many_stacks.rs makes (as a thread that returns from calls and makes others)
# STK_BIN   another stk instead of a release build, and BASE_BIN one to compare it with: both are run in turn
#
# Best of three runs each by wall time; the files lie in the page cache. A core is a processor of `taskset`, with -j of as many.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
large= peers= trace= samples=1000000
while [ $# -gt 0 ]; do
  case $1 in
    --large) large=1 ;;
    --peers) peers=1 ;;
    --trace) trace=$2 samples=$3; shift 2 ;;
    *) sed -n '2,13s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
  shift
done
target=${CARGO_TARGET_DIR:-target}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -z "${STK_BIN:-}" ]; then
  # The selection of tests/run.sh: another one would select other features and compile polars again.
  cargo build -q --release --workspace --exclude stk-benches --bin stk --example many_stacks
  STK_BIN=$target/release/stk
elif [ -z "$trace" ]; then
  [ -x "$target/release/examples/many_stacks" ] || cargo build -q --release -p stk --no-default-features --example many_stacks
fi

measure() { # TRACE SAMPLES
  python3 - "$1" "$2" "$work" "$STK_BIN" ${BASE_BIN:+"$BASE_BIN"} <<'PYTHON'
import os, shutil, sys, time
trace, samples, work, *programs = sys.argv[1:]
samples = int(samples)

def run(program, arguments, cores):
    environment = {**os.environ, "POLARS_MAX_THREADS": str(cores)}
    out = os.path.join(work, "out")
    shutil.rmtree(out, ignore_errors=True)
    if os.path.exists(out):
        os.remove(out)
    command = ["taskset", "-c", ",".join(map(str, sorted(os.sched_getaffinity(0))[:cores])), program, "-q", *arguments, "-j", str(cores), trace]
    if arguments[0] == "convert":
        command += ["-o", out]
    silent = [(os.POSIX_SPAWN_OPEN, n, os.devnull, os.O_WRONLY, 0) for n in (1, 2)]
    begun = time.monotonic()
    _, status, used = os.wait4(os.posix_spawnp("taskset", command, environment, file_actions=silent), 0)
    if status != 0:
        sys.exit(f"{' '.join(command)} failed: {status}")
    return time.monotonic() - begun, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024

print(f"{'':<24}{'cores':>6}{'wall s':>9}{'samples/s':>12}{'CPU s':>8}{'MiB':>6}   load {os.getloadavg()[0]:.1f}")
for arguments in (["convert", "--to", "speedscope"], ["convert", "--to", "folded"], ["convert", "--to", "parquet"], ["stats"]):
    best = {}
    for _ in range(3):
        for program in programs:
            for cores in (1, 2):
                now = run(program, arguments, cores)
                before = best.get((program, cores), now)
                best[program, cores] = (min(now[0], before[0]), min(now[1], before[1]), max(now[2], before[2]))
    for program in programs:
        name = " ".join(arguments[::2]) + (" (base)" if program != programs[0] else "")
        for cores in (1, 2):
            wall, cpu, memory = best[program, cores]
            faster = f"   {best[program, 1][0] / wall:.2f} x one core" if cores == 2 else ""
            print(f"{name:<24}{cores:>6}{wall:>9.2f}{samples / wall:>12,.0f}{cpu:>8.2f}{memory:>6.0f}{faster}")
PYTHON
}

if [ -n "$trace" ]; then
  measure "$(realpath "$trace")" "$samples"
else
  for count in "$samples" ${large:+10000000}; do
    "$target/release/examples/many_stacks" "$work/trace.stk" "$count" returns
    measure "$work/trace.stk" "$count"
  done
fi
[ -z "$peers" ] || benches/peers/deep.sh "$work"
