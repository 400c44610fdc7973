"""Questions to a dataset that `stk convert` or `stk batch` wrote, for Polars (pip install polars): python3 polars.py [DATASET]

The same questions as in duckdb.sql and spark.sql. QUESTIONS has them by name; each is a lazy frame, of which nothing is read before collect().
"""

import sys

import polars as pl


def questions(dataset):
    # Tables of traces are in folders by date; stacks and frames are there once for all traces.
    def of_traces(table):
        return pl.scan_parquet(f"{dataset}/{table}/*/*.parquet", hive_partitioning=True)

    samples, stacks, frames = of_traces("samples"), pl.scan_parquet(f"{dataset}/stacks/*.parquet"), pl.scan_parquet(f"{dataset}/frames/*.parquet")
    # A trace for which a longer file of the same recording stands has a row here and no other.
    traces = of_traces("traces").filter(pl.col("superseded_by").is_null())
    builds = (
        traces.select("trace_id", label="labels")
        .explode("label")
        .select("trace_id", key=pl.col("label").struct.field("key"), build=pl.col("label").struct.field("value"))
        .filter(pl.col("key") == "build")
        .drop("key")
    )
    functions = frames.filter(pl.col("inline_index") == 0).select("location_id", "module", "function", "function_key", "category")
    # The innermost name of the innermost location.
    leaves = stacks.select("stack_id", location_id=pl.col("location_ids").list.last()).join(functions, on="location_id")
    milliseconds = pl.col("duration_ns").sum() / 1e6

    # By their own CPU time, and on how many machines they were seen.
    top = (
        samples.join(leaves, on="stack_id")
        .group_by("module", "function")
        .agg(hosts=pl.col("host").n_unique(), self_ms=pl.col("cpu_ns").sum() / 1e6)
        .sort(["self_ms", "module", "function"], descending=[True, False, False])
    )

    # The time of a function's own that did not wait, for each trace of a build (`inject --label build=41`), in build 42 beside build 41.
    def of_build(build, name):
        number = builds.filter(pl.col("build") == build).select(traces_of_build=pl.len())
        return (
            samples.filter(pl.col("state") != "waiting")
            .join(builds.filter(pl.col("build") == build), on="trace_id")
            .join(leaves.filter(pl.col("function_key").is_not_null()), on="stack_id")
            .group_by("function_key")
            .agg(module=pl.col("module").min(), function=pl.col("function").min(), ms=milliseconds)
            .join(number, how="cross")
            .select("function_key", "module", "function", (pl.col("ms") / pl.col("traces_of_build")).alias(name))
        )

    before, after = of_build("41", "before_ms"), of_build("42", "after_ms")
    regressions = (
        after.join(before.select("function_key", "before_ms"), on="function_key")
        .filter((pl.col("after_ms") > 1.1 * pl.col("before_ms")) & (pl.col("after_ms") >= 1))
        .with_columns(ratio=pl.col("after_ms") / pl.col("before_ms"), more=pl.col("after_ms") - pl.col("before_ms"))
        .sort(["more", "module", "function"], descending=[True, False, False])
        .select("module", "function", "before_ms", "after_ms", "ratio")
    )

    # Stacks that one trace alone has, the longest first, by the function in which they end.
    rare = (
        samples.join(leaves, on="stack_id")
        .group_by("stack_id")
        .agg(
            pl.col("module", "function", "process").min(),
            ms=milliseconds,
            traces=pl.col("trace_id").n_unique(),
        )
        .filter(pl.col("traces") == 1)
        .drop("traces")
        .sort(["ms", "stack_id"], descending=[True, False])
    )

    # How long a program runs there without waiting, beside all machines that ran it with the same label `build`.
    slowest = (
        samples.filter(pl.col("state") != "waiting")
        .join(builds, on="trace_id", how="left")
        .group_by("host", "process", "build", "trace_id")
        .agg(ms=milliseconds)
        .with_columns(of_all=pl.col("ms").median().over("process", "build"))
        .group_by("host")
        .agg(traces=pl.len(), times_the_median=(pl.col("ms") / pl.col("of_all")).mean())
        .sort(["times_the_median", "host"], descending=[True, False])
    )

    # What threads are blocked by, and which of the user's functions waits: the innermost one. Rows end with each second: run_id joins them.
    users = (
        stacks.select("stack_id", location_id="location_ids", depth=pl.int_ranges(pl.col("location_ids").list.len()))
        .explode("location_id", "depth")
        .join(functions.filter(pl.col("category") == "user"), on="location_id")
        .group_by("stack_id")
        .agg(pl.col("module", "function").sort_by("depth").last())
    )
    waits = (
        samples.filter(pl.col("wait_class") != "idle")
        .join(users, on="stack_id", how="left")
        .group_by("wait_reason", "module", "function")
        .agg(waits=pl.struct("trace_id", "run_id").n_unique(), waiting_ms=milliseconds)
        .sort(["waiting_ms", "wait_reason", "module", "function"], descending=[True, False, False, False])
    )

    return {
        "top functions over all hosts": top,
        "regressions between builds": regressions,
        "rare stacks": rare,
        "slowest machines": slowest,
        "waits by lock": waits,
    }


if __name__ == "__main__":
    for name, rows in questions(sys.argv[1] if len(sys.argv) > 1 else "trace.parquet").items():
        print(f"{name}\n{rows.head(20).collect()}")
