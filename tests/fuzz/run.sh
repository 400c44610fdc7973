#!/usr/bin/env bash
# Runs fuzz targets, each with limits for a single run. Needs cargo-fuzz and a nightly toolchain.
#
#   tests/fuzz/run.sh [TARGET…]      without a name: all targets
#
#   STK_FUZZ_SECONDS=60   how long each target runs
#   STK_FUZZ_MEMORY=1024  MiB that a target may take; beside stk's own budget the address sanitizer keeps freed memory
#   STK_FUZZ_TIMEOUT=10   seconds that one input may take
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

[ $# -gt 0 ] || mapfile -t targets < <(sed -n 's|^path = "fuzz_targets/\(.*\)\.rs"|\1|p' Cargo.toml)
[ $# -eq 0 ] || targets=("$@")
failed=0
for target in "${targets[@]}"; do
  # Errors and warnings of stk about its input are not wanted: -close_fd_mask=1 closes stdout, 2 stderr but libFuzzer's own copy.
  log=$(mktemp)
  cargo +nightly fuzz run "$target" -- -max_total_time="${STK_FUZZ_SECONDS:-60}" -rss_limit_mb="${STK_FUZZ_MEMORY:-1024}" \
    -malloc_limit_mb="${STK_FUZZ_MEMORY:-1024}" -timeout="${STK_FUZZ_TIMEOUT:-10}" -close_fd_mask=3 -print_final_stats=1 >"$log" 2>&1 || failed=1
  executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  printf '%s: %s executions\n' "$target" "${executions:-no}"
  grep -a -A3 'SUMMARY\|panicked\|ERROR:' "$log" | head -20 || true
  rm -f "$log"
done
exit "$failed"
