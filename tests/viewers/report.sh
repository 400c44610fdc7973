#!/usr/bin/env bash
# Drives the page of `stk report` in headless Chromium (Debian's), by playwright-core (npm).
#
#   tests/viewers/report.sh [FOLDER]     FOLDER: where the pages and the screenshots are left
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$here/../..
source "$here/../setup/setup.sh"
if [ $# = 1 ]; then
  outputs=$(mkdir -p "$1" && cd "$1" && pwd)
else
  outputs=$(mktemp -d)
  trap 'rm -rf "$outputs"' EXIT
fi

selection=(--release -q "${STK_SELECTION[@]}")
(cd "$root" && STK_OUTPUTS=$outputs cargo test "${selection[@]}" --test host outputs::report::hostile_names_of_a_report)
# `cargo build` would select other features than `cargo test` and compile stk again: take the program that tests/run.sh has built.
stk=${STK_BIN:-${CARGO_TARGET_DIR:-$root/target}/release/stk}
[ -x "$stk" ] || (cd "$root" && cargo test "${selection[@]}" --no-run)
node "$here/report.mjs" "$("$here/../fetch.sh" playwright)" "$stk" "$root/examples/traces" "$outputs"
