#!/usr/bin/env bash
# How fast stk answers questions to a Parquet dataset of 1,000 traces and ten million samples, and in how much memory.
#
#   benches/dataset.sh [--keep FOLDER] [DATASET]     default: the dataset that benches/dataset/make.py makes with DuckDB
#
# Of another DATASET, such as one of benches/batch.sh --keep, the diff compares the traces of two halves of its hosts' labels only if these are
# build=1 and build=2. STK_BIN: another stk instead of a release build. BASE_BIN: one to compare it with, whose answers must be the same to the
# byte; both are run in turn. --keep keeps the dataset in FOLDER, and takes the one that lies there.
#
# Printed are the best wall time of five runs, its CPU time, and the greatest resident set (with the pages of files that are mapped).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
keep= dataset=
while [ $# -gt 0 ]; do
  case $1 in
    --keep) keep=$2; shift ;;
    -*) sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    *) dataset=$1 ;;
  esac
  shift
done
if [ -z "${STK_BIN:-}" ]; then
  # The selection of tests/run.sh: another one would select other features and compile polars again.
  cargo build -q --release --workspace --exclude stk-benches --bin stk
  STK_BIN=${CARGO_TARGET_DIR:-target}/release/stk
fi
if [ -z "$dataset" ]; then
  work=${keep:-$(mktemp -d)}
  [ -n "$keep" ] || trap 'rm -rf "$work"' EXIT
  dataset=$work/big.parquet
  if [ ! -e "$dataset/_stk.json" ]; then
    mkdir -p "$work"
    rm -rf "$dataset"
    PYTHONPATH=$(tests/fetch.sh duckdb) PYTHONDONTWRITEBYTECODE=1 python3 benches/dataset/make.py "$dataset" 1000 10000 100000 schema/tables.json
  fi
fi
python3 - "$dataset" "$STK_BIN" ${BASE_BIN:+"$BASE_BIN"} <<'PYTHON'
import os, sys, tempfile, time
dataset, *programs = sys.argv[1:]
questions = {
    "stats": ["stats", dataset],
    "stats --group-by host,function": ["stats", dataset, "--group-by", "host,function"],
    "  with --label build=1": ["stats", dataset, "--group-by", "host,function", "--label", "build=1"],
    "stats --tree": ["stats", dataset, "--tree"],
    "stats --group-by thread-name": ["stats", dataset, "--group-by", "thread-name,state"],
    "diff build=1 build=2": ["diff", f"{dataset}?build=1", f"{dataset}?build=2"],
    "  --total": ["diff", f"{dataset}?build=1", f"{dataset}?build=2", "--total"],
}

def run(program, arguments):
    with tempfile.TemporaryFile() as out:
        begun = time.monotonic()
        actions = [(os.POSIX_SPAWN_DUP2, out.fileno(), 1), (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)]
        pid = os.posix_spawn(program, [program, "-q", *arguments], os.environ, file_actions=actions)
        _, status, used = os.wait4(pid, 0)
        wall = time.monotonic() - begun
        # A diff that finds something ends with 6, an inconclusive one with 7.
        if os.waitstatus_to_exitcode(status) not in (0, 6, 7):
            sys.exit(f"{program} {' '.join(arguments)}: {status}")
        out.seek(0)
        return (wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024), out.read()

print(f"{'':<34}{'wall s':>8}{'CPU s':>8}{'MiB':>7}{'load':>7}")
different = False
for name, arguments in questions.items():
    best, answers = {}, {}
    for _ in range(5):
        for program in programs:
            figures, answers[program] = run(program, arguments)
            best[program] = min(best.get(program, figures), figures)
    for program in programs:
        wall, cpu, memory = best[program]
        title = name + (" (base)" if program != programs[0] else "")
        print(f"{title:<34}{wall:>8.2f}{cpu:>8.2f}{memory:>7.0f}{os.getloadavg()[0]:>7.1f}", flush=True)
    if len(set(answers.values())) != 1:
        print(f"{name}: the answers DIFFER")
        different = True
sys.exit(different)
PYTHON
