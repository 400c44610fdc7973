#!/usr/bin/env bash
# Runs fuzz targets with the address sanitizer, each with limits for a single run, and prints their executions. Needs the stable Rust of
# this repository and a C++ compiler: rustc.sh passes the flags that cargo-fuzz would take a nightly toolchain for.
#
#   tests/fuzz/run.sh [TARGET…]      without a name: all targets
#
#   STK_FUZZ_SECONDS=60   how long each target runs
#   STK_FUZZ_RUNS=-1      after how many executions it ends before that
#   STK_FUZZ_JOBS=1       how many targets run at once
#   STK_FUZZ_MEMORY=1024  MiB that a target may take; beside stk's own budget the address sanitizer keeps freed memory
#   STK_FUZZ_TIMEOUT=10   seconds that one input may take
#
# Corpora are kept in tests/fuzz/corpus, and inputs that failed in tests/fuzz/artifacts; git ignores both. What a corpus adds to the code that
# is reached goes to tests/fuzz/seeds, which git keeps (of format_event six for each type of event), and with which each run starts:
#
#   tests/fuzz/run.sh --seeds [TARGET…]
#
# Targets that read datasets need polars, which is built without those flags: some minutes, once.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

if [ "${1:-}" = --one ]; then
  # Errors and warnings of stk about its input are not wanted: -close_fd_mask=3 closes stdout and stderr except for libFuzzer's own copy.
  log=$(mktemp) status=0
  "$3/$2" -max_total_time="${STK_FUZZ_SECONDS:-60}" -runs="${STK_FUZZ_RUNS:--1}" -rss_limit_mb="${STK_FUZZ_MEMORY:-1024}" -malloc_limit_mb="${STK_FUZZ_MEMORY:-1024}" \
    -timeout="${STK_FUZZ_TIMEOUT:-10}" -detect_leaks=0 -close_fd_mask=3 -print_final_stats=1 -artifact_prefix="artifacts/$2/" "corpus/$2" $([ ! -d "seeds/$2" ] || echo "seeds/$2") >"$log" 2>&1 || status=1
  executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  printf '%s: %s executions\n' "$2" "${executions:-no}"
  [ $status = 0 ] || grep -a -A3 'SUMMARY\|panicked\|ERROR:' "$log" | head -20 || true
  rm -f "$log"
  exit $status
fi

seeds=
if [ "${1:-}" = --seeds ]; then
  seeds=1
  shift
fi
if [ $# -gt 0 ]; then
  targets=("$@")
else
  mapfile -t targets < <(sed -n 's|^path = "fuzz_targets/\(.*\)\.rs"|\1|p' Cargo.toml)
fi
features=()
case " ${targets[*]} " in *dataset*) features=(--features datasets) ;; esac
host=$(rustc -vV | sed -n 's/^host: //p')
RUSTC_WRAPPER=$PWD/rustc.sh cargo build --release --locked --target "$host" "${features[@]}" "${targets[@]/#/--bin=}" >&2
programs=${CARGO_TARGET_DIR:-target}/$host/release
for target in "${targets[@]}"; do mkdir -p "corpus/$target" "artifacts/$target"; done
if [ -n "$seeds" ]; then
  for target in "${targets[@]}"; do
    # The fewest inputs that reach what all of them reach.
    rm -rf "seeds/$target" && mkdir -p "seeds/$target"
    "$programs/$target" -set_cover_merge=1 -use_counters=0 -max_len=2048 "seeds/$target" "corpus/$target" 2>&1 | grep -a 'MERGE-OUTER.*new files' || true
    printf '%s: %s of %s inputs\n' "$target" "$(find "seeds/$target" -type f | wc -l)" "$(find "corpus/$target" -type f | wc -l)"
  done
  exit
fi
printed=$(mktemp)
trap 'rm -f "$printed"' EXIT
failed=0
printf '%s\n' "${targets[@]}" | xargs -P "${STK_FUZZ_JOBS:-1}" -I{} ./run.sh --one {} "$programs" | tee "$printed" || failed=1
awk '/executions$/ { all += $2; targets++ } END { printf "%d executions of %d targets\n", all, targets }' "$printed"
exit "$failed"
