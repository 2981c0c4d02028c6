#!/usr/bin/env python3
"""Reads a table of lru_curves (postproc/examples), passes it on, and tells what follows from it: scripts/bench-policies.sh.

The table has the best speed of all rounds, and the median of how many times as fast as the Fenwick tree a computation
was in each round. The targets are for the best rounds. The exit code is 1 if one is missed, and 2 without a table.
"""

import re
import sys

from targets import Target, settle

ONE, TWO = "LruChunks", "LruChunks, 2 threads"
TREE, FREEZE = "Fenwick tree, 64-bit leaves", "Increment-and-Freeze"
# A computation, and of the five numbers behind its name: the best speed, the median of times, and the bytes a page.
ROW = re.compile(r"(\S.*?)" + r" +([\d.]+)" * 5)
# The tables of so few pages fit in a processor's cache. There, the Fenwick tree is fast, and blocks are large beside
# the pages.
CACHED = 100_000


def read(lines):
    """The pages, and the speed, times and bytes of each computation."""
    pages, rows = 0, {}
    for line in lines:
        if found := re.search(r" to (\d+) pages", line):
            pages = int(found[1])
        elif found := ROW.fullmatch(line.strip()):
            rows[found[1]] = float(found[2]), float(found[3]), float(found[6])
    return pages, rows


def fastest_freeze(rows):
    """The fastest form of Increment-and-Freeze."""
    return max((name for name in rows if name == FREEZE or name.startswith("the same")), key=lambda name: rows[name][0])


def sentences(rows):
    """By the best rounds, and by medians in parentheses."""

    def times(one, other):
        return f"{rows[one][0] / rows[other][0]:.2f} ({rows[one][1] / rows[other][1]:.2f})"

    yield f"by the best rounds (by medians), two threads are {times(TWO, ONE)} times as fast as one"
    for name, rival, of in (("one thread", "the fastest Increment-and-Freeze", ONE), ("two threads", "that", TWO)):
        yield (f"{name}: {times(of, TREE)} times as fast as the tree, and {times(of, fastest_freeze(rows))} as {rival};"
               f" {rows[of][2]} bytes a page")


def targets(pages, rows):
    """Those of docs/cost.md."""
    times = lambda one, other: rows[one][0] / rows[other][0]
    yield Target("one thread, times Increment-and-Freeze", "least", 1, times(ONE, fastest_freeze(rows)))
    if pages > CACHED:
        yield Target("one thread, times the Fenwick tree", "least", 1, times(ONE, TREE))
        yield Target("two threads, times one", "least", 1.7, times(TWO, ONE))
        yield Target("bytes a page of one thread", "most", 24, rows[ONE][2])


def main():
    lines = []
    for line in sys.stdin:
        print(line, end="", flush=True)
        lines.append(line)
    pages, rows = read(lines)
    if not pages or not {ONE, TWO, TREE, FREEZE} <= rows.keys():
        print("the table lacks a computation", file=sys.stderr)
        return 2
    for sentence in sentences(rows):
        print(sentence)
    return settle([*targets(pages, rows)])


if __name__ == "__main__":
    sys.exit(main())
