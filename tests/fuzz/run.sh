#!/usr/bin/env bash
# Runs fuzz targets with the address sanitizer, each with limits for a single run, and prints their executions. Installs cargo-fuzz, and a
# nightly toolchain, where they are missing.
#
#   tests/fuzz/run.sh [TARGET…]      without a name: all targets
#
#   STK_FUZZ_SECONDS=60   how long each target runs
#   STK_FUZZ_JOBS=1       how many targets run at once
#   STK_FUZZ_MEMORY=1024  MiB that a target may take; beside stk's own budget the address sanitizer keeps freed memory
#   STK_FUZZ_TIMEOUT=10   seconds that one input may take
#
# Corpora are kept in tests/fuzz/corpus, and inputs that failed in tests/fuzz/artifacts; git ignores both.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

if [ "${1:-}" = --one ]; then
  # Errors and warnings of stk about its input are not wanted: -close_fd_mask=3 closes stdout and stderr but for libFuzzer's own copy.
  log=$(mktemp) status=0
  "$3/$2" -max_total_time="${STK_FUZZ_SECONDS:-60}" -rss_limit_mb="${STK_FUZZ_MEMORY:-1024}" -malloc_limit_mb="${STK_FUZZ_MEMORY:-1024}" \
    -timeout="${STK_FUZZ_TIMEOUT:-10}" -close_fd_mask=3 -print_final_stats=1 -artifact_prefix="artifacts/$2/" "corpus/$2" >"$log" 2>&1 || status=1
  executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  printf '%s: %s executions\n' "$2" "${executions:-no}"
  [ $status = 0 ] || grep -a -A3 'SUMMARY\|panicked\|ERROR:' "$log" | head -20 || true
  rm -f "$log"
  exit $status
fi

command -v cargo-fuzz >/dev/null || cargo install -q --locked --version 0.13.1 cargo-fuzz
rustup toolchain list | grep -q '^nightly' || rustup toolchain install nightly --profile minimal
if [ $# -gt 0 ]; then
  targets=("$@")
  for target in "$@"; do cargo +nightly fuzz build "$target" >&2; done
else
  mapfile -t targets < <(sed -n 's|^path = "fuzz_targets/\(.*\)\.rs"|\1|p' Cargo.toml)
  cargo +nightly fuzz build >&2
fi
programs=$(ls -d "${CARGO_TARGET_DIR:-target}"/*/release | head -n 1)
for target in "${targets[@]}"; do mkdir -p "corpus/$target" "artifacts/$target"; done
printed=$(mktemp)
trap 'rm -f "$printed"' EXIT
failed=0
printf '%s\n' "${targets[@]}" | xargs -P "${STK_FUZZ_JOBS:-1}" -I{} ./run.sh --one {} "$programs" | tee "$printed" || failed=1
awk '/executions$/ { all += $2; targets++ } END { printf "%d executions of %d targets\n", all, targets }' "$printed"
exit "$failed"
