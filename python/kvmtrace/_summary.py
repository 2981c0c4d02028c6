"""Summaries of traces, which can be added up."""

from __future__ import annotations

import itertools
import json
import operator
import os
from collections.abc import Iterable
from typing import Any

from . import _kvmtrace
from ._record import Record, record
from ._select import Addresses, Names, Process, selected
from ._table import _html


class Summary:
    """What is known of one trace, or of several ones together: see :func:`summary` and :func:`merge`.

    The fields are those of ``postproc summary``, which docs/fleet.md describes: ``s.references``,
    ``s.lost``, ``s.trace.host``, ``s.working_sets`` and others.
    """

    def __init__(self, text: str) -> None:
        #: The summary as one line of JSON, as ``postproc summary`` writes it.
        self.json = text
        self._fields: Record = record(json.loads(text))

    def __getattr__(self, name: str) -> Any:
        if name == "_fields":
            raise AttributeError(name)
        try:
            return self._fields[name]
        except KeyError:
            raise AttributeError(name) from None

    def misses(self, policy: str, size: int) -> int:
        """Misses of a memory of ``size`` pages under ``'lru'`` or ``'opt'``. For several traces, this is
        the sum of their misses, where each trace has a memory of that size to itself."""
        return self._misses(policy, [operator.index(size)])[0]

    def curve(
        self, policy: str = "lru", sizes: Iterable[int] | None = None
    ) -> tuple[list[int], list[int]]:
        """Sizes of memory in pages, and the misses of each.

        Without ``sizes``, these sizes are 1, and each size in which more references hit than in a memory
        that is one page smaller. Between two of these sizes, the curve is flat.
        """
        of = sorted(sizes) if sizes is not None else [1, *self._histogram(policy)["sizes"]]
        of = [size for size, _ in itertools.groupby(of)]
        return of, self._misses(policy, of)

    def _histogram(self, policy: str) -> Record:
        if policy not in ("lru", "opt"):
            raise ValueError(f"policy is {policy!r}; it must be 'lru' or 'opt'")
        histogram: Record = self._fields[policy]
        return histogram

    def _misses(self, policy: str, sizes: list[int]) -> list[int]:
        """Of ascending sizes."""
        histogram = self._histogram(policy)
        steps = zip(histogram["sizes"], histogram["hits"], strict=True)
        misses: list[int] = []
        left: int = histogram["references"]
        step = next(steps, None)
        for size in sizes:
            # A size of 0 counts as 1.
            while step is not None and step[0] <= max(size, 1):
                left -= step[1]
                step = next(steps, None)
            misses.append(left)
        return misses

    @property
    def selection(self) -> str | None:
        """The options that selected the references; None if the summary is of all references, as each
        one of version 1 is."""
        selection: str | None = self._fields.get("selection")
        return selection

    @property
    def footprint(self) -> int:
        """The largest number of pages that exist at one time; of several traces, the largest of these."""
        return int(self._fields["lru"]["footprint"])

    def most_memory(self, count: int = 25) -> list[Record]:
        """The files and other objects with the most bytes of referenced pages: name, kind, traces,
        references, pages, bytes, dirtied."""
        mapped: list[Record] = self._fields["mapped"]
        order = sorted(mapped, key=lambda one: (-one["bytes"], one["name"], one["kind"]))
        return order[:count]

    def __repr__(self) -> str:
        traces = "1 trace" if self.traces == 1 else f"{self.traces:,} traces"
        references = "1 reference" if self.references == 1 else f"{self.references:,} references"
        selected = f" that {self.selection} selects" if self.selection is not None else ""
        return f"<kvmtrace.Summary of {traces}: {references}{selected}>"

    def _repr_html_(self) -> str:
        names = ["traces", "good", "complete", "references", "pages", "lost", "footprint"]
        if self.selection is not None:
            names.append("selection")
        return _html(["", ""], [[name, getattr(self, name)] for name in names])


def summary(
    path: str | os.PathLike[str],
    *,
    host: str | None = None,
    where: str | None = None,
    since: str | None = None,
    until: str | None = None,
    process: Process | None = None,
    comm: Names | None = None,
    mapping: Names | None = None,
    address: Addresses | None = None,
    trust: bool = False,
    allow_loss: bool = False,
    threads: bool = True,
) -> Summary:
    """The summary of a trace, as ``postproc summary`` makes it: LRU and OPT curves of all sizes,
    working sets, what is mapped, losses and the verdict of the rules.

    ``host`` is where the trace was made, if that is known. Without ``threads``, the curves are computed
    in the calling thread: that is for programs that read as many traces at the same time as there are
    processors.

    ``where``, ``since``, ``until``, ``process``, ``comm``, ``mapping`` and ``address`` select references, as
    in the methods of :class:`Trace`; here, ``process`` with an id is a filter, too. References, pages,
    misses, working sets and what is mapped are then of the references that are selected, and ``selection``
    has the options. Losses, events and the verdict are those of the whole trace. :func:`merge` never adds up
    different selections.

    Raises :class:`TraceError` if the trace cannot be read, or nothing of it is selected;
    :class:`FilterError` for an expression that is wrong, or has the fields time, seq or window; and
    ValueError for other arguments that are wrong.
    """
    selection = selected(
        where=where,
        since=since,
        until=until,
        process=process,
        comm=comm,
        mapping=mapping,
        address=address,
    )
    trace = _kvmtrace.Trace(path)
    return Summary(trace.summary_json(host, trust, allow_loss, threads, selection))


def merge(summaries: Iterable[Summary | str]) -> Summary:
    """Adds summaries up, as ``postproc merge`` does. The sum is exact, whatever the order.

    A summary may be given as its line of JSON. At any moment, only one summary and the sum need be in
    memory. Raises ValueError if there is no summary, if two summaries are of the same trace, or if the
    summaries cannot be added, as those of different selections.
    """
    total = _kvmtrace.Sum()
    for one in summaries:
        total.add(one.json if isinstance(one, Summary) else one)
    return Summary(total.json())
