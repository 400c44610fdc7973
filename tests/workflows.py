#!/usr/bin/env python3
"""Checks what no machine of this project runs: .github/workflows, the Containerfile, .gitattributes, windows-check.ps1.

    tests/workflows.py        needs PyYAML, tree-sitter and tree-sitter-powershell (tests/workflows.sh fetches them)

It prints one line for each fault; exit code 1 if there is one.
"""
import re
import subprocess
import sys
from pathlib import Path

import tree_sitter
import tree_sitter_powershell
import yaml

ROOT = Path(__file__).parent.parent
faults = []


def check(holds, what):
    if not holds:
        faults.append(what)


def text(path):
    return (ROOT / path).read_text(encoding="utf-8")


def workflow(name):
    return yaml.safe_load(text(f".github/workflows/{name}.yml"))


def steps(job):
    return {step.get("name", step.get("uses", "").split("@")[0]): step for step in job["steps"]}


# ---- every workflow

WRITES = {("release", "publish")}
for path in sorted((ROOT / ".github/workflows").glob("*.yml")):
    name, raw, parsed = path.stem, path.read_text(), workflow(path.stem)
    for use in re.findall(r"uses: (.*)", raw):
        check(re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", use), f"{name}: {use} is not pinned by a commit with its version")
    check(parsed.get("permissions") in ({}, {"contents": "read"}), f"{name}: permissions are not minimal")
    for job, content in parsed["jobs"].items():
        wanted = content.get("permissions", parsed["permissions"])
        allowed = {"contents": "write"} if (name, job) in WRITES else {"contents": "read"}
        check(wanted == allowed, f"{name}: the job {job} has {wanted}")
        check("container" not in content and "services" not in content, f"{name}: an image that no digest pins")
        check("timeout-minutes" in content, f"{name}: the job {job} has no limit of time")
        if (name, job) in WRITES:
            check(not any("checkout" in step.get("uses", "") for step in content["steps"]), f"{name}: {job} may write and has the sources")
    for line in raw.splitlines():
        if re.search(r"\bcargo (build|test|run|check)\b", line):
            check("--locked" in line, f"{name}: without --locked: {line.strip()}")

for line in re.findall(r"^FROM (.*)$", text("Containerfile"), re.M):
    check(re.fullmatch(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}( AS \w+)?", line), f"Containerfile: {line} has no digest")

# ---- windows.yml: a row of the expert's reading each

windows = workflow("windows")
job = windows["jobs"]["end-to-end"]
named = steps(job)
order = list(named)
run = {name: step.get("run", "") for name, step in named.items()}


def before(*names):
    places = [order.index(name) for name in names]
    check(places == sorted(places), f"windows: the steps are not in the order {', '.join(names)}")


before("Rust", "The agents", "The injects", "inject doctor", "Facts of the runner", "stk", "First hour, quick", "Programs to record", "End-to-end tests", "Report")
check(not any("cmake -S" in run[name] for name in order[: order.index("First hour, quick")]), "windows: cmake before the first hour")
for name in order[order.index("Rust") + 1 :]:
    check(re.search(r"!cancelled\(\)|always\(\)", str(named[name].get("if", ""))), f"windows: a failure before it skips '{name}'")
check(named["Report"]["if"] == "${{ always() }}", "windows: the report is not always uploaded")
kept = named["Programs and PDBs"]["with"]["path"].split()
check("bin" in kept and "target/examples/**/*.pdb" in kept, "windows: programs and PDBs are not kept")
for name in ("The agents", "The injects"):
    check(re.search(r'Copy-Item "target\\\$triple\\\w+\\(agent|inject)\.pdb" "bin\\\1\$suffix\.pdb"', run[name]), f"windows: '{name}' keeps no PDB of each flavour")
check("-p stk-agent\n" in run["The agents"] and "stk-inject" not in run["The agents"], "windows: the agents are not built apart")
for name, file in (("inject doctor", "doctor.json"), ("Versions", "versions.txt"), ("Facts of the runner", "facts.txt"), ("What Defender did", "defender.txt"), ("End-to-end tests", "tests.txt"), ("First hour, quick", "stk-windows-check-*.zip")):
    check(file in run[name], f"windows: '{name}' leaves no {file}")
check("--print link-args" in run["Versions"] and "cmake --version" in run["Versions"], "windows: versions and the i686 linker are not printed")
rows = job["strategy"]["matrix"]["include"]
check({row["defender"] for row in rows} == {"on", "off"} and {row["arch"] for row in rows} == {"x64", "arm64"}, "windows: Defender is not on in one job and off in the other")
check("arm64" in named["clang for ring"]["if"] and "GITHUB_PATH" in run["clang for ring"], "windows: arm64 has no clang for ring")
before("clang for ring", "stk")
check("actions/cache" in named["Cache"]["uses"] and "Cargo.lock" in named["Cache"]["with"]["key"], "windows: no cache")
dlls = re.search(r'-notin (.*) \}', run["The agents import kernel32 and ntdll alone"])
check(dlls and set(re.findall(r'"([^"]*)"', dlls[1])) == {"KERNEL32.dll", "ntdll.dll"}, "windows: the agents' whole import list is not asserted")
tests = run["End-to-end tests"]
check("--locked --release -p stk-tests --no-default-features" in tests, "windows: stk-tests with polars")
check("-p stk-tests --no-default-features --test e2e" in text("tests/lib.sh"), "tests/lib.sh: check_msvc does not check stk-tests")
modules = re.findall(r"(\w+)::", tests.split("--test-threads=1")[1])
check(len(modules) >= 7, "windows: the modules were not found")
for module in modules:
    source = text(f"tests/tests/e2e/{module}.rs")
    check("#![cfg(not(windows))]" not in source, f"windows: e2e::{module} is empty there")
    check("sha256sum" not in source, f"windows: e2e::{module} needs coreutils")
    for variable in set(re.findall(r'path\("(STK_\w+)"\)', source)):
        fallback = variable == "STK_FETCH_DIR" and source.count(variable) == source.count("cfg!(windows)") == 1
        check(f"$env:{variable} =" in tests or fallback, f"windows: e2e::{module} needs {variable}")

cmake, build = text("examples/busy/CMakeLists.txt"), text("examples/busy/build.sh")
condition = r'if\(NOT CMAKE_CXX_COMPILER_ARCHITECTURE_ID MATCHES "\^ARM64"\)\s+target_link_options\(\S+ PRIVATE /DYNAMICBASE:NO\)\s+endif'
check(cmake.count("/DYNAMICBASE:NO") == 1 and re.search(condition, cmake), "busy: /DYNAMICBASE:NO on arm64, where it cannot be")
bases = re.findall(r"plugin_base[= ](0x\w+)", build)
check(len(bases) == 2 and set(re.findall(r"plugin_base (0x\w+)", cmake)) == set(bases) and int(min(bases), 16) < 1 << 32, "busy: CMakeLists.txt and build.sh differ in /BASE")
check("CMAKE_SIZEOF_VOID_P EQUAL 4" in cmake and "/OPT:NOICF" in cmake, "busy: /BASE for Win32, /OPT:NOICF")

# ---- .gitattributes: texts have LF everywhere, and what is no text is marked

check("* text=auto eol=lf" in text(".gitattributes").splitlines(), ".gitattributes: no rule for line ends")
listed = subprocess.run(["git", "ls-files", "--eol", "-z"], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout.decode()
for entry in listed.split("\0"):
    if entry:
        facts, path = entry.split("\t", 1)
        index, _, attributes = facts.split(None, 2)
        # "i/-text" is what git itself takes for binary.
        check(index != "i/-text" or attributes.startswith("attr/-text"), f".gitattributes: {path} is binary and not marked")
        check(index not in ("i/crlf", "i/mixed"), f"{path} has CRLF in the repository")

# ---- windows-check.ps1

script = (ROOT / "tests/windows-check.ps1").read_bytes()
check(script.isascii(), "windows-check.ps1 is not ASCII")
POWERSHELL = tree_sitter.Parser(tree_sitter.Language(tree_sitter_powershell.language()))


def wrong(node):
    if node.type == "ERROR" or node.is_missing:
        yield node.start_point[0] + 1
    else:
        for child in node.children:
            yield from wrong(child)


def check_powershell(what, source):
    for line in wrong(POWERSHELL.parse(source).root_node):
        check(False, f"{what}, line {line}: PowerShell would not read this")


check_powershell("windows-check.ps1", script)


for name, step in named.items():
    if step.get("shell") in ("pwsh", "powershell"):
        check_powershell(f"windows, '{name}'", step["run"].encode())

script = script.decode()
parts = re.findall(r'^Part "(\w+)"', script, re.M)
header = script[script.index("#   -Only") : script.index("# It ends with")]
check(set(re.findall(r"\w+", header.split("parts:")[1])) == set(parts), "windows-check.ps1: -Only lists other parts than there are")
verdicts = script[script.index("$verdicts = ") : script.index("$lines = @()")]
lines = re.findall(r'^ +"[^"]+" += @\((.*)\)', verdicts, re.M)
check(len(lines) == 10, f"windows-check.ps1: the verdict has {len(lines)} lines")
judged = re.findall(r'"(\w+)"', " ".join(lines))
check(sorted(judged) == sorted([*parts, "crashes"]), "windows-check.ps1: the verdict leaves parts out, or has some twice")
for wanted in ("unload", "triggers", "flight", "rotate", "children", "marks", "top", "moveto", "environment"):
    check(wanted in parts, f"windows-check.ps1: no part {wanted}")
for part in ("flight", "rotate", "children", "triggers", "unload", "marks", "moveto"):
    body = script[script.index(f'Part "{part}"') :].split("\n}\n")[0]
    check("Verified" in body, f"windows-check.ps1: {part} does not ask stk verify")
modes = set(re.findall(r'"(churn|exit-[a-z]+|idle|saturate|peb-lock|pulse|dumps|throws|children)"', script))
program = text("tests/programs/first_hour.c")
for mode in modes:
    check(f'"{mode}"' in program or mode.startswith("exit-"), f"first_hour.c: no mode {mode}")
defined = set(re.findall(r"^function ([\w-]+)", script, re.M))
used = set(re.findall(r"[(=;{]\s*((?:Start|Wait|Invoke|Record|Inject|Was|Total)-\w+|Info|Said|Verified|Events|Fact|Ended|Crashes) ", script))
# PowerShell's own.
check(used - {"Start-Sleep", "Start-Process"} <= defined, f"windows-check.ps1: not defined: {used - defined}")
source = "".join(path.read_text() for path in (ROOT / "cli/inject/src/args").glob("*.rs"))
for option in set(re.findall(r'"--([a-z-]+)"', "\n".join(line for line in script.splitlines() if "Inject-Code" in line or "inject.exe" in line or "Record-Mode" in line))):
    field = re.search(rf"\b{option.replace('-', '_')}: |\"{option}\"|long = \"{option}\"", source)
    check(field or option in ("json", "pid"), f"windows-check.ps1: inject has no --{option}")
check("5MB" in script and "TotalMinutes -gt 9" in script and "Unblock-File" in script[:2000], "windows-check.ps1: limits of the zip and of the time, Unblock-File")

for fault in faults:
    print(fault)
print(f"workflows: {len(faults)} faults")
sys.exit(1 if faults else 0)
