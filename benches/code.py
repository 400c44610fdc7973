#!/usr/bin/env python3
"""Figures about the sources: lines, long functions, type names that occur twice, wide comments.

    benches/code.py [FOLDER]

FOLDER is a checkout, this one by default. Tests do not count: folders named tests, benches and
examples, files named tests.rs, *_tests.rs or testing.rs, and the items behind `#[cfg(test)]`. A
line counts unless it is blank.
"""
import collections
import os
import re
import sys

CRATES = {
    "agent": "agent",
    "stk-inject": "cli/inject",
    "stk-unwind": "cli/unwind",
    "stk": "cli/src",
    "stk-format": "format",
    "stk-schema": "schema",
}
FUNCTION = re.compile(r"^(\s*)(pub(\([^)]*\))? )?(const )?(unsafe )?(extern \"[^\"]*\" )?fn (\w+)")
TYPE = re.compile(r"^\s*(pub(\([^)]*\))? )?(struct|enum) (\w+)")


def sources(folder):
    """Paths of the product's source files in a folder."""
    for place, folders, files in os.walk(folder):
        folders[:] = [f for f in folders if f not in ("target", "tests", "benches", "examples")]
        for name in sorted(files):
            is_test = name in ("tests.rs", "testing.rs") or name.endswith("_tests.rs")
            if name.endswith(".rs") and not is_test:
                yield os.path.join(place, name)


def product_lines(path):
    """A file's lines without the items that only tests have."""
    with open(path, encoding="utf-8") as file:
        lines = file.read().split("\n")
    kept, at = [], 0
    while at < len(lines):
        if lines[at].strip() != "#[cfg(test)]":
            kept.append(lines[at])
            at += 1
            continue
        indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
        at += 1
        while at < len(lines) and not lines[at].rstrip().endswith(("{", ";")):
            at += 1
        if at < len(lines) and lines[at].rstrip().endswith("{"):
            while at < len(lines) and not lines[at].startswith(indent + "}"):
                at += 1
        at += 1
    return kept


def functions(lines):
    """Name and length in lines of each function, both braces included."""
    for number, line in enumerate(lines):
        head = FUNCTION.match(line)
        if not head:
            continue
        first = number
        while first < len(lines) and not lines[first].rstrip().endswith(("{", ";", "}")):
            first += 1
        last = first
        if first < len(lines) and lines[first].rstrip().endswith("{"):
            while last < len(lines) and not lines[last].startswith(head.group(1) + "}"):
                last += 1
        yield head.group(7), last - number + 1


def main():
    os.chdir(sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__) or ".", ".."))
    total, lengths, wide = 0, [], 0
    types = collections.defaultdict(set)
    for crate, folder in CRATES.items():
        lines_of_crate = 0
        for path in sources(folder):
            lines = product_lines(path)
            lines_of_crate += sum(1 for line in lines if line.strip())
            wide += sum(1 for line in lines if re.match(r"\s*//", line) and len(line) > 100)
            lengths += [(length, name, path) for name, length in functions(lines)]
            for line in lines:
                if found := TYPE.match(line):
                    types[crate, found.group(4)].add(path)
        print(f"{crate:12} {lines_of_crate:7} lines")
        total += lines_of_crate
    long = sorted((f for f in lengths if f[0] > 60), reverse=True)
    twice = {key: paths for key, paths in types.items() if len(paths) > 1}
    print(f"{'all':12} {total:7} lines")
    print(f"functions    {len(lengths):7}, {len(long)} of more than 60 lines ({100 * len(long) / len(lengths):.2f} %)")
    for length, name, path in long:
        print(f"             {length:7} {path}: {name}")
    print(f"types        {len(types):7}, {len(twice)} defined twice in a crate ({100 * len(twice) / len(types):.1f} %)")
    for (crate, name), paths in sorted(twice.items()):
        print(f"             {crate}: {name}: {', '.join(sorted(paths))}")
    print(f"comments     {wide:7} lines over 100 columns")


main()
