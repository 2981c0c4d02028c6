#!/usr/bin/env python3
"""Measures the Python package beside the command postproc: scripts/bench-python.sh.

    bench_python.py POSTPROC TRACE FOLDER ROUNDS POINTS POLICIES

Each round opens the trace and makes the exact LRU curve of POINTS sizes (0: of each size) by the command and in
Python, and reads all references in Python as Arrow tables. All three are processes of their own, whose seconds are
those from their start to their end, and which may use all processors. Before the first round, both make the curve
of each size, which is not measured. Then a page of POLICIES is made. FOLDER gets the results. The exit code is 1 if
curves differ, if references are missing, or if a target is missed (targets.py): that of the curve in Python, or that of
the size of the page.
"""

import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

# The folder of this file is not where modules are looked for.
sys.path.append(str(pathlib.Path(__file__).parent))
from targets import Target, settle

# A curve in Python takes at most so many times as long as the command, each in its shortest round.
TIMES = 1.2
# A page has at most so many bytes.
SIZE = 5_000_000
# What a row of a curve is called by the command, and in Python.
NAMES = {"size_pages": "size_pages", "misses": "misses", "write_backs": "write_backs", "low": "lower", "high": "upper"}
ABOUT = ("references", "cold", "evms_size", "exact", "good", "page_size")


def curve(trace, points, path):
    """What is measured in Python: a curve, of which is written what the command writes."""
    import kvmtrace

    made = kvmtrace.open(trace).curve("lru", points=int(points))
    about = {"cold": made.cold, "evms_size": made.n}
    about |= {name: getattr(made, name) for name in ABOUT if name not in about}
    columns = {name: made[name].to_pylist() for name in NAMES.values()}
    pathlib.Path(path).write_text(json.dumps(about | {"columns": columns}))


def tables(trace, path):
    """What is measured in Python, too: all columns of all references, batch by batch."""
    import kvmtrace
    import pyarrow

    rows = sum(pyarrow.table(batch).num_rows for batch in kvmtrace.open(trace).references())
    pathlib.Path(path).write_text(json.dumps({"references": rows}))


def compare(theirs, ours):
    """Fails if two files do not have the same curve."""
    theirs, ours = (json.loads(pathlib.Path(path).read_text()) for path in (theirs, ours))
    for name in ABOUT:
        if theirs[name] != ours[name]:
            sys.exit(f"{name} is {theirs[name]} of postproc, and {ours[name]} in Python")
    for name, mine in NAMES.items():
        # The command leaves out what is not known.
        column = [row.get(name) for row in theirs["curve"]]
        if column != ours["columns"][mine]:
            pairs = enumerate(itertools.zip_longest(column, ours["columns"][mine]))
            place, pair = next((place, pair) for place, pair in pairs if pair[0] != pair[1])
            sys.exit(f"another curve: {name} of point {place} is {pair[0]} of postproc, and {pair[1]} in Python")
    if not theirs["curve"] or not theirs["good"]:
        sys.exit("the trace is empty or not good")
    print(len(theirs["curve"]))


def ticks():
    """Since the system's start: ticks of all processors together, and of these, of programs."""
    fields = pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    user, low, system, idle, waiting, *others = map(int, fields)
    busy = user + low + system + sum(others)
    return busy + idle + waiting, busy


class Taken:
    """What a process took."""

    def __init__(self, wall, used):
        self.wall, self.cpu, self.peak = wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def run(log, *command):
    """Runs a command to its end. Its output goes to a file."""
    with open(log, "w") as out:
        begun = time.monotonic()
        child = subprocess.Popen([*map(str, command)], stdout=out, stderr=subprocess.PIPE)
        said = child.stderr.read()
        _, status, used = os.wait4(child.pid, 0)
        wall = time.monotonic() - begun
    if status:
        sys.exit(f"{command} failed ({status}): {said.decode()[-2000:]}")
    return Taken(wall, used)


def spread(values, form):
    """The median, the least and the most."""
    return " ".join(format(value, form) for value in (statistics.median(values), min(values), max(values)))


