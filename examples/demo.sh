#!/usr/bin/env bash
# Records a Windows program and makes the page of the recording, from nothing but Rust and git on a fresh Debian 12.
#
#   examples/demo.sh                 sets up, builds, records examples/busy under Wine, makes the page
#   examples/demo.sh --no-record     makes the page of the recording that is kept in examples/traces; needs Rust alone
#   examples/demo.sh --dotnet        the same with examples/mixed: C# on CoreCLR 10.0.9 and native code in one stack
#   examples/demo.sh --keep          for maintainers: records, and replaces the kept recording and its PDBs (with --dotnet: that of mixed)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../tests/setup/setup.sh"

record=1 keep= dotnet= example=busy duration=5s rate=1000
for argument in "$@"; do
  case $argument in
    --no-record) record= ;;
    --dotnet) dotnet=1 example=mixed ;;
    --keep) keep=1 duration=8s rate=40 ;; # small: it goes into the repository; a rate that two processors reach
    -h | --help)
      sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    *)
      printf 'demo: unknown argument: %s (try --help)\n' "$argument" >&2
      exit 2
      ;;
  esac
done
if [ -z "$record" ] && [ -n "$keep" ]; then
  echo 'demo: --keep makes a recording, --no-record does not: give one of them' >&2
  exit 2
fi

say() { printf '== %s\n' "$*"; }
# quietly COMMAND…: runs it in this shell; shows its output only if it fails.
quietly() {
  "$@" </dev/null >>"$log" 2>&1 && return
  tail -n 40 "$log"
  printf 'demo: this failed: %s\n' "$*" >&2
  exit 1
}
# Shows a command as one would type it in the repository, then runs it.
run() {
  local shown="$(basename "$1") ${*:2}"
  printf '\n$ %s\n' "${shown//"$STK_ROOT/"/}"
  "$@"
}

traces=$STK_ROOT/examples/traces
out=$STK_TARGET_DIR/demo log=$STK_TARGET_DIR/demo/log
mkdir -p "$out"
: >"$log"

if [ -n "$record" ]; then
  say "installing Wine and compilers where they are missing (the log: ${log#"$PWD/"})"
  quietly setup_packages windows wine
  quietly setup_rust_target "$STK_WINDOWS_TARGET"
  quietly setup_wine

  say "building agent.dll and inject.exe for Windows, and examples/$example"
  quietly setup_build_recorder -q "$STK_WINDOWS_TARGET"
  quietly "$STK_ROOT/examples/$example/build.sh"
fi
if [ -n "${STK_BIN:-}" ]; then
  stk=$STK_BIN # tests/run.sh has built it
else
  say "building stk for this machine"
  stk=$STK_TARGET_DIR/release/stk features=(--no-default-features)
  # Parquet takes longer to build than all the rest. Where it is built already, it stays.
  case $("$stk" --version 2>/dev/null) in *parquet*) features=() ;; esac
  quietly cargo build -q --release --manifest-path "$STK_ROOT/Cargo.toml" -p stk "${features[@]}"
fi

# record_example FOLDER FILE: starts the example that was built in FOLDER, injects the agent for $duration, and leaves the trace in FILE.
record_example() {
  local stage=$WINEPREFIX/drive_c/stk bin log=$out/$example.log started pid status=0
  bin=$(setup_windows_bin "$STK_WINDOWS_TARGET")
  # Everything is run from C:\stk, so that a trace names no folder of this machine.
  rm -rf "$stage"
  mkdir -p "$stage"
  cp "$bin/agent.dll" "$bin/inject.exe" "$1"/*.{exe,dll,pdb} "$stage"
  setup_wine_session
  cd "$stage"
  "$STK_WINE" "$example.exe" 60 </dev/null >"$log" 2>&1 &
  started=$!
  trap 'kill "$started" 2>/dev/null || true' EXIT
  for _ in $(seq 150); do
    grep -q ready "$log" && break
    kill -0 "$started" 2>/dev/null || break
    sleep 0.2
  done
  # The process id that Windows programs see, which is another than Linux's.
  pid=$(sed -n 's/^pid \([0-9]*\).*/\1/p' "$log")
  if [ -z "$pid" ]; then
    cat "$log" >&2
    echo "demo: $example did not start under Wine" >&2
    return 1
  fi
  echo "$example runs as process $pid"
  # Where other programs keep all processors busy, a thread may not stop within the agent's time limit, and the agent gives up to be
  # safe: then once more.
  for _ in 1 2 3; do
    status=0
    rm -f demo.stk
    run "$STK_WINE" inject.exe --pid "$pid" agent.dll -o demo.stk --duration "$duration" --rate "$rate" </dev/null || status=$?
    [ "$status" != 0 ] || break
  done
  kill "$started" 2>/dev/null || true
  wait "$started" 2>/dev/null || true
  trap - EXIT
  cd "$STK_ROOT"
  [ "$status" = 0 ] || return "$status"
  mv "$stage/demo.stk" "$2"
}

if [ -n "$record" ]; then
  say "recording examples/$example under Wine for $duration"
  trace=$out/demo${dotnet:+-dotnet}.stk
  symbols=$STK_TARGET_DIR/examples/$example${dotnet:+/net10}
  record_example "$symbols" "$trace"
  if [ -n "$keep" ]; then
    mkdir -p "$traces"
    cp "$trace" "$traces/$example.stk"
    cp "$symbols"/*.pdb "$traces/"
    say "kept in examples/traces:"
    ls -l "$traces"
  fi
else
  trace=$traces/$example.stk
  symbols=$traces
  say "using the recording that is kept in examples/traces"
fi

page=$out/$(basename "$trace" .stk).html
run "$stk" stats "$trace" --group-by function --top 5 -y "$symbols"
run "$stk" -q report "$trace" -y "$symbols" -o "$page" --force
say "the page of the recording: open it in a browser"
printf '%s\n' "$page"
