#!/usr/bin/env bash
# Bytes per sample of a trace beside those of `perf record --call-graph dwarf,8192 -z` (Linux' own recorder of raw stacks) on the same program
# under Wine, one after the other, at the same rate.
#
#   benches/bytes.sh [--seconds N] [--only NAME,…]     default: 60 seconds of busy, cmake, node
#
# Counted are samples of threads that were not waiting, since perf takes no others: stk's samples of waiting threads cost next to nothing and
# would make its figure better. All bytes of either file are counted, stk's tables of modules included, which a trace carries once: "stacks"
# is without them. "pointers" is the trace after `stk redact`.
#
# Variables: STK_BIN, STK_WINDOWS_BIN, STK_FETCH_DIR (see tests/README.md); what is not set is built and fetched. Needs Debian's linux-perf.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=60 only=busy,cmake,node
while [ $# -gt 0 ]; do
  case $1 in
    --seconds) seconds=$2 ;;
    --only) only=$2 ;;
    *) sed -n '2,5s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2 && exit 2 ;;
  esac
  shift 2
done

source tests/setup/setup.sh
setup_packages test
setup_recorder
if [ -z "${STK_BIN:-}" ]; then
  cargo build -q --release -p stk --bin stk
  STK_BIN=$STK_TARGET_DIR/release/stk
fi
work=$(mktemp -d)
trap 'setup_wine_end; rm -rf "$work"' EXIT
life=$((3 * seconds + 60))

# start NAME: starts the program in the folder $work/NAME.
start() {
  mkdir -p "$work/$1"
  case $1 in
    busy)
      examples/busy/build.sh "$work/busy" >/dev/null
      set -- busy "$work/busy/busy.exe" "$life" ;;
    cmake) set -- cmake "$(tests/fetch.sh cmake)/cmake/data/bin/cmake.exe" -DROUNDS=100000000 -DDONE=never -P "$PWD/benches/overhead/work.cmake" ;;
    node) set -- node "$(tests/fetch.sh node)/bin/node.exe" "$PWD/benches/overhead/work.js" 100000000 never ;;
    *) echo "benches/bytes.sh: no program is called $1" >&2; exit 2 ;;
  esac
  (cd "$work/$1" && exec "$STK_WINE" "${@:2}" </dev/null >out 2>&1) &
}

# linux_pid NAME: the Linux process of the Windows program, which is the one with the most threads: others only wait for it.
linux_pid() {
  local pid
  for pid in $(pgrep -f "$1\\.exe"); do
    [ "$(readlink "/proc/$pid/cwd")" != "$work/$1" ] || echo "$(find "/proc/$pid/task" -mindepth 1 -maxdepth 1 | wc -l) $pid"
  done | sort -rn | awk 'NR == 1 { print $2 }'
}

# json FILE EXPRESSION: a value of a JSON file, which the expression calls `d`.
json() {
  python3 -c 'import json, sys; d = json.load(open(sys.argv[1])); print(eval(sys.argv[2]))' "$@"
}

setup_wine_session $((3 * life))
printf '%-6s %6s | %9s %10s %7s %7s %8s | %9s %10s %7s | %6s\n' program load 'stk' bytes 'a sample' stacks pointers 'perf -z' bytes 'a sample' ratio
for name in ${only//,/ }; do
  start "$name"
  sleep 5
  load=$(cut -d' ' -f1 /proc/loadavg)
  pid=$(linux_pid "$name")
  [ -n "$pid" ] || { echo "benches/bytes.sh: $name did not start:" >&2; tail -5 "$work/$name/out" >&2; exit 1; }
  (cd "$work" && "$STK_WINE" "$STK_WINDOWS_BIN/inject.exe" --name "$name.exe" -r 1000 -d "${seconds}s" -o "$name.stk" </dev/null >"$name.log" 2>&1) ||
    { cat "$work/$name.log" >&2; exit 1; }
  # perf gives up if a thread ends while it is being opened.
  for try in 1 2 3 4 5; do
    ! perf record -q -F 1000 -e cpu-clock --call-graph dwarf,8192 -z -o "$work/$name.data" -p "$pid" -- sleep "$seconds" >"$work/perf.log" 2>&1 || break
    [ $try != 5 ] || { cat "$work/perf.log" >&2; exit 1; }
  done
  pkill -f "$name\\.exe" || true

  "$STK_BIN" -q info --json "$work/$name.stk" >"$work/info.json"
  "$STK_BIN" -q stats --format json --state running,system-call,unknown "$work/$name.stk" >"$work/stats.json"
  "$STK_BIN" -q redact --force "$work/$name.stk" -o "$work/pointers.stk"
  samples=$(json "$work/stats.json" "d['traces'][0]['selection']['chosen']['samples']")
  bytes=$(stat -c %s "$work/$name.stk")
  tables=$(json "$work/info.json" "d['traces'][0]['blocks'].get('BLOB', {}).get('stored_bytes', 0)")
  pointers=$(stat -c %s "$work/pointers.stk")
  perf_samples=$(perf report -i "$work/$name.data" --stats 2>/dev/null | awk '/SAMPLE events:/ { print $3; exit }')
  perf_bytes=$(stat -c %s "$work/$name.data")
  awk -v n="$name" -v l="$load" -v s="$samples" -v b="$bytes" -v t="$tables" -v p="$pointers" -v ps="$perf_samples" -v pb="$perf_bytes" 'BEGIN {
    printf "%-6s %6s | %9d %10d %7.0f %7.0f %8.0f | %9d %10d %7.0f | %6.2f\n", n, l, s, b, b / s, (b - t) / s, p / s, ps, pb, pb / ps, (b / s) / (pb / ps)
  }'
done
