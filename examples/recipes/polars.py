"""Questions to a dataset that `stk convert *.stk --to parquet -o trace.parquet` wrote, for Polars (pip install polars)."""

import sys

import polars as pl

dataset = sys.argv[1] if len(sys.argv) > 1 else "trace.parquet"
# Tables of traces are in folders by date; stacks and frames are there once for all traces.
samples = pl.scan_parquet(f"{dataset}/samples/*/*.parquet", hive_partitioning=True)
stacks, frames = (pl.scan_parquet(f"{dataset}/{table}/*.parquet") for table in ("stacks", "frames"))

# Functions by their own CPU time: the innermost name of the innermost location.
by_self = (
    samples.join(stacks, on="stack_id")
    .with_columns(location_id=pl.col("location_ids").list.last())
    .join(frames.filter(pl.col("inline_index") == 0), on="location_id")
    .group_by("module", "function")
    .agg(self_ms=pl.col("cpu_ns").sum() / 1e6)
    .sort("self_ms", descending=True)
)
print(by_self.head(20).collect())

# Functions by total time; unique: recursion counts once.
by_total = (
    stacks.select("stack_id", location_id="location_ids")
    .explode("location_id")
    .join(frames, on="location_id")
    .unique(["stack_id", "module", "function"])
    .join(samples, on="stack_id")
    .group_by("module", "function")
    .agg(total_ms=pl.col("duration_ns").sum() / 1e6)
    .sort("total_ms", descending=True)
)
print(by_total.head(20).collect())
