"""Runs and compares the batches of benches/batch.sh: run.py STK FOLDER SYMBOLS SEED. FOLDER has night/ and night.tsv."""

import hashlib
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import threading
import time

import duckdb

stk, work, symbols, seed = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
night = work / "night"
problems = []


class Run:
    """A process of stk, looked at 50 times a second."""

    def __init__(self, arguments):
        self.begun = time.monotonic()
        silent = [(os.POSIX_SPAWN_OPEN, n, os.devnull, os.O_WRONLY, 0) for n in (1, 2)]
        self.pid = os.posix_spawn(stk, [stk, "-q", *map(str, arguments)], os.environ, file_actions=silent)
        self.ready, self.looks, self.own = 0, 0, 0
        self.ended = threading.Event()
        self.watch = threading.Thread(target=self.look)
        self.watch.start()

    def look(self):
        while not self.ended.wait(0.02):
            try:
                # Waiting for the disk is not counted as ready.
                states = [task_state(f"/proc/{self.pid}/task/{task}/stat") for task in os.listdir(f"/proc/{self.pid}/task")]
                status = dict(line.split(":", 1) for line in open(f"/proc/{self.pid}/status"))
            except (OSError, ValueError):
                continue
            if "RssAnon" in status:
                self.own = max(self.own, int(status["RssAnon"].split()[0]) / 1024)
                self.ready += min(states.count("R"), 2)
                self.looks += 1

    def is_running(self):
        with open(f"/proc/{self.pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)

    def end(self, name, expected=(0,)):
        _, status, used = os.wait4(self.pid, 0)
        self.wall = time.monotonic() - self.begun
        self.ended.set()
        self.watch.join()
        self.cpu = used.ru_utime + used.ru_stime
        self.code = os.waitstatus_to_exitcode(status)
        if self.code not in expected:
            problems.append(f"{name}: exit code {self.code}")
        ready = self.ready / max(self.looks, 1) / 2
        print(
            f"{name:<34}{self.wall:>8.1f}{self.cpu:>8.1f}{self.cpu / self.wall / 2:>8.0%}{ready:>8.0%}"
            f"{used.ru_maxrss / 1024:>8.0f}{self.own:>8.0f}{os.getloadavg()[0]:>7.1f}",
            flush=True,
        )
        return self


def task_state(path):
    with open(path) as file:
        return file.read().rpartition(")")[2].split()[0]


def batch(traces, out, jobs, *more):
    files = ["batch", traces, "--to", "parquet", "-o", out, "-j", jobs, "--max-bad", "100%", "-y", symbols, "--no-default-symbols"]
    return [*files, "--symbol-cache", work / "cache", *more]


def tree(folder):
    """Digests of all files of a dataset but the logs and what is known of the traces' files."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("_batch") and path.name != "files.json")
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def compare(name, expected, found):
    differing = sorted(path for path in expected.keys() | found.keys() if expected.get(path) != found.get(path))
    print(f"{name}: {len(found):,} files, {'the same bytes' if not differing else f'{len(differing)} DIFFER: {differing[:5]}'}")
    if differing:
        problems.append(f"{name}: {len(differing)} files differ")


def parts(out):
    """How many traces are converted."""
    return sum(1 for _ in out.glob("_stk/parts/*/*/part.json"))


def killed(out, traces):
    """Three runs that are killed when a random number of traces is converted, one that is killed while it makes tables, and one that ends."""
    draw = random.Random(seed)
    for wanted in [*sorted(draw.sample(range(1, traces), 3)), traces]:
        run = Run(batch(night, out, 2, "--resume"))
        while run.is_running() and parts(out) < wanted:
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 0.2))
        run.kill()
        # A small dataset may be whole before the last kill.
        ends = (-signal.SIGKILL,) if wanted < traces else (-signal.SIGKILL, 0)
        run.end(f"-j 2, killed at {wanted:,} traces", ends)
    Run(batch(night, out, 2, "--resume")).end("-j 2, resumed to the end")


def stats_samples(path):
    """The samples that stk stats counts in a dataset, or in all traces of a folder."""
    output = subprocess.run([stk, "-q", "stats", "--json", "--top", "1", str(path)], stdout=subprocess.PIPE)
    found = json.loads(output.stdout)
    return found["sum"]["samples"] if "sum" in found else sum(trace["totals"]["samples"] for trace in found["traces"])


def count(out):
    """Compares what was written into the traces with the log, the dataset's tables and stk stats."""
    made = [line.split("\t") for line in (work / "night.tsv").read_text().splitlines()]
    log = [json.loads(line) for line in (out / "_batch.jsonl").read_text().splitlines()]
    by_name = {pathlib.Path(line["trace"]).name: line for line in log}
    connection = duckdb.connect()
    rows = connection.execute(
        f"""SELECT t.trace_id, t.uuid, t.samples, coalesce(s.samples, 0) FROM '{out}/traces/*/*.parquet' t
            LEFT JOIN (SELECT trace_id, sum(samples) AS samples FROM '{out}/samples/*/*.parquet' GROUP BY 1) s USING (trace_id)
            WHERE t.superseded_by IS NULL"""
    ).fetchall()
    ids, samples = connection.execute(f"SELECT count(DISTINCT trace_id), sum(samples) FROM '{out}/samples/*/*.parquet'").fetchone()
    written = {uuid: (name, fate, int(number)) for name, fate, uuid, number in made}
    for trace_id, uuid, of_traces, of_samples in rows:
        name, fate, number = written[uuid.replace("-", "")]
        reported = by_name[name]["samples"]
        exact = fate != "whole" or of_samples == number
        if not (of_traces == of_samples == reported and of_samples <= number and exact):
            problems.append(f"{name} ({fate}): {number} written, {reported} in the log, {of_traces} in traces, {of_samples} in samples")
    statuses = {}
    for name, fate, _, _ in made:
        of = (fate, by_name[name]["status"] + ("" if by_name[name]["complete"] else ", not finished"))
        statuses[of] = statuses.get(of, 0) + 1
    of_log, of_dataset, of_files = sum(line["samples"] or 0 for line in log), stats_samples(out), stats_samples(night)
    print(f"written into the traces: {sum(int(line[3]) for line in made):,} samples, of which damage and cuts leave fewer")
    print(f"DuckDB: {ids:,} trace ids in samples, {len(rows):,} in traces, {int(samples):,} samples")
    print(f"samples in the log {of_log:,}, stk stats of the dataset {of_dataset:,}, stk stats of the traces {of_files:,}")
    for (fate, status), number in sorted(statuses.items()):
        print(f"  {number:>6,} {fate}: {status}")
    if not (ids == len(rows) == len(made) == len(log)) or not (samples == of_log == of_dataset == of_files):
        problems.append("trace ids or samples are missing, or too many")


def main():
    traces = sorted(night.glob("*.stk"))
    for name in ("one", "two", "killed", "tenth"):
        shutil.rmtree(work / f"{name}.parquet", ignore_errors=True)
    size = sum(path.stat().st_size for path in traces)
    print(f"{len(traces):,} traces, {size / 1e6:,.0f} MB")
    print(f"{'':<34}{'wall s':>8}{'CPU s':>8}{'share':>8}{'ready':>8}{'MiB':>8}{'of own':>8}{'load':>7}")
    tenth = work / "tenth.txt"
    tenth.write_text("".join(f"{path}\n" for path in traces[: max(len(traces) // 10, 1)]))
    one, two = work / "one.parquet", work / "two.parquet"
    Run(batch(tenth, work / "tenth.parquet", 2)).end("-j 2, a tenth of the traces")
    Run(batch(night, two, 2)).end("-j 2")
    Run(batch(night, one, 1)).end("-j 1")
    killed(work / "killed.parquet", len(traces))
    Run(["stats", two]).end("stk stats of the dataset")
    expected = tree(one)
    compare("-j 2 beside -j 1", expected, tree(two))
    compare("killed and resumed beside -j 1", expected, tree(work / "killed.parquet"))
    count(work / "killed.parquet")
    for problem in problems:
        print(f"PROBLEM: {problem}")
    sys.exit(bool(problems))


main()
