"""Converts traces to one dataset on a Spark cluster: `stk batch` runs on the executors, each with a part of the traces.

    spark-submit examples/spark/convert.py --stk /opt/stk/stk --out /shared/lab.parquet --parts 200 /shared/night.txt -- -y /shared/symbols

The traces (a list of paths, a folder or a pattern, as stk batch takes them), the symbols and OUT lie on a file system that driver and executors
share, under the same paths; --stk names the program there. What is behind `--` are further options of stk batch. Spark has no part in the data:
it says which executor takes which part, and takes it again elsewhere if the executor is lost; what was converted before is passed over. At the end
the driver makes the tables, once. The exit code is 4 if traces were damaged or failed (above --max-bad), as that of stk batch.
"""

import argparse
import json
import subprocess
import sys

DONE, BAD = 0, 4


def batch(stk, inputs, out, options, *more):
    """Runs stk batch, and returns its exit code and what it said."""
    command = [stk, "batch", *inputs, "--to", "parquet", "-o", out, *options, *more]
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace")
    if ran.returncode not in (DONE, BAD):
        # Spark tries the task again, elsewhere.
        raise RuntimeError(f"{' '.join(command)}: exit code {ran.returncode}: {ran.stderr}")
    return ran.returncode, ran.stderr


def convert_part(stk, inputs, out, options, part, parts):
    """Converts a part of the traces, with one thread: Spark runs one task a core. Returns its log, a dict a trace."""
    # How many traces may be bad is a question to all of them: the driver's call asks it.
    batch(stk, inputs, out, options, "--shard", f"{part}/{parts}", "-j", "1", "--max-bad", "100%")
    with open(f"{out}/_batch.{part}-of-{parts}.jsonl", encoding="utf-8") as log:
        return [json.loads(line) for line in log]


def convert(spark, stk, inputs, out, parts, options=()):
    """Converts the traces on the cluster, then makes the tables here. Returns the logs of all parts and the exit code."""
    options = list(options)
    numbers = spark.sparkContext.parallelize(range(1, parts + 1), parts)
    logs = numbers.flatMap(lambda part: convert_part(stk, inputs, out, options, part, parts)).collect()
    # Everything is there: this passes over it, counts what is bad, and makes the tables.
    code, said = batch(stk, inputs, out, options)
    print(said, end="", file=sys.stderr)
    return logs, code


def main():
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    own, options = sys.argv[1:at], sys.argv[at + 1 :]
    parser = argparse.ArgumentParser(description="Converts traces to one dataset on a Spark cluster.")
    parser.add_argument("--stk", default="stk", help="the program, as executors find it")
    parser.add_argument("--out", required=True, help="the dataset")
    parser.add_argument("--parts", type=int, default=8, help="number of tasks; several for each core of the cluster")
    parser.add_argument("inputs", nargs="+", help="a list of paths (.txt), folders, patterns")
    arguments = parser.parse_args(own)
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName("stk batch").getOrCreate()
    logs, code = convert(spark, arguments.stk, arguments.inputs, arguments.out, arguments.parts, options)
    counts = {}
    for line in logs:
        counts[line["status"]] = counts.get(line["status"], 0) + 1
    print(json.dumps(counts, sort_keys=True))
    spark.stop()
    sys.exit(code)


if __name__ == "__main__":
    main()
