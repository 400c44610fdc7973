#!/usr/bin/env bash
# Runs release.sh twice from scratch, in two checkouts at different paths and with two names of cargo's home, compares every file, and looks at what
# the archives hold.
#
#   tests/reproducible.sh [--recorder]        --recorder: without stk.exe, which takes most of the time
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Not in /tmp, which may be small: a whole release takes 3 GB.
mkdir -p "${CARGO_TARGET_DIR:-$root/target}"
work=$(mktemp -d "${CARGO_TARGET_DIR:-$root/target}/reproducible.XXXXXX")
trap 'rm -rf "$work"' EXIT
home=${CARGO_HOME:-$HOME/.cargo}
places=(one another/deeper/place)
SOURCE_DATE_EPOCH=$(git -C "$root" log -1 --format=%ct)
# The copies are no checkouts: git would know no commit of them.
STK_COMMIT=$(git -C "$root" log -1 --abbrev=10 --format='%h, %cs')
# What is fetched once is the same for both.
export SOURCE_DATE_EPOCH STK_COMMIT STK_FETCH_DIR=${STK_FETCH_DIR:-$root/tests/.cache}

# Both copies before the first build: the files as they are, committed or not.
for place in "${places[@]}"; do
  mkdir -p "$work/$place"
  (cd "$root" && git ls-files -z --cached --others --exclude-standard | xargs -0 cp -a --parents -t "$work/$place")
  ln -s "$home" "$work/$place-cargo"
done
for place in "${places[@]}"; do
  (cd "$work/$place" && CARGO_HOME=$work/$place-cargo CARGO_TARGET_DIR=$work/$place/target ./release.sh "$@") >"$work/log" 2>&1 || {
    tail -n 30 "$work/log"
    printf 'reproducible: release.sh failed in %s\n' "$place"
    exit 1
  }
  mv "$work/$place/target/release-zip" "$work/${place%%/*}-zip"
  rm -rf "${work:?}/$place/target/release-build"
done
cat "$work/log"
if ! diff -rq "$work/one-zip" "$work/another-zip"; then
  printf 'reproducible: these files differ\n'
  exit 1
fi
python3 - "$work/one-zip" "$@" <<'PYTHON'
import hashlib
import sys
import zipfile
from pathlib import Path

folder, stk = Path(sys.argv[1]), [] if "--recorder" in sys.argv else ["stk.exe"]
both = "README.txt README.md CHANGELOG.md LICENSE LICENSE-APACHE LICENSE-MIT stk_agent.h agent.dll agent.lib inject.exe".split()
both += ["windows-check.ps1", "first_hour.exe", "first_hour32.exe", *stk]
for machine, more in ("x86_64", ["agent32.dll", "agent32.lib", "inject32.exe"]), ("aarch64", []):
    (path,) = folder.glob(f"stk-*-{machine}-pc-windows.zip")
    with zipfile.ZipFile(path) as archive:
        names = {Path(name).name for name in archive.namelist()}
        assert names == {*both, *more}, f"{path.name}: {sorted(names ^ {*both, *more})}"
        (readme,) = (name for name in archive.namelist() if name.endswith("README.txt"))
        lines = archive.read(readme).split(b"\n")[:-1]
        assert lines and all(line.endswith(b"\r") for line in lines) and b"Unblock-File" in archive.read(readme), f"{path.name}: README.txt"
sums = dict(reversed(line.split("  ")) for line in (folder / "SHA256SUMS").read_text().splitlines())
assert sums == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.zip")} and len(sums) == 3, "SHA256SUMS"
PYTHON
printf 'reproducible: %d files are the same\n' "$(find "$work/one-zip" -type f | wc -l)"
