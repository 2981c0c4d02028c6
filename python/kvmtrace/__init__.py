"""Reads kVMTrace's traces.

    >>> import kvmtrace
    >>> t = kvmtrace.open("run.vmt")              # a file, or a directory of pieces
    >>> t.references(where='comm == "cc1"').to_polars()
    >>> c = t.curve("lru")                        # every size of memory in one pass
    >>> c.sizes, c.misses, c.lower, c.upper       # pages, counts
    >>> c.plot()
    >>> t.simulate(["arc", "clock"], sizes=[1000, 4000]).to_pandas()
    >>> t.check()

Results are those of the command ``postproc``, to the last digit. No other package is needed; tables
go to pyarrow, polars, pandas, numpy and matplotlib if they are there.
"""

from __future__ import annotations

import os

from . import _kvmtrace
from ._kvmtrace import Batch, Column, FilterError, TraceError, __version__
from ._policy import Memory, Policy
from ._record import Record
from ._results import CheckReport, Curve, Finding, Simulation, TraceWarning, WorkingSet
from ._summary import Summary, merge, summary
from ._table import Frame, Table
from ._trace import Trace

__all__ = [
    "Batch",
    "CheckReport",
    "Column",
    "Curve",
    "FilterError",
    "Finding",
    "Frame",
    "Memory",
    "Policy",
    "Record",
    "Simulation",
    "Summary",
    "Table",
    "Trace",
    "TraceError",
    "TraceWarning",
    "WorkingSet",
    "__version__",
    "merge",
    "open",
    "policies",
    "summary",
]


def open(path: str | os.PathLike[str]) -> Trace:
    """Opens a trace: a file, which may be compressed by Zstandard, or a directory of pieces.

    Raises :class:`TraceError` if it is no trace. Damage behind the header is no error: see
    :attr:`Trace.damage` and :meth:`Trace.check`.
    """
    return Trace(path)


def policies() -> list[Record]:
    """All policies of postproc: name, about (what it is, in a line), and curve (whether
    :meth:`Trace.curve` computes all sizes at once)."""
    return [
        Record(name=name, about=about, curve=curve) for name, about, curve in _kvmtrace.policies()
    ]
