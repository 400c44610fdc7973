#!/usr/bin/env bash
# Reads outputs with the programs they are for: speedscope's own importer (npm speedscope, in node) and its page in Chromium, Go's pprof, the messages
# that Perfetto ships (PyPI), DuckDB (PyPI). Chromium, node and the rest are installed or fetched if they are missing.
#
#   tests/viewers/check.sh [PICTURES]
#
# PICTURES is a folder for pictures of the pages.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../setup/setup.sh"
outputs=$(mktemp -d)
trap 'rm -rf "$outputs"' EXIT
pictures=${1:-$outputs}

# Prints the path of Go's pprof, from Debian's package of Go.
pprof() {
  local folder=$here/../.cache/pprof work
  if ! [ -x "$folder/pprof" ]; then
    mkdir -p "$folder"
    work=$(mktemp -d "$folder/XXXXXX")
    setup_debian_download "$work" amd64 bookworm golang-1.19-go
    dpkg-deb --fsys-tarfile "$work"/golang-1.19-go_*.deb | tar -x -C "$work" ./usr/lib/go-1.19/pkg/tool/linux_amd64/pprof
    mv "$work/usr/lib/go-1.19/pkg/tool/linux_amd64/pprof" "$folder/pprof"
    rm -rf "$work"
  fi
  printf '%s\n' "$folder/pprof"
}

setup_packages test
(cd "$here/../.." && STK_OUTPUTS=$outputs cargo test --release -q "${STK_SELECTION[@]}" --test host outputs::others::)
speedscope=$("$here/../fetch.sh" speedscope)
node "$here/speedscope-import.mjs" "$speedscope" --check "$outputs"/busy.{speedscope,chrome}.json "$outputs/busy.folded"
duckdb=$("$here/../fetch.sh" duckdb)
PYTHONPATH=$duckdb python3 "$here/parquet_duckdb.py" "$outputs/busy.parquet"
PYTHONPATH=$duckdb python3 "$here/agreement.py" "${STK_BIN:-$STK_TARGET_DIR/release/stk}" "$here/../../examples/traces" "$outputs"
messages=$("$here/../fetch.sh" perfetto):$("$here/../fetch.sh" protobuf)
PYTHONPATH=$messages python3 "$here/figures.py" "$outputs" "$speedscope" "$(pprof)"
node "$here/pages.mjs" "$speedscope" "$("$here/../fetch.sh" playwright)" "$outputs/busy-cpu.speedscope.json" "$outputs/deep.speedscope.json" "$outputs/busy-cpu.flamegraph.svg" "$pictures" \
  "mix [busy.exe]" rotate_and_add plugin_b_work leaf_divide
