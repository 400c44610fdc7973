"""Makes a dataset without recordings, with DuckDB: make.py FOLDER TRACES ROWS STACKS SCHEMA (schema/tables.json).

TRACES traces of 50 hosts in two builds, each of ROWS samples of eight threads; STACKS stacks of 25 frames that share their callers as calls do,
of 4,000 functions that have four places each. A trace's samples are of stacks drawn so that the first ones come more often; build 2 has one stack more often than build 1.
Nothing is random: each number is a hash of its place.
"""

import json
import os
import pathlib
import sys

import duckdb

folder, traces, rows, stacks = pathlib.Path(sys.argv[1]), *map(int, sys.argv[2:5])
schema = {table["name"]: table for table in json.loads(pathlib.Path(sys.argv[5]).read_text())["tables"]}
TYPES = {
    "int64": "BIGINT",
    "float64": "DOUBLE",
    "boolean": "BOOLEAN",
    "text": "VARCHAR",
    "timestamp in microseconds, UTC": "TIMESTAMPTZ",
    "list of int64": "BIGINT[]",
    "list of text": "VARCHAR[]",
    "list of struct {key: text, value: text}": "STRUCT(key VARCHAR, value VARCHAR)[]",
}
NOTHING = {"BIGINT": "0", "DOUBLE": "0", "BOOLEAN": "false", "VARCHAR": "''"}
START = 1_795_456_800_000_000
DEPTH, LOCATIONS = 25, 16_000

database = duckdb.connect()
database.execute("SET TimeZone = 'UTC'")
database.execute("SET preserve_insertion_order = true")


def columns(name, values):
    """All columns of a table: those given, of the others null or what stands for nothing."""
    unknown = values.keys() - {column["name"] for column in schema[name]["columns"]}
    assert not unknown, unknown

    def column(column):
        kind = TYPES[column["type"]]
        empty = "NULL" if column["nullable"] else NOTHING.get(kind, "[]")
        return f"CAST({values.get(column['name'], empty)} AS {kind}) AS {column['name']}"

    return ", ".join(map(column, schema[name]["columns"]))


def write(name, rows_from, values, row_group):
    where = folder / name / ("date=2026-11-23" if name not in ("stacks", "frames") else "")
    where.mkdir(parents=True)
    options = f"FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 3, ROW_GROUP_SIZE {row_group}"
    database.execute(f"COPY (SELECT {columns(name, values)} FROM {rows_from}) TO '{where}/0000.parquet' ({options})")


def share(*places):
    """A number from 0 to below 1."""
    return f"(hash({', '.join(places)}) >> 11)::DOUBLE / 9007199254740992"


