#!/usr/bin/env bash
# Runs release.sh twice from scratch, in two checkouts at different paths and with two names of cargo's home, and compares every file.
#
#   tests/reproducible.sh [--recorder]        --recorder: without stk.exe, which takes most of the time
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Not in /tmp, which may be small: a whole release takes 3 GB.
mkdir -p "${CARGO_TARGET_DIR:-$root/target}"
work=$(mktemp -d "${CARGO_TARGET_DIR:-$root/target}/reproducible.XXXXXX")
trap 'rm -rf "$work"' EXIT
home=${CARGO_HOME:-$HOME/.cargo}
SOURCE_DATE_EPOCH=$(git -C "$root" log -1 --format=%ct)
# What is fetched once is the same for both.
export SOURCE_DATE_EPOCH STK_FETCH_DIR=${STK_FETCH_DIR:-$root/tests/.cache}

for name in one another/deeper/place; do
  mkdir -p "$work/$name"
  # The files as they are, committed or not.
  (cd "$root" && git ls-files -z --cached --others --exclude-standard | xargs -0 cp -a --parents -t "$work/$name")
  ln -s "$home" "$work/$name-cargo"
  (cd "$work/$name" && CARGO_HOME=$work/$name-cargo CARGO_TARGET_DIR=$work/$name/target ./release.sh "$@") >"$work/log" 2>&1 || {
    tail -n 30 "$work/log"
    printf 'reproducible: release.sh failed in %s\n' "$name"
    exit 1
  }
  mv "$work/$name/target/release-zip" "$work/${name%%/*}-zip"
  rm -rf "${work:?}/${name%%/*}"
done
if ! diff -rq "$work/one-zip" "$work/another-zip"; then
  printf 'reproducible: these files differ\n'
  exit 1
fi
cat "$work/one-zip/SHA256SUMS"
printf 'reproducible: %d files are the same\n' "$(find "$work/one-zip" -type f | wc -l)"
