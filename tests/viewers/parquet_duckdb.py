"""Reads the dataset of tests/tests/host/outputs/profiles.rs (`busy`) with DuckDB."""

import datetime
import sys

import duckdb

(dataset,) = sys.argv[1:]
db = duckdb.connect()
db.execute("SET TimeZone = 'UTC'")


def expect(query, *rows):
    found = db.execute(query.replace("@", dataset)).fetchall()
    assert found == list(rows), f"{query}\n  gives {found}\n  instead of {list(rows)}"


types = dict(db.execute(f"SELECT column_name, column_type FROM (DESCRIBE SELECT * FROM '{dataset}/samples/*/*.parquet')").fetchall())
assert types["stack_id"] == "BIGINT" and types["ts_utc"] == "TIMESTAMP WITH TIME ZONE", types
assert types["state"] == "VARCHAR" and types["cpu_ns"] == "BIGINT" and types["frames"].startswith("STRUCT("), types

expect("SELECT count(*), sum(samples), sum(duration_ns) FROM '@/samples/*/*.parquet'", (9, 12, 12_000_000))
expect("SELECT depth, len(location_ids) FROM '@/stacks/*.parquet' WHERE depth = 1", (1, 1))
expect("SELECT strftime(start_utc, '%Y-%m-%dT%H:%M:%S.%f') FROM '@/traces/*/*.parquet'", ("2023-11-14T22:13:20.123456",))
expect(
    "SELECT state, wait_reason, wait_class, sum(duration_ns), sum(cpu_ns) FROM '@/samples/*/*.parquet' GROUP BY ALL ORDER BY ALL",
    ("running", None, None, 7_000_000, 6_300_000),
    ("unknown", None, None, 2_000_000, 0),
    ("waiting", "sleep", "idle", 3_000_000, 0),
)
expect("SELECT value FROM parquet_kv_metadata('@/traces/*/*.parquet') WHERE key = 'stk.tables_version'", (b"3",))
expect("SELECT DISTINCT date FROM '@/samples/*/*.parquet'", (datetime.date(2023, 11, 14),))
expect("SELECT count(*), count(DISTINCT stack_id) FROM '@/stacks/*.parquet'", *db.execute(f"SELECT count(DISTINCT stack_id), count(DISTINCT stack_id) FROM '{dataset}/samples/*/*.parquet'").fetchall())
# Self time by function through the ids, innermost name of the innermost location.
by_ids = """
    SELECT f.function, f.module, sum(s.duration_ns) // 1000000 AS ms
    FROM '@/samples/*/*.parquet' s
    JOIN '@/stacks/*.parquet' k USING (stack_id)
    JOIN '@/frames/*.parquet' f ON f.location_id = k.location_ids[-1] AND f.inline_index = 0
    GROUP BY ALL ORDER BY ms DESC, f.function, f.module"""
self_times = [
    ("fib", "busy.exe", 3), ("wait", "busy.exe", 3), ("plugin_run", "plugin_a.dll", 2), ("plugin_run", "plugin_ä.dll", 2),
    ("mix", "busy.exe", 1),
]
expect(by_ids, *self_times)
# The same from the names in place.
expect(
    """SELECT frames[-1].function AS f, frames[-1].module AS m, sum(duration_ns) // 1000000 AS ms
       FROM '@/samples/*/*.parquet' WHERE len(frames) > 0 GROUP BY ALL ORDER BY ms DESC, f, m""",
    *self_times,
)

print(f"duckdb {duckdb.__version__}: the dataset is as expected")