def main(postproc, trace, folder, rounds, points, policies):
    """Measures and prints."""
    folder, rounds, points = pathlib.Path(folder), int(rounds), int(points)
    # The sources of the package are not where modules are looked for.
    python = [sys.executable, "-P", "-W", "error", __file__]
    theirs, ours, rows = (folder / f"{name}.json" for name in ("postproc", "python", "references"))

    def command(points):
        return run(theirs, postproc, "simulate", trace, "--policy", "lru", "--curve", "--points", points, "--json")

    def package(points):
        return run(os.devnull, *python, "curve", trace, points, ours)

    def same():
        # In a process of its own: the peak of a process that is measured is not less than the memory of this one.
        compared = subprocess.run([*python, "compare", theirs, ours], stdout=subprocess.PIPE, text=True, check=False)
        if compared.returncode:
            sys.exit(compared.returncode)
        return int(compared.stdout)

    # This reads the whole trace, too, so that each round finds it in memory.
    command(0), package(0)
    sizes = same()
    methods = {
        "postproc simulate --curve": lambda: command(points),
        "Python: open(), curve()": lambda: package(points),
        "Python: open(), references()": lambda: run(os.devnull, *python, "tables", trace, rows),
    }
    taken = {name: [] for name in methods}
    total, busy = ticks()
    for number in range(rounds):
        # None is always the first one.
        for name in [*methods][:: -1 if number % 2 else 1]:
            taken[name].append(methods[name]())
        shown = same()
    total, busy = (after - before for after, before in zip(ticks(), (total, busy)))
    mine = sum(one.cpu for of in taken.values() for one in of) * os.sysconf("SC_CLK_TCK")
    about = {name: json.loads(theirs.read_text())[name] for name in ABOUT}
    read = json.loads(rows.read_text())["references"]
    if read != about["references"]:
        sys.exit(f"the tables have {read} references, and the curve {about['references']}")

    print(f"{about['references']:,} references to {sizes:,} pages at most, N = {about['evms_size']}; {rounds} rounds; "
          f"{len(os.sched_getaffinity(0))} processors, of which other programs took {max(busy - mine, 0) / total:.0%}")
    print(f"{'':30} {'wall s: median, min, max':>26} {'CPU s: median, min, max':>26} {'peak MiB':>9}")
    for name, of in taken.items():
        wall, cpu = (spread([getattr(one, what) for one in of], "8.2f") for what in ("wall", "cpu"))
        print(f"{name:30} {wall:>26} {cpu:>26} {max(one.peak for one in of):>9.0f}")
    first, *others = taken
    for name, of in zip(others, ("that curve", "those references")):
        pairs = [*zip(taken[name], taken[first])]
        ratios = ([getattr(a, what) / getattr(b, what) for a, b in pairs] for what in ("wall", "cpu"))
        wall, cpu = (spread(ratio, "8.3f") for ratio in ratios)
        print(f"{of + ', times postproc':30} {wall:>26} {cpu:>26}")
    print(f"the curves are equal: {shown:,} sizes in each round, and once each of {sizes:,} sizes", flush=True)

    page = folder / "report.html"
    page.unlink(missing_ok=True)
    made = run(folder / "report.log", postproc, "report", trace, "-o", page, "--policy", policies)
    size = page.stat().st_size
    print(f"a page of {policies}: {size:,} bytes, made in {made.wall:.1f} s, {made.cpu:.1f} CPU s, "
          f"peak {made.peak:.0f} MiB", flush=True)
    shortest = {name: min(one.wall for one in of) for name, of in taken.items()}
    times = shortest[others[0]] / shortest[first]
    sys.exit(settle([Target("a curve in Python, times postproc", "most", TIMES, times),
                     Target("bytes of the page", "most", SIZE, size)]))


# A process that is measured, or the one that measures.
parts = {"curve": curve, "tables": tables, "compare": compare}
parts[sys.argv[1]](*sys.argv[2:]) if sys.argv[1:2] and sys.argv[1] in parts else main(*sys.argv[1:])
