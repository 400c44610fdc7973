#!/usr/bin/env bash
# Reads outputs with the programs they are for: speedscope's own importer (npm speedscope, in node) and DuckDB (PyPI).
#
#   tests/viewers/check.sh
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
outputs=$(mktemp -d)
trap 'rm -rf "$outputs"' EXIT

# The selection of tests/run.sh: another one would select other features and compile polars again.
(cd "$here/../.." && STK_OUTPUTS=$outputs cargo test --release -q --workspace --exclude stk-benches --test outputs every_format)
speedscope=$("$here/../fetch.sh" speedscope)
node "$here/speedscope-import.mjs" "$speedscope" --check "$outputs"/*.json "$outputs"/*.folded
duckdb=$("$here/../fetch.sh" duckdb)
PYTHONPATH=$duckdb python3 "$here/parquet_duckdb.py" "$outputs/busy.parquet" "$here/../../examples/recipes/duckdb.sql"
