"""Makes a dataset of a night of traces with PySpark on two workers, as an array of SLURM and as a Job of Kubernetes, and asks it the questions of
examples/recipes with Spark, DuckDB and Polars: recipes.py STK NIGHT REPOSITORY

The night (tests/tests/host/outputs/others.rs) is one program on three machines in two builds: build 42 takes twice the time of build 41, and lab-3 three
times that of the others. mixed.stk is another program's.
"""

import math
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import duckdb
import polars
import yaml
from pyspark.sql import SparkSession

stk, night, repository = (pathlib.Path(argument).resolve() for argument in sys.argv[1:])
recipes, traces = repository / "examples/recipes", repository / "examples/traces"
sys.path[:0] = [str(recipes.parent / "spark"), str(recipes)]

import with_polars

TRACES = sorted(night.glob("*.stk"))
SYMBOLS = ["-y", str(traces), "--no-default-symbols"]


def tables(dataset):
    """The tables of a dataset: bytes by file."""
    files = (path for path in dataset.rglob("*.parquet") if path.relative_to(dataset).parts[0] != "_stk")
    return {str(path.relative_to(dataset)): path.read_bytes() for path in files}


def same(one, other):
    number = lambda value: isinstance(value, (int, float)) and not isinstance(value, bool)
    return math.isclose(one, other, rel_tol=1e-9) if number(one) and number(other) else one == other


def statements(file, dataset):
    """The statements of a file of SQL, each with the name of its question, if it has one."""
    name, code = None, []
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("-- question: "):
            name = line.removeprefix("-- question: ")
        if line and not line.startswith("--"):
            code.append(line)
        if code and line.endswith(";"):
            yield name, "\n".join(code).removesuffix(";").replace("trace.parquet", str(dataset))
            name, code = None, []
    assert not code, f"{file.name}: a statement does not end: {code}"


def made_by_spark(spark, folder):
    import convert

    # spark-submit takes the script to the workers by itself.
    spark.sparkContext.addPyFile(convert.__file__)
    (folder / "night.txt").write_text("".join(f"{path}\n" for path in TRACES))
    dataset = folder / "spark.parquet"
    logs, code = convert.convert(spark, str(stk), [str(folder / "night.txt")], str(dataset), 3, SYMBOLS)
    assert code == 0 and sorted(pathlib.Path(line["trace"]).name for line in logs) == [path.name for path in TRACES], logs
    assert {line["status"] for line in logs} == {"converted"}, logs
    again, code = convert.convert(spark, str(stk), [str(folder / "night.txt")], str(dataset), 2, SYMBOLS)
    assert code == 0 and {line["status"] for line in again} == {"skipped"}, again
    return dataset


def made_by_slurm(folder):
    """What SLURM would run: an array of two jobs, which it numbers from 5, then the last one."""
    dataset = folder / "slurm.parquet"
    script = [recipes / "slurm.sh", folder / "night.txt", dataset, *SYMBOLS]
    of_array = {"SLURM_ARRAY_TASK_MIN": "5", "SLURM_ARRAY_TASK_COUNT": "2"}
    jobs = [subprocess.Popen(script, env={**os.environ, **of_array, "STK": str(stk), "SLURM_ARRAY_TASK_ID": i}) for i in ("5", "6")]
    assert [job.wait() for job in jobs] == [0, 0]
    subprocess.run(script, env={**os.environ, "STK": str(stk)}, check=True)
    return dataset


def made_by_kubernetes(folder):
    """What the pods of a Job of two would run."""
    job = yaml.safe_load((recipes / "kubernetes.yaml").read_text(encoding="utf-8"))
    assert (job["apiVersion"], job["kind"], job["spec"]["completionMode"]) == ("batch/v1", "Job", "Indexed"), job
    pod = job["spec"]["template"]["spec"]
    container = pod["containers"][0]
    parts = {variable["name"]: variable["value"] for variable in container["env"]}["PARTS"]
    assert parts == str(job["spec"]["completions"]) and pod["restartPolicy"] == "Never", job
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}, pod
    (folder / "symbols").symlink_to(traces)
    (folder / "bin").mkdir()
    (folder / "bin/stk").symlink_to(stk)
    path = f"{folder}/bin:{os.environ['PATH']}"
    command = [*container["command"], container["args"][0].replace("/data/", f"{folder}/").replace("-y ", "--no-default-symbols -y ")]
    for index in ("0", "1"):
        subprocess.run(command, env={**os.environ, "PATH": path, "PARTS": "2", "JOB_COMPLETION_INDEX": index}, check=True)
    dataset = folder / "lab.parquet"
    limits = ["--max-memory", "2G"]
    subprocess.run([stk, "batch", folder / "night.txt", "--to", "parquet", "-o", dataset, *limits, *SYMBOLS], check=True)
    return dataset


