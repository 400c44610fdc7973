#!/usr/bin/env bash
# The unwinder against all of the emulator's truth, over the binaries that it was made from (fetched by tests/fetch.sh).
#
#   tests/unwind-truth.sh FOLDER [--pieces]
#
#   FOLDER     holds x64_msvc_winpty_agent.states.zst and its like, as the emulator scripts write them
#   --pieces   also writes the parts that are kept in tests/data/unwind
#
# Fails if one state is wrong (x86: more than one in a hundred, or one that counts as proved).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
truth=${1:?usage: tests/unwind-truth.sh FOLDER [--pieces]}
node_pty=$("$here/fetch.sh" node-pty)/prebuilds
zmq=$("$here/fetch.sh" pyzmq)/zmq/backend/cython/_zmq.pyd
attach=$("$here/fetch.sh" debugpy)/debugpy/_vendored/pydevd/pydevd_attach_to_process/attach_x86
cargo build --release -q -p stk-tests --bin unwind-truth --manifest-path "$here/Cargo.toml"
runner=${CARGO_TARGET_DIR:-$here/../target}/release/unwind-truth

failed=0
# check LEAST IMAGE STATES [option…]: LEAST is the least share of right states, in thousandths.
check() {
  local least=$1 line
  shift
  line=$("$runner" "$@")
  python3 - "$least" "$2" "$line" <<'PY' || failed=1
import json, sys
least, name, score = int(sys.argv[1]), sys.argv[2].rsplit('/', 1)[-1], json.loads(sys.argv[3])
print(f"{name}: {score['right']} of {score['states']} right, {score['frames_per_second'] / 1e6:.1f} M frames/s")
guesses = {'none', 'leaf-outside', 'unwind-info-no-code', 'frame-data-search', 'frame-pointer', 'scan'}
proved_wrong = [trust for trust, count in score['by_trust'].items() if trust not in guesses and count['right'] != count['states']]
print('  by trust: ' + ', '.join(f"{trust} {count['right']} of {count['states']}" for trust, count in score['by_trust'].items()))
if score['right'] * 1000 < score['states'] * least or proved_wrong:
    print(json.dumps(score['wrong_examples'][:3], indent=1))
    sys.exit(1)
PY
}

for known in "" --trace-only; do
  # Without code but 64 bytes at the instruction pointer, as from a trace; x86 rests on the code.
  check 1000 "$node_pty/win32-x64/winpty-agent.exe" "$truth/x64_msvc_winpty_agent.states.zst" $known
  check 1000 "$node_pty/win32-x64/winpty-agent.exe" "$truth/x64_msvc_winpty_agent.chains.zst" $known
  check 1000 "$zmq" "$truth/x64_msvc_zmq.states.zst" $known
  check 1000 "$zmq" "$truth/x64_msvc_zmq.chains.zst" $known
  check 1000 "$node_pty/win32-arm64/winpty.dll" "$truth/arm64_msvc_winpty.states.zst" $known
done
check 990 "$attach.dll" "$truth/x86_msvc_attach.states.zst" --pdb "$attach.pdb"

if [ "${2:-}" = --pieces ]; then
  pieces=$here/data/unwind
  mkdir -p "$pieces"
  check 1000 "$node_pty/win32-x64/winpty-agent.exe" "$truth/x64_msvc_winpty_agent.states.zst" --piece "$pieces/x64-winpty-agent.piece"
  check 1000 "$zmq" "$truth/x64_msvc_zmq.chains.zst" --piece "$pieces/x64-zmq-chains.piece"
  check 1000 "$node_pty/win32-arm64/winpty.dll" "$truth/arm64_msvc_winpty.states.zst" --piece "$pieces/arm64-winpty.piece"
  check 1000 "$attach.dll" "$truth/x86_msvc_attach.states.zst" --pdb "$attach.pdb" --piece "$pieces/x86-attach.piece"
fi
exit $failed
