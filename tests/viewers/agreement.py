"""Asks examples/recipes/duckdb.sql what `stk stats --json` says of the same trace: agreement.py STK TRACES FOLDER

TRACES: examples/traces; beside busy.stk, mixed.stk and a damaged copy of busy.stk, the traces of STK_TRACES are compared. The statements are the recipes'
own, without their limits.
"""

import json
import os
import pathlib
import re
import struct
import subprocess
import sys

import duckdb

stk, kept, folder = (pathlib.Path(argument).resolve() for argument in sys.argv[1:])
SQL = (kept.parent / "recipes/duckdb.sql").read_text(encoding="utf-8")
META, BLOCK_HEADER = 1, 104


def statement(comment, dataset):
    """The statement below a comment of the recipes, and the views that it reads."""
    views = re.findall(r"^CREATE VIEW .*?;$", SQL, re.MULTILINE)
    (found,) = re.findall(rf"^-- {re.escape(comment)}.*\n((?:^[^-\n].*\n)+)", SQL, re.MULTILINE)
    views, found = (text.replace("trace.parquet", str(dataset)) for text in ("\n".join(views), found))
    return views, re.sub(r"\bLIMIT \d+;", ";", found.strip())


def rows(comment, dataset):
    views, query = statement(comment, dataset)
    db = duckdb.connect()
    db.execute(views)
    return db.execute(query).fetchall()


def damaged(trace):
    """The trace with one byte of the META block in the middle changed."""
    data = bytearray(trace.read_bytes())
    starts = [at.start() - 8 for at in re.finditer(b"STKB", data)]
    metas = [at for at in starts if struct.unpack_from("<I", data, at)[0] == 0x184D2A51 and data[at + 48] == META]
    data[metas[len(metas) // 2] + BLOCK_HEADER] ^= 0xFF
    copy = folder / f"damaged-{trace.name}"
    copy.write_bytes(data)
    return copy


def run(*arguments):
    """What stk prints. 4: a damaged trace, as far as it could be read."""
    done = subprocess.run([stk, *arguments, "-y", kept, "--no-default-symbols"], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 4), (arguments, done.returncode, done.stderr)
    return done.stdout


def sums(pairs):
    """Nanoseconds by name, of those that have any."""
    found = {}
    for name, ns in pairs:
        found[name] = found.get(name, 0) + round(ns)
    return {name: ns for name, ns in found.items() if ns}


def check(trace):
    dataset = folder / f"agreement-{trace.stem}.parquet"
    run("convert", trace, "--to", "parquet", "-o", dataset)
    stats, wall = (json.loads(run("stats", trace, "--json", "--top", "0", *more))["traces"][0] for more in ([], ["--weight", "wall"]))
    of = lambda which, rows: sums(((row["module"], row["function"]), row[which]["weight_ns"]) for row in rows)
    own = sums(((module or "", name), 1e6 * ms) for module, name, ms in rows("Functions by their own CPU time", dataset) if name)
    total = sums(((module or "", name), 1e6 * ms) for module, name, ms in rows("Functions by total time", dataset) if name)
    expected_own, expected_total = of("self", stats["functions_by_self"]), of("total", wall["functions_by_total"])
    assert own == expected_own, (trace, set(own.items()) ^ set(expected_own.items()))
    assert total == expected_total, (trace, set(total.items()) ^ set(expected_total.items()))
    waits = {reason: (count, round(1e6 * ms), round(1e6 * longest)) for _, reason, count, ms, longest in rows("What threads wait for", dataset)}
    expected = {row["reason"]: (row["waits"], row["weight_ns"], row["longest_ns"]) for row in stats["waits"]}
    assert waits == expected, (trace, waits, expected)
    print(f"{trace.name}: {len(own)} functions by own time, {len(total)} by total time and {len(waits)} kinds of waits are those of stk stats")


named = [pathlib.Path(path) for path in os.environ.get("STK_TRACES", "").split(os.pathsep) if path]
for trace in [kept / "busy.stk", kept / "mixed.stk", damaged(kept / "busy.stk"), *named]:
    check(trace)
