#!/usr/bin/env bash
# How many samples a second `perf script` and `samply import` take from a perf.data of a program 25 frames deep, 1,208 bytes of stack a
# sample (those of cli/examples/many_stacks.rs have 1,200). benches/speed.sh --peers calls it.
#
#   benches/peers/deep.sh FOLDER     FOLDER is for its files
#
# A program that is not on the PATH is left out, and that is said. Debian: linux-perf. samply: cargo install samply --version 0.13.1.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$1
command -v perf >/dev/null || { echo "peers: perf is not installed (Debian: linux-perf): left out"; exit 0; }
cc -O1 -g -fno-optimize-sibling-calls -fno-inline -o "$work/deep" "$here/deep.c"
perf record -q -F 10000 -e cpu-clock:u --call-graph dwarf,1208 -o "$work/perf.data" "$work/deep" 10 >/dev/null
python3 - "$work" <<'PYTHON'
import os, shutil, subprocess, sys, time
work = sys.argv[1]
data = os.path.join(work, "perf.data")

def timed(name, command, out):
    begun = time.monotonic()
    with open(out, "wb") as file:
        done = subprocess.run(command, stdout=file, stderr=subprocess.DEVNULL)
    seconds = time.monotonic() - begun
    if done.returncode != 0:
        sys.exit(f"{name} failed: {done.returncode}")
    return seconds

seconds = timed("perf script", ["perf", "script", "-i", data, "-F", "ip,sym"], os.path.join(work, "script.txt"))
stacks = open(os.path.join(work, "script.txt")).read().strip().split("\n\n")
frames = sum(len(stack.splitlines()) for stack in stacks) / len(stacks)
print(f"perf.data: {len(stacks):,} samples, {frames:.1f} frames each, {len(set(stacks)):,} distinct stacks, {os.path.getsize(data) / 1e6:.0f} MB")
print(f"perf script: {seconds:.2f} s, {len(stacks) / seconds:,.0f} samples/s")
if shutil.which("samply") is None:
    print("samply is not installed (cargo install samply --version 0.13.1): left out")
else:
    seconds = timed("samply", ["samply", "import", data, "--save-only", "--no-open", "-o", os.path.join(work, "samply.json")], os.devnull)
    print(f"samply import: {seconds:.2f} s, {len(stacks) / seconds:,.0f} samples/s")
PYTHON