# By process, host and trace, as stk sorts them.
database.execute(
    f"""CREATE TABLE traces AS
    SELECT *, row_number() OVER (ORDER BY host, trace_id) - 1 AS place FROM (
        SELECT md5(n::VARCHAR) AS trace_id, n, printf('lab-%02d', n % 50) AS host, (2 * n) // {traces} + 1 AS build FROM range({traces}) t(n))
    ORDER BY place"""
)
write(
    "traces",
    "traces",
    {
        "trace_id": "trace_id",
        "uuid": "trace_id",
        "content_digest": "trace_id",
        "content_bytes": "1000000",
        "tables_version": "3",
        "source": "printf('night/%04d.stk', n)",
        "host": "host",
        "process": "'server.exe'",
        "pid": "1000 + n",
        "arch": "'x64'",
        "stk_version": "'0.1.0'",
        "start_utc": f"make_timestamptz({START} + n * 10000000)",
        "duration_ns": f"{rows * 1_000_000}",
        "interval_ns": "1000000",
        "complete": "true",
        "samples": f"{rows}",
        "named_pct": "100",
        "labels": "[{'key': 'build', 'value': build::VARCHAR}]",
    },
    1 << 17,
)
waits = "list_value('SRW lock', 'single object', 'network', 'port')[1 + (hash(n, i, 4) % 4)::INT]"
draw = share("n", "i")
write(
    "samples",
    f"""(SELECT t.*, i, i * 8 // {rows} AS thread, CASE WHEN build = 2 AND hash(n, i, 2) % 100 < 3 THEN 777
            ELSE floor({stacks} * ({draw}) * ({draw}))::BIGINT END AS stack, hash(n, i, 3) % 10 = 0 AS waits
        FROM traces t, range({rows}) r(i) ORDER BY place, i)""",
    {
        "trace_id": "trace_id",
        "host": "host",
        "process": "'server.exe'",
        "pid": "1000 + n",
        "thread": "thread",
        "tid": "2000 + thread",
        "thread_name": "list_value('main', 'io', 'worker', 'worker', 'worker', 'worker', 'timer', '')[1 + thread::INT]",
        "ts_ns": f"(i % ({rows} // 8)) * 8000000",
        "ts_utc": f"make_timestamptz({START} + n * 10000000 + (i % ({rows} // 8)) * 8000)",
        "duration_ns": "1000000 + (hash(n, i, 5) % 20000)::BIGINT",
        "run_id": "i",
        "stack_id": "(hash(stack) >> 1)::BIGINT",
        "samples": "1",
        "state": "CASE WHEN waits THEN 'waiting' ELSE 'running' END",
        "wait_reason": f"CASE WHEN waits THEN {waits} END",
        "wait_class": "CASE WHEN waits THEN 'blocked' END",
        "cpu_ns": "CASE WHEN waits THEN 0 ELSE 900000 + (hash(n, i, 6) % 100000)::BIGINT END",
        "cpu_source": "'thread-times'",
        "depth": f"{DEPTH}",
        "proved": "true",
        "stop_reason": "'thread-start'",
    },
    1 << 19,
)
# Callers are shared: the frame at a depth depends on the first bits of the stack's number, more of them further in.
bits = max(stacks - 1, 1).bit_length()
location = f"(hash(d, s >> ({bits} * ({DEPTH} - 1 - d) // {DEPTH - 1})::INT) % {LOCATIONS})::BIGINT"
write(
    "stacks",
    f"""(SELECT (hash(s) >> 1)::BIGINT AS id, list((hash({location}, 7) >> 1)::BIGINT ORDER BY d) AS ids
        FROM range({stacks}) a(s), range({DEPTH}) b(d) GROUP BY s ORDER BY id)""",
    {
        "stack_id": "id",
        "walk_version": "1",
        "location_ids": "ids",
        "trusts": "list_transform(ids, lambda x: 'unwind-info')",
        "depth": f"{DEPTH}",
        "resolved_by": "'trace ' || md5('0')",
    },
    1 << 17,
)
write(
    "frames",
    f"(SELECT l, (hash(l, 7) >> 1)::BIGINT AS id FROM range({LOCATIONS}) r(l) ORDER BY id)",
    {
        "location_id": "id",
        "portable": "true",
        "function": "printf('server::module_%02d::function_%d', l // 4 % 40, l // 4)",
        "function_id": "l // 4",
        "file": "printf('src/module_%02d.cpp', l // 4 % 40)",
        "line": "l % 1000 + 1",
        "module": "CASE l // 4 % 40 WHEN 0 THEN 'server.exe' ELSE printf('module_%02d.dll', l // 4 % 40) END",
        "rva": "l * 16",
        "kind": "'native'",
        "category": "CASE WHEN l // 4 % 40 > 30 THEN 'system' ELSE 'user' END",
        "name_source": "'pdb'",
        "resolved_by": "'trace ' || md5('0')",
    },
    1 << 17,
)
for name in ("modules", "threads", "events", "gaps"):
    write(name, "traces WHERE false", {}, 1 << 17)
(folder / "_stk.json").write_text('{"dataset":"stk","tables_version":3}\n')
size = sum(os.path.getsize(path) for path in folder.rglob("*.parquet"))
pairs = database.execute(f"SELECT count(*) FROM (SELECT DISTINCT trace_id, stack_id FROM '{folder}/samples/*/*.parquet')").fetchone()[0]
print(f"{traces:,} traces, {traces * rows:,} samples, {stacks:,} stacks, {pairs:,} pairs of a trace and a stack, {size / 1e6:,.0f} MB")