def answers(spark, dataset):
    """By engine: the rows of each question. Every other statement of the recipes has to give rows, too."""
    db, by_engine = duckdb.connect(), {"duckdb": {}, "spark": {}, "polars": {}}
    db.execute("SET TimeZone = 'UTC'")
    for name, code in statements(recipes / "duckdb.sql", dataset):
        if code.startswith("CREATE"):
            db.execute(code)
        elif name:
            by_engine["duckdb"][name] = db.execute(code).fetchall()
        else:
            # Counted, not fetched: Python would need a further package for times of day.
            assert db.execute(f"SELECT count(*) FROM ({code})").fetchone()[0] > 0, code
    for name, code in statements(recipes / "spark.sql", dataset):
        rows = spark.sql(code).collect()
        assert code.startswith("CREATE") or name, f"spark.sql: a question without a name:\n{code}"
        if name:
            by_engine["spark"][name] = [tuple(row) for row in rows]
    for name, rows in with_polars.questions(dataset).items():
        by_engine["polars"][name] = rows.head(20).collect().rows()
    # As a user runs it.
    shown = subprocess.run([sys.executable, recipes / "with_polars.py", dataset], check=True, capture_output=True, text=True).stdout
    assert all(name in shown for name in by_engine["polars"]), shown
    return by_engine


def check(by_engine):
    reference = by_engine["duckdb"]
    for engine, questions in by_engine.items():
        assert questions.keys() == reference.keys(), (engine, questions.keys())
        for name, rows in questions.items():
            equal = len(rows) == len(reference[name]) and all(
                len(one) == len(other) and all(map(same, one, other)) for one, other in zip(rows, reference[name])
            )
            assert equal, f"{name}: {engine} says\n{rows}\nand duckdb\n{reference[name]}"
    top = reference["top functions over all hosts"]
    assert top[0][1:3] == ("mix", 3), "busy's hottest function, on its three machines: " + str(top[0])
    regressions = reference["regressions between builds"]
    assert regressions and all(math.isclose(row[4], 2, rel_tol=0.01) for row in regressions), regressions
    rare = reference["rare stacks"]
    assert rare and {row[3] for row in rare} == {"mixed.exe"}, "each stack of busy is in six traces: " + str(rare)
    slowest = reference["slowest machines"]
    assert slowest[0][:2] == ("lab-3", 2) and math.isclose(slowest[0][2], 3, rel_tol=0.01), slowest
    assert all(math.isclose(row[2], 1, rel_tol=0.01) for row in slowest[1:]) and len(slowest) == 4, slowest
    waits = reference["waits by lock"]
    # busy's threads wait for events; which of its short waits for a lock a recording meets is chance.
    assert ("single object", "wait_for_event") in {(row[0], row[2]) for row in waits}, waits


def main():
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "localhost")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="stk-recipes-"))
    try:
        dataset = made_by_spark(spark, folder)
        wanted = tables(dataset)
        assert len(wanted) >= 8, wanted.keys()
        for other in (made_by_slurm(folder), made_by_kubernetes(folder)):
            found = tables(other)
            assert found == wanted, f"{other.name} differs from spark's: {[name for name in wanted if found.get(name) != wanted[name]]}"
        by_engine = answers(spark, dataset)
        check(by_engine)
        versions = f"Spark {spark.version}, DuckDB {duckdb.__version__}, Polars {polars.__version__}"
        print(f"{versions}: {len(TRACES)} traces, {len(by_engine['duckdb'])} questions, the same answers; SLURM and Kubernetes make the same tables")
    finally:
        spark.stop()
        shutil.rmtree(folder)


main()
