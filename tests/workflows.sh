#!/usr/bin/env bash
# Runs tests/workflows.py with what it reads YAML and PowerShell with.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=
for name in pyyaml tree-sitter tree-sitter-powershell; do python=$python:$("$here/fetch.sh" "$name"); done
PYTHONPATH=${python#:} exec python3 "$here/workflows.py"
