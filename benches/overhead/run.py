"""Runs the programs of benches/overhead.sh and prints its table: run.py FOLDER RUNS NAME,… HZ,… (called by that script)."""

import json
import os
import random
import re
import statistics
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
# Resamples of the runs for the interval of "beyond".
RESAMPLES = 2000
# Longest time that a program may take, in seconds.
PATIENCE = 300


def windows(path):
    return "Z:" + os.path.abspath(path).replace("/", "\\")


def programs(folder, done):
    fetched = os.environ["STK_FETCH_DIR"]
    hammers = windows(f"{folder}/hammers.exe")
    # cmake takes a backslash in a variable for an escape.
    done_for_cmake = windows(done).replace("\\", "/")
    cmake = windows(f"{fetched}/cmake/cmake/data/bin/cmake.exe")
    return {
        "cmake": [cmake, "-DROUNDS=1500", f"-DDONE={done_for_cmake}", "-P", windows(f"{HERE}/work.cmake")],
        # The first half second of work after the recording has begun, with the first passes over all tables in it.
        "cmake-start": [cmake, "-DROUNDS=300", f"-DDONE={done_for_cmake}", "-P", windows(f"{HERE}/work.cmake")],
        "node": [windows(f"{fetched}/node/bin/node.exe"), windows(f"{HERE}/work.js"), "350", windows(done)],
        "lock": [hammers, "lock", "6000000", windows(done)],
        "heap": [hammers, "heap", "4000000", windows(done)],
        "environment": [hammers, "environment", "600000", windows(done)],
        "waiters": [hammers, "waiters", "15000", windows(done)],
    }


class Run:
    """A command under Wine whose output is read line by line while it runs."""

    def __init__(self, folder, command):
        self.values = {}
        self.text = []
        self.elapsed = threading.Event()
        self.process = subprocess.Popen(
            [os.environ["STK_WINE"], *command], cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for raw in self.process.stdout:
            line = raw.decode("utf-8", "replace").strip()
            self.text.append(line)
            found = re.match(r"(?:-- )?(\w+) ([0-9.]+)$", line)
            if found:
                self.values[found[1]] = float(found[2])
                if found[1] == "elapsed_ms":
                    self.elapsed.set()
        self.elapsed.set()

    def wait_for_work(self):
        if not self.elapsed.wait(PATIENCE) or "elapsed_ms" not in self.values:
            self.process.kill()
            sys.exit("the work did not end:\n" + "\n".join(self.text))

    def end(self):
        self.process.wait(PATIENCE)
        self.reader.join()
        return self.values


def alone(folder, command, done):
    open(done, "w").close()
    run = Run(folder, command)
    run.wait_for_work()
    return run.end()


def bare(folder, command, done, rate):
    open(done, "w").close()
    run = Run(folder, [f"{folder}/bare.exe", str(rate), *command])
    run.wait_for_work()
    values = run.end()
    values["suspensions"] = values["bare_suspensions"] * 1000 / values["bare_ms"]
    return values


def recorded(folder, command, done, rate):
    """The recording is stopped when the work is done, so that the trace ends in order and holds what it cost."""
    if os.path.exists(done):
        os.remove(done)
    trace = f"{folder}/out.stk"
    if os.path.exists(trace):
        os.remove(trace)
    inject = os.path.join(os.environ["STK_WINDOWS_BIN"], "inject.exe")
    run = Run(folder, [inject, "-r", str(rate), "-o", "out.stk", "--", *command])
    run.wait_for_work()
    pid = next(found[1] for line in run.text if (found := re.search(r"recording .*\bpid (\d+)", line)))
    subprocess.run([os.environ["STK_WINE"], inject, "stop", "--pid", pid], check=True, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    open(done, "w").close()
    values = run.end()
    info = json.loads(subprocess.run([os.environ["STK_BIN"], "info", "--json", trace], check=True, capture_output=True).stdout)
    info = info["traces"][0] if "traces" in info else info
    facts = dict(info["metadata"])
    seconds = info["duration_ns"] / 1e9
    values["suspensions"] = int(facts["recorder.suspensions"]) / seconds
    values["cpu"] = int(facts["recorder.cpu_ns"]) / info["duration_ns"] * 100
    values["samples"] = info["samples"] / seconds
    values["dropped"] = info["dropped"]
    return values


def measure(folder, command, done, rates):
    """One run of every way, in an order of its own: what a machine's speed does meanwhile shall favour none."""
    todo = {"alone": lambda: alone(folder, command, done)}
    for rate in rates:
        todo["bare", rate] = lambda rate=rate: bare(folder, command, done, rate)
        todo["recorded", rate] = lambda rate=rate: recorded(folder, command, done, rate)
    order = list(todo)
    random.shuffle(order)
    return {way: todo[way]() for way in order}


def elapsed(runs, way):
    return statistics.median(run[way]["elapsed_ms"] for run in runs)


def beyond(runs, rate):
    """What the recorder adds to the bare loop, in percent of the time alone."""
    return (elapsed(runs, ("recorded", rate)) - elapsed(runs, ("bare", rate))) / elapsed(runs, "alone") * 100


def interval(runs, rate):
    """The 95 % interval of `beyond`, by bootstrap over the runs."""
    found = sorted(beyond(random.choices(runs, k=len(runs)), rate) for _ in range(RESAMPLES))
    return found[RESAMPLES // 40], found[-RESAMPLES // 40]


def row(name, rate, runs):
    def median(way, key):
        return statistics.median(run[way, rate][key] for run in runs)

    def ratio(way):
        return elapsed(runs, (way, rate)) / elapsed(runs, "alone")

    low, high = interval(runs, rate)
    return (
        f"{name:<12} {elapsed(runs, 'alone') / 1000:>7.2f} {rate:>6} {ratio('bare'):>7.3f} {ratio('recorded'):>9.3f} "
        f"{beyond(runs, rate):>+8.1f} {f'{low:+.1f} to {high:+.1f}':>17} {median('recorded', 'cpu'):>7.1f} {median('bare', 'suspensions'):>10.0f} "
        f"{median('recorded', 'suspensions'):>10.0f} {median('recorded', 'samples'):>10.0f} {median('recorded', 'dropped'):>8.0f}"
    )


def main():
    folder, count, names = sys.argv[1], int(sys.argv[2]), sys.argv[3].split(",")
    rates = [int(rate) for rate in sys.argv[4].split(",")]
    done = f"{folder}/done"
    commands = programs(folder, done)
    load = os.getloadavg()[0]
    results = {name: [] for name in names}
    began = time.monotonic()
    for run in range(count):
        for name in names:
            results[name].append(measure(folder, commands[name], done, rates))
        print(f"run {run + 1} of {count}, {(time.monotonic() - began) / 60:.0f} min", file=sys.stderr)
    print(f"medians of {count} runs; {os.cpu_count()} processors, load {load:.1f} at the start, {os.getloadavg()[0]:.1f} at the end")
    print(
        f"{'program':<12} {'alone s':>7} {'Hz':>6} {'bare':>7} {'recorded':>9} {'beyond %':>8} {'95 % interval':>17} {'CPU %':>7} {'bare /s':>10} "
        f"{'susp. /s':>10} {'samples /s':>10} {'dropped':>8}"
    )
    for name in names:
        for rate in rates:
            print(row(name, rate, results[name]))


main()
