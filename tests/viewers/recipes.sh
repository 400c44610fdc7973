#!/usr/bin/env bash
# Runs examples/spark on two local workers over a night of traces, examples/recipes' SLURM and Kubernetes scripts beside it, and asks the questions of
# examples/recipes with Spark, DuckDB and Polars: they must agree. PySpark, DuckDB, Polars and PyYAML come from PyPI, Java from Debian.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$here/../..
source "$here/../setup/setup.sh"
outputs=$(mktemp -d)
trap 'rm -rf "$outputs"' EXIT

setup_packages test java
selection=(--release -q "${STK_SELECTION[@]}")
(cd "$root" && STK_OUTPUTS=$outputs cargo test "${selection[@]}" --test host outputs::others::every_format_can_be_made_of_a_night)
# `cargo build` would select other features than `cargo test` and compile stk again: take the program that tests/run.sh has built.
stk=${STK_BIN:-$STK_TARGET_DIR/release/stk}
[ -x "$stk" ] || (cd "$root" && cargo test "${selection[@]}" --no-run)
pyspark=$("$here/../fetch.sh" pyspark)
python=$pyspark
for archive in "$pyspark"/lib/py4j-*.zip; do python=$python:$archive; done
for name in duckdb polars polars-runtime pyyaml; do python=$python:$("$here/../fetch.sh" "$name"); done
# The archive of PyPI has Spark's programs in deps. A program that ends so soon is not worth the JVM's slower compiler.
export JAVA_TOOL_OPTIONS='-XX:TieredStopAtLevel=1 -XX:+UseSerialGC'
SPARK_HOME=$pyspark/deps PYSPARK_PYTHON=python3 PYTHONPATH=$python SPARK_LOCAL_IP=127.0.0.1 PYTHONDONTWRITEBYTECODE=1 \
  python3 "$here/recipes.py" "$stk" "$outputs/night" "$root"
