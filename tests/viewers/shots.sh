#!/usr/bin/env bash
# Makes the pictures of the page of `stk report` in docs/images, of the kept traces, by Debian's Chromium. Look at them before they are committed.
#
#   tests/viewers/shots.sh [FOLDER]      default: docs/images
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$here/../..
folder=${1:-$root/docs/images}
mkdir -p "$folder"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
stk=${STK_BIN:-${CARGO_TARGET_DIR:-$root/target}/release/stk}
traces=$root/examples/traces
"$stk" -q report "$traces/busy.stk" "$traces/mixed.stk" -o "$work/report.html"
node "$here/shots.mjs" "$("$here/../fetch.sh" playwright)" "$work/report.html" "$folder"
