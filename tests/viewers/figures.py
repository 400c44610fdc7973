"""Compares what readers that are not ours make of stk's outputs with `stk stats --json`: the whole weight and the ten functions with the most of their own.

    tests/viewers/figures.py FOLDER SPEEDSCOPE PPROF

FOLDER has what tests/tests/host/outputs/others.rs wrote of recordings: TRACE-WEIGHT.ENDING beside TRACE-WEIGHT.stats.json. SPEEDSCOPE is npm's package,
PPROF Go's program. PyPI's perfetto and protobuf are on PYTHONPATH.
"""

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace import perfetto_trace_pb2

folder, speedscope, pprof = sys.argv[1:]
folder = Path(folder)
here = Path(__file__).parent
NOT_FUNCTIONS = ("[incomplete stack: ", "[waiting: ")


def own_times(calls):
    """Own time by function, of calls [name, file, line, begin, end], callers first."""
    own, open_calls = Counter(), []
    for name, _, _, begin, end in calls:
        while open_calls and open_calls[-1][1] <= begin:
            open_calls.pop()
        own[name] += end - begin
        if open_calls:
            own[open_calls[-1][0]] -= end - begin
        open_calls.append((name, end))
    return own


def of_speedscope(path):
    """By speedscope's importer: the profile that the viewer opens, or all of them where each is a thread."""
    command = ["node", here / "speedscope-import.mjs", speedscope, path]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    profiles = [json.loads(line) for line in lines]
    if not path.name.endswith(".trace.json"):
        profiles = [profile for profile in profiles if profile["active"]]
    own = Counter()
    for profile in profiles:
        unit = {"nanoseconds": 1, "microseconds": 1e3, "milliseconds": 1e6, "none": 1}[profile["unit"]]
        for name, time in own_times(profile["calls"]).items():
            own[name] += time * unit
    return sum(own.values()), own


def of_pprof(path, weight):
    """By Go's pprof."""
    command = [pprof, "-top", "-nodecount=100000", "-nodefraction=0", "-unit=ns", f"-sample_index={weight}", path]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    total = re.search(r"Total samples = (\S+?)ns|of (\S+?)ns total", text)
    own = Counter()
    for line in text[text.index("flat%") :].splitlines()[1:]:
        flat, _, _, _, _, name = line.split(maxsplit=5)
        own[name.removesuffix(" (inline)").removesuffix(" (partial-inline)")] += float(flat.removesuffix("ns"))
    return float(total[1] or total[2]), own


def of_svg(path):
    """By an XML parser: a frame's own width is what its callees, which are below it, leave of it."""
    svg = "{http://www.w3.org/2000/svg}"
    root = ElementTree.parse(path).getroot()
    frames = root.find(f".//{svg}svg[@id='frames']")
    left, width = ("{http://github.com/jonhoo/inferno}" + name for name in "xw")
    total, rows = int(frames.get("total_samples")), []
    for group in frames.findall(f"{svg}g"):
        rect = group.find(f"{svg}rect")
        name = group.find(f"{svg}title").text.rsplit(" (", 1)[0]
        rows.append((float(rect.get("y")), int(rect.get(left)), int(rect.get(width)), name))
    rows.sort(key=lambda row: (row[1], row[0]))
    calls = [[name, None, None, begin, begin + time] for _, begin, time, name in rows]
    own = own_times(calls)
    # Where a narrow callee is not drawn, `all` has none of it.
    del own["all"]
    return total, own


def of_firefox(path):
    """By the documented tables."""
    profile = json.loads(path.read_text(encoding="utf-8"))
    shared, own = profile["shared"], Counter()
    for thread in profile["threads"]:
        for stack, weight in zip(thread["samples"]["stack"], thread["samples"]["weight"], strict=True):
            if stack is not None:
                function = shared["frameTable"]["func"][shared["stackTable"]["frame"][stack]]
                own[shared["stringArray"][shared["funcTable"]["name"][function]]] += weight * 1e6
    return sum(own.values()), own


