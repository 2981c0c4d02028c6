#!/usr/bin/env python3
"""Judges figures of benchmarks by their targets, which are beside what measures the figures.

    targets.py [WHAT most|least BOUND FIGURE] …

Prints a line for each target. The exit code is 1 if a target is missed. JUDGE=0 in the environment only reports.
"""

import operator
import os
import sys
from typing import NamedTuple

BOUNDS = {"most": ("at most", operator.le), "least": ("at least", operator.ge)}


class Target(NamedTuple):
    """What a figure must be."""

    what: str
    #: One of BOUNDS.
    bound: str
    limit: float
    figure: float

    def is_met(self):
        """A figure that is no number meets nothing."""
        return BOUNDS[self.bound][1](self.figure, self.limit)

    def line(self):
        verdict = "met" if self.is_met() else "missed"
        return f"target: {self.what}, {BOUNDS[self.bound][0]} {self.limit:,.10g}: {verdict} ({self.figure:,.3f})"


def settle(targets):
    """Prints a line for each target. The exit code: 1 if one is missed, unless JUDGE is 0."""
    for target in targets:
        print(target.line(), flush=True)
    return int(os.environ.get("JUDGE") != "0" and not all(target.is_met() for target in targets))


def main(args):
    if not args or len(args) % 4 or not {*args[1::4]} <= BOUNDS.keys():
        print(__doc__, file=sys.stderr)
        return 2
    of = zip(args[::4], args[1::4], map(float, args[2::4]), map(float, args[3::4]))
    return settle([Target(*one) for one in of])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
