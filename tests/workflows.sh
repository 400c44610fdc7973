#!/usr/bin/env bash
# Runs tests/workflows.py with what it reads YAML and PowerShell with, and packs the packages that can be published.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=
for name in pyyaml tree-sitter tree-sitter-powershell; do python=$python:$("$here/fetch.sh" "$name"); done
PYTHONPATH=${python#:} python3 "$here/workflows.py"
# Without --no-verify it compiles each package from its archive, which takes minutes: before a release.
packages=(-p stk-schema -p stk-unwind -p stk-format -p stk-base -p stk-symbols)
packed() { said=$(cargo publish --dry-run --allow-dirty --no-verify --manifest-path "$here/../Cargo.toml" "${packages[@]}" 2>&1); }
# cargo reads the registry's index for it, which may fail by chance.
if ! packed; then
  printf '%s\nworkflows: packing failed, and is tried once more\n' "$said"
  packed || { printf '%s\n' "$said" && exit 1; }
fi
printf 'packages to publish: %s\n' "$(grep -c '^ *Packaged ' <<<"$said")"