def all_known(message):
    """Whether the description of a message has all fields that it holds."""
    if len(UnknownFieldSet(message)):
        return False
    parts = (part for field, value in message.ListFields() if field.message_type for part in (value if hasattr(value, "append") or hasattr(value, "add") else [value]))
    return all(all_known(part) for part in parts)


def of_perfetto(path):
    """By the messages that PyPI's perfetto ships."""
    trace = perfetto_trace_pb2.Trace()
    trace.ParseFromString(path.read_bytes())
    names, frames, stacks, own, unwound = {}, {}, {}, Counter(), 0
    for packet in trace.packet:
        data = packet.interned_data
        names.update((entry.iid, entry.str.decode()) for entry in data.function_names)
        frames.update((entry.iid, entry) for entry in data.frames)
        stacks.update((entry.iid, entry) for entry in data.callstacks)
        if packet.HasField("stack_sample"):
            sample = packet.stack_sample
            leaf = frames[stacks[sample.callstack_iid].frame_ids[-1]]
            own[names[leaf.function_name_id]] += sample.primary_weight
            unwound += 1
        assert all_known(packet), f"{path}: the messages do not have all fields of {packet}"
    assert unwound > 200, path
    return sum(own.values()), own


def check(reader, path, found, stats, slack):
    """Whether weight and functions are those of stk stats, up to a part of the whole."""
    total, own = found
    whole = stats["counted_ns"]
    assert abs(total - whole) <= slack * whole, f"{path.name} in {reader}: {total} ns of {whole}"
    functions = Counter({name: time for name, time in own.items() if not name.startswith(NOT_FUNCTIONS)})
    top = stats["functions_by_self"][:10]
    assert len(top) == 10, path
    for row, (name, time) in zip(top, functions.most_common(10), strict=True):
        wanted = row["self"]["weight_ns"]
        assert abs(time - wanted) <= slack * whole, f"{path.name} in {reader}: {name} has {time} ns where stk stats has {row['function']} with {wanted}"
    # Functions of equal time may come in any order, and outputs add to a name that several functions have what distinguishes them.
    for row in top:
        alike = [time for name, time in functions.items() if name == row["function"] or name.startswith(row["function"] + " [")]
        assert any(abs(time - row["self"]["weight_ns"]) <= slack * whole for time in alike), f"{path.name} in {reader} lacks {row['function']}"
    print(f"{reader}: {path.name} ok")


count = 0
for file in sorted(folder.glob("*.stats.json")):
    name = file.name.removesuffix(".stats.json")
    weight = name.rsplit("-", 1)[1]
    stats = json.loads(file.read_text(encoding="utf-8"))["traces"][0]
    assert stats["weight"] == weight

    def read(ending):
        return folder / f"{name}.{ending}"

    # Rounding to microseconds, and time of runs that overlap, which outputs count once.
    exact, drawn = 1e-4, 2e-3
    checks = [
        ("speedscope", read("speedscope.json"), of_speedscope(read("speedscope.json")), exact),
        ("speedscope", read("folded"), of_speedscope(read("folded")), exact),
        ("pprof", read("pb.gz"), of_pprof(read("pb.gz"), weight), exact),
        ("ElementTree", read("flamegraph.svg"), of_svg(read("flamegraph.svg")), drawn),
        ("its documented tables", read("firefox.json"), of_firefox(read("firefox.json")), exact),
        ("perfetto's messages", read("perfetto-trace"), of_perfetto(read("perfetto-trace")), exact),
    ]
    if weight == "cpu":
        # speedscope opens pprof's default weight, and takes the outermost function of a location for the whole: inlined ones are not distinguished.
        total, _ = of_speedscope(read("pb.gz"))
        assert abs(total - stats["counted_ns"]) <= exact * total, f"{read('pb.gz').name} in speedscope: {total} ns"
    else:
        checks.append(("speedscope", read("trace.json"), of_speedscope(read("trace.json")), exact))
    for reader, path, found, slack in checks:
        check(reader, path, found, stats, slack)
        count += 1
assert count == 26, count
print(f"{count} outputs of recordings have the figures of stk stats")
