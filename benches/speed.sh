#!/usr/bin/env bash
# How fast stk converts traces of a million samples with very many distinct stacks, 25 frames deep, on one core and on two, in how much
# memory; how fast it answers `stk stats`; and how far that is from what this machine needs at least (cli/examples/limit.rs).
#
#   benches/speed.sh [--large] [--peers] [--trace FILE.stk SAMPLES]
#
# --large   ten million samples too
# --peers   `perf script` and `samply import` too, of a perf.data of the same depth and stack bytes, where these programs are on the PATH
# --trace   that trace instead of the two that cli/examples/many_stacks.rs makes: calls from 48,000 places in ten blocks, which is hard on
#           caches, and from 3,000 places with 30,000 samples a block, as in recordings of programs
# STK_BIN   another stk instead of a release build, and BASE_BIN one to compare it with: both are run in turn
#
# Five rounds in turn; medians. "CPU ns" is user and system time of the whole run, start included, a sample. The files are in the page cache.
# A core is a processor of `taskset`, with -j of as many.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
large= peers= trace= samples=1000000
while [ $# -gt 0 ]; do
  case $1 in
    --large) large=1 ;;
    --peers) peers=1 ;;
    --trace) trace=$2 samples=$3; shift 2 ;;
    *) sed -n '2,16s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
  shift
done
target=${CARGO_TARGET_DIR:-target}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -z "${STK_BIN:-}" ]; then
  # The selection of tests/run.sh: another one would select other features and compile polars again.
  source tests/setup/rust.sh
  cargo build -q --release "${STK_SELECTION[@]}" --bin stk --example many_stacks --example limit
  STK_BIN=$target/release/stk
else
  for example in many_stacks limit; do
    [ -x "$target/release/examples/$example" ] || cargo build -q --release -p stk --no-default-features --example "$example"
  done
fi
limit=$target/release/examples/limit

measure() { # TRACE SAMPLES
  python3 - "$1" "$2" "$work" "$limit" "$STK_BIN" ${BASE_BIN:+"$BASE_BIN"} <<'PYTHON'
import os, shutil, statistics, subprocess, sys, time
trace, samples, work, limit, *programs = sys.argv[1:]
samples = int(samples)
ROUNDS = 5

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

FORMATS = [["convert", "--to", "speedscope"], ["convert", "--to", "folded"], ["convert", "--to", "parquet"], ["stats"], ["convert", "--to", "chrome"]]
runs, limits = {}, {}
for _ in range(ROUNDS):
    for line in subprocess.run([limit, trace], check=True, capture_output=True, text=True).stdout.splitlines():
        name, ns = line.split()
        limits.setdefault(name, []).append(float(ns))
    for arguments in FORMATS:
        for program in programs:
            for cores in (1, 2):
                runs.setdefault((arguments[-1], program, cores), []).append(run(program, arguments, cores))
least = {name: statistics.median(ns) for name, ns in limits.items()}
print(f"{samples:,} samples, {least['distinct']:,.0f} distinct stacks, load {os.getloadavg()[0]:.1f}")
print("limit, ns: " + ", ".join(f"{name} {least[name]:.0f}" for name in ("decode", "walk", "find", "text")))
print(f"{'':<20}{'cores':>6}{'wall s':>8}{'samples/s':>11}{'CPU ns':>8}{'limit':>7}{'ratio':>7}{'MiB':>6}{'1 -> 2':>8}")
for arguments in FORMATS:
    for program in programs:
        name = arguments[-1] + (" (base)" if program != programs[0] else "")
        walls = {}
        for cores in (1, 2):
            wall, cpu, memory = map(statistics.median, zip(*runs[arguments[-1], program, cores]))
            walls[cores] = wall
            ns, bound = cpu / samples * 1e9, least.get(f"limit-{arguments[-1]}")
            beside = f"{bound:>7.0f}{ns / bound:>7.1f}" if bound else f"{'-':>7}{'-':>7}"
            gain = f"{walls[1] / wall:>8.2f}" if cores == 2 else ""
            print(f"{name:<20}{cores:>6}{wall:>8.2f}{samples / wall:>11,.0f}{ns:>8,.0f}{beside}{memory:>6.0f}{gain}")
PYTHON
}

if [ -n "$trace" ]; then
  measure "$(realpath "$trace")" "$samples"
else
  for count in "$samples" ${large:+10000000}; do
    for size in "" small; do
      "$target/release/examples/many_stacks" "$work/trace.stk" "$count" returns $size
      measure "$work/trace.stk" "$count"
    done
  done
fi
[ -z "$peers" ] || benches/peers/deep.sh "$work"
