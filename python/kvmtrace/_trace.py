"""Traces."""

from __future__ import annotations

import inspect
import json
import operator
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, overload

from . import _kvmtrace
from ._policy import Memory, Policy
from ._record import Record, record
from ._results import CheckReport, Curve, Simulation, WorkingSet, warn
from ._select import Addresses, Names, Process, Selected, selected
from ._table import Frame, Table, _html

Pages = Literal["canonical", "virtual"]
Time = Literal["real", "virtual"]
#: A size of memory: pages, a share of the footprint, or a text as ``--size`` of the commands takes it.
Size = int | float | str


def _options(
    selected: Selected,
    set: int | None,
    pages: str,
    keep_freed: bool,
    time: str = "real",
) -> dict[str, object]:
    return {
        "selected": selected,
        "set": set,
        "pages": pages,
        "keep_freed": keep_freed,
        "time": time,
    }


def _names(policy: str | Sequence[str]) -> list[str]:
    return [policy] if isinstance(policy, str) else list(policy)


def _text(size: Size) -> str:
    """A size as the commands take it."""
    if isinstance(size, str):
        return size
    # A number with a point is a share, exact to a millionth.
    return f"{size:.6f}" if isinstance(size, float) else str(operator.index(size))


def _texts(sizes: Size | Iterable[Size]) -> list[str]:
    some = [sizes] if isinstance(sizes, str) or not isinstance(sizes, Iterable) else sizes
    texts = [_text(size) for size in some]
    if not texts:
        raise ValueError("give one size or more, each of 1 page or more")
    return texts


class Trace:
    """A trace that was opened: see :func:`kvmtrace.open`.

    Arguments that many methods have:

    where
        Only the references that fit an expression, such as ``'comm == "cc1" && kind == write'``
        (docs/using.md, "Filters").
    since, until
        Only what happened from this time on, or before it: ``'1.5s'``, ``'250ms'``, or ``'90%'`` of the
        length of the trace. Times count from the beginning of the trace, or of the window.
    process
        Only this process: its id, or its name, which may be a pattern (``'python*'``). With an id, its
        references are taken as if it had run alone.
    comm
        Only threads of this name or pattern, or of one of several.
    mapping
        Only references to mappings of this name or pattern, or of one of several: ``'libc.so.6'``,
        ``'[heap]'``, ``'*.so*'``.
    address
        Only references to these addresses, or to one of several such ranges: ``'0x7f00..0x8f00'`` or
        ``range(0x7f00, 0x8f00)`` (the end is not included), ``'7f00-8f00'`` as in /proc/PID/maps, or one
        address (``0x7f00``), which stands for its page.
    set
        Only the references to the set with this number, of a trace with several sets.
    pages
        What counts as one page: ``'canonical'``, the page itself, no matter how many processes map
        it; ``'virtual'``, each page of each address space.
    keep_freed
        Whether freed pages keep their number, and stay in simulated memory until they are replaced.
    trust
        Leave out the rules that look at records. Without it, each rule of :meth:`check` is applied in
        the same pass.
    allow_loss
        Accept a trace that lost records, if the losses are counted.

    ``where``, ``since``, ``until``, ``process``, ``comm``, ``mapping`` and ``address`` select what the
    options of the commands with these names select (docs/using.md, "Selections"). All that are given must
    fit. Results of what they select have no proven bounds.

    Methods that read the trace release the lock of the interpreter. Ctrl-C ends them within a
    second. They raise :class:`TraceError` with postproc's message if the trace cannot be read,
    :class:`FilterError` for an expression that is wrong, and ValueError for other arguments that are.
    """

    def __init__(self, path: str | os.PathLike[str] | _kvmtrace.Trace) -> None:
        self._native = path if isinstance(path, _kvmtrace.Trace) else _kvmtrace.Trace(path)
        #: The fields of the trace header: evms_size (N), page_shift, nr_cpus, release, arch,
        #: start_time_ns and others.
        self.header: Record = record(json.loads(self._native.header_json()))
        #: What else is known without reading records: piece, part, status (the kernel's account, None
        #: if the trace was cut short), windows, damage, file_bytes.
        self.about: Record = record(json.loads(self._native.about_json()))

    @property
    def path(self) -> str:
        """The file or directory."""
        return os.fspath(self._native.path)

    @property
    def n(self) -> int:
        """N, the size of the set (or of each set) in pages. References to its pages are not in the
        trace."""
        return int(self.header.evms_size)

    @property
    def page_size(self) -> int:
        """Bytes of a page."""
        return 1 << int(self.header.page_shift)

    @property
    def complete(self) -> bool:
        """Whether the trace has its end, the kernel's account."""
        return self._native.complete

    @property
    def damage(self) -> list[str]:
        """Damage that opening the trace has found, in words. :meth:`check` finds all of it."""
        return list(self.about.damage)

    @property
    def windows(self) -> list[int]:
        """The numbers of its windows; none if the whole run was traced."""
        return self._native.windows

    def window(self, number: int) -> Trace:
        """One of its windows, as a trace by itself."""
        return Trace(self._native.only_window(number))

    def processes(self) -> Frame:
        """All processes, in the order in which the events tell of them.

        Columns: process (its id), comm, exe and cgroup (its latest; empty if the trace does not say),
        mm (the number of its latest address space), start_ns (of the system's clock; 0 if the trace
        does not say), utime_ns and stime_ns (of the tasks that ended).
        """
        return Frame(self._native.processes())

    def references(
        self,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        since: str | None = None,
        until: str | None = None,
        process: Process | None = None,
        comm: Names | None = None,
        mapping: Names | None = None,
        address: Addresses | None = None,
        set: int | None = None,
        pages: Pages = "canonical",
        keep_freed: bool = False,
        time: Time = "real",
    ) -> Table:
        """A row for each reference, in the order of the trace.

        The columns are those of ``postproc export --format parquet``:

        ==============  ======================  =====================================================
        column          type                    what
        ==============  ======================  =====================================================
        window          uint32                  number of the window; 0 if there are none
        process         uint32                  process id, or the thread's own if no event says more
        seq             int64                   sequence number of the admission among all records
        time_ns         int64                   time of the admission, ns since the trace's start
        page            uint32                  number of the page, from 1 by first appearance
        address         int64                   virtual address of the page, bytes
        access          dictionary of words     read, write or exec; seen for a second chance
        kernel          bool                    whether the kernel made the access for the program
        dirtied         bool                    whether a store to the page was made in this stay
        again           bool                    whether it was referenced in the second segment
        why             dictionary of words     why the stay ended
        stay_ns         int64, null             length of the stay; null if it saturated
        tid, cpu, mm    uint32                  thread, CPU, address space
        pfn             uint32                  page frame
        vtime           int64, null             the thread's virtual time, in ticks
        offset          int64, null             bytes from address to the access, if that is known
        ==============  ======================  =====================================================

        ``columns`` names those that are wanted; others cost nothing. Two more must be named: ``set``
        (uint32, the number of the set), and ``mapping`` (dictionary of words, the name of what is
        mapped there at that moment; null if nothing is).

        With ``time='virtual'``, time_ns is the time that all traced tasks together have spent in user
        mode; the trace must have virtual time.
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
        options = _options(selection, set, pages, keep_freed, time)
        names = None if columns is None else list(columns)
        return Table(self._native.references(names, options))

    def freed(
        self,
        *,
        where: str | None = None,
        since: str | None = None,
        until: str | None = None,
        process: Process | None = None,
        comm: Names | None = None,
        mapping: Names | None = None,
        address: Addresses | None = None,
        set: int | None = None,
        pages: Pages = "canonical",
    ) -> Table:
        """A row for each page that is freed: its last mapping has gone, or its file was truncated.

        Columns: window, process (of the thread that freed it), seq and time_ns (of the event), page
        (as in :meth:`references`, of the same arguments), event (its name).
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
        return Table(self._native.freed(_options(selection, set, pages, False)))

    def events(
        self,
        *types: str,
        pid: int | None = None,
        mm: int | None = None,
        where: str | None = None,
        since: str | None = None,
        until: str | None = None,
        process: Process | None = None,
        comm: Names | None = None,
        mapping: Names | None = None,
        address: Addresses | None = None,
    ) -> Table:
        """A row for each event, in the order of the trace; only of some types if these are named, as in
        ``events('map', 'unmap')``.

        Columns of all events: seq, time_ns (since the trace's start), cpu, tid and pid (of the thread
        that caused it), mm (the address space that it is about), event (the name of its type),
        snapshot (whether it describes what existed before), no_news (why it tells nothing new; else
        null), vtime (ticks; null if the trace has none). Then come the own fields of these types,
        null for events that have no such field. Addresses are int64, other numbers of 64 bits uint64.

        ``pid`` is the process that caused the event, and ``mm`` the address space that it is about.
        ``mapping`` and ``address`` select the events that have a page or a range of addresses there. The
        other arguments are those of all methods. ``postproc events`` has all of them, too.
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
        return Table(self._native.events(list(types), pid, mm, selection))

    def mappings(
        self,
        *,
        pid: int | None = None,
        seq: int | None = None,
        at_open: str | None = None,
        until: str | None = None,
        process: Process | None = None,
        mapping: Names | None = None,
        address: Addresses | None = None,
    ) -> Frame:
        """What was mapped at a moment, as /proc/PID/maps showed it: of each process that lived then.

        The moment is after the event with number ``seq``; when a file of the name ``at_open`` was first
        opened; or at the time ``until``, such as ``'1.5s'`` or ``'90%'``. Without any of them, it is the
        trace's end. ``process``, ``mapping`` and ``address`` select what is shown, as ``postproc maps``
        does it. ``pid`` is another name of ``process``.

        Columns: process, comm, mm, start and end (bytes, int64), prot (such as r-x), shared, offset
        (bytes; 0 without a file), dev, ino, name.
        """
        if pid is not None and process is not None:
            raise ValueError("give pid or process, not both")
        who = process if pid is None else pid
        selection = selected(until=until, process=who, mapping=mapping, address=address)
        return Frame(self._native.mappings(seq, at_open, selection))

    def check(
        self, *, frames: bool = False, allow_loss: bool = False, examples: int = 5
    ) -> CheckReport:
        """Applies every rule of ``postproc check``. With ``frames``, canonical pages are compared with
        page frames, too. ``examples`` is the number of findings that are kept for each rule."""
        return CheckReport(json.loads(self._native.check_json(frames, allow_loss, examples)))

    @overload
    def curve(
        self,
        policy: str = ...,
        *,
        points: int = ...,
        sample: float | None = ...,
        fill: bool = ...,
        io: bool = ...,
        where: str | None = ...,
        since: str | None = ...,
        until: str | None = ...,
        process: Process | None = ...,
        comm: Names | None = ...,
        mapping: Names | None = ...,
        address: Addresses | None = ...,
        set: int | None = ...,
        pages: Pages = ...,
        keep_freed: bool = ...,
        trust: bool = ...,
        allow_loss: bool = ...,
    ) -> Curve: ...
    @overload
    def curve(
        self,
        policy: list[str] | tuple[str, ...],
        *,
        points: int = ...,
        sample: float | None = ...,
        fill: bool = ...,
        io: bool = ...,
        where: str | None = ...,
        since: str | None = ...,
        until: str | None = ...,
        process: Process | None = ...,
        comm: Names | None = ...,
        mapping: Names | None = ...,
        address: Addresses | None = ...,
        set: int | None = ...,
        pages: Pages = ...,
        keep_freed: bool = ...,
        trust: bool = ...,
        allow_loss: bool = ...,
    ) -> dict[str, Curve]: ...
    def curve(
        self,
        policy: str | list[str] | tuple[str, ...] = "lru",
        *,
        points: int = 0,
        sample: float | None = None,
        fill: bool = False,
        io: bool = False,
        where: str | None = None,
        since: str | None = None,
        until: str | None = None,
        process: Process | None = None,
        comm: Names | None = None,
        mapping: Names | None = None,
        address: Addresses | None = None,
        set: int | None = None,
        pages: Pages = "canonical",
        keep_freed: bool = False,
        trust: bool = False,
        allow_loss: bool = False,
    ) -> Curve | dict[str, Curve]:
        """The misses of every size of memory, from 1 page to the footprint, in one pass.

        Policies that allow this are ``'lru'`` and ``'opt'``. Several policies are simulated in the
        same pass, and a dictionary of curves is returned.

        points
            Give at most so many sizes, in equal ratios. 0 gives every size.
        sample
            Estimate from this share of the pages, in the same share of the time. Any policy can be
            estimated.
        fill
            Add references that follow from the trace, although they are not in it.
        io
            Let read() and write() reference the pages of files.
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
        options = _options(selection, set, pages, keep_freed)
        manner = {"fill": fill, "io": io, "trust": trust, "allow_loss": allow_loss}
        names = _names(policy)
        if sample is None:
            text, curves = self._native.curves(names, points, options, manner)
        else:
            text, curves = self._native.estimate_curves(names, points or 64, sample, options, manner)
        about = record(json.loads(text))
        warn(about)
        made = {name: Curve(name, rows, about) for name, rows in curves}
        # Several is also what 'all' gives.
        return made[policy] if isinstance(policy, str) and policy in made else made

    def simulate(
        self,
        policy: str | list[str] | tuple[str, ...] | Callable[[int], Policy | Memory] | Policy | Memory,
        sizes: Size | Iterable[Size] | None = None,
        *,
        sample: float | None = None,
        fill: bool = False,
        io: bool = False,
        where: str | None = None,
        since: str | None = None,
        until: str | None = None,
        process: Process | None = None,
        comm: Names | None = None,
        mapping: Names | None = None,
        address: Addresses | None = None,
        set: int | None = None,
        pages: Pages = "canonical",
        keep_freed: bool = False,
        trust: bool = False,
        allow_loss: bool = False,
    ) -> Simulation:
        """The misses of memories of these sizes.

        A size is a number of pages (``4000``), bytes (``"16MiB"``), or a share of the footprint
        (``0.1`` or ``"10%"``), which takes one more pass. The footprint is the largest number of pages
        that exist at one time. Texts mean the same as with ``kvmtrace simulate --size``. ``sizes`` is
        one size or several.

        ``policy`` is the name of one (:func:`kvmtrace.policies`), several names, ``'all'``, or a
        policy in Python: a class or another callable that makes a :class:`Policy` or a
        :class:`Memory` of a size, or such an object. An object of a Memory needs no size.

        The other arguments are those of :meth:`curve`.
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
        options = _options(selection, set, pages, keep_freed)
        manner = {"fill": fill, "io": io, "trust": trust, "allow_loss": allow_loss}
        if isinstance(policy, (str, list, tuple)):
            if sizes is None:
                raise ValueError("give sizes, such as 4000 (pages); curve() computes all at once")
            names, of = _names(policy), self._pages_of(sizes, options, manner)
            if sample is None:
                text, rows = self._native.simulate(names, of, options, manner)
            else:
                text, rows = self._native.estimate_sizes(names, of, sample, options, manner)
        else:
            if sample is not None:
                raise ValueError("sample is for policies that are given by name")
            of_pages = None if sizes is None else self._pages_of(sizes, options, manner)
            text, rows = self._native.simulate_objects(_objects(policy, of_pages), options, manner)
        about = record(json.loads(text))
        warn(about)
        return Simulation(rows, about)

    def _pages_of(
        self,
        sizes: Size | Iterable[Size],
        options: dict[str, object],
        manner: dict[str, bool],
    ) -> list[int]:
        return self._native.pages_of(_texts(sizes), options, manner)

    def working_set(
        self,
        *,
        time: Time = "real",
        where: str | None = None,
        since: str | None = None,
        until: str | None = None,
        process: Process | None = None,
        comm: Names | None = None,
        mapping: Names | None = None,
        address: Addresses | None = None,
        set: int | None = None,
        pages: Pages = "canonical",
        keep_freed: bool = False,
        trust: bool = False,
        allow_loss: bool = False,
    ) -> WorkingSet:
        """How many pages were referenced in the last time τ, for many τ, at up to 320 moments."""
        selection = selected(
            where=where,
            since=since,
            until=until,
            process=process,
            comm=comm,
            mapping=mapping,
            address=address,
        )
        options = _options(selection, set, pages, keep_freed, time)
        about = record(json.loads(self._native.working_set_json(trust, allow_loss, options)))
        warn(about)
        return WorkingSet(about)

    def __repr__(self) -> str:
        window = "" if self._native.window is None else f", window {self._native.window}"
        return f"<kvmtrace.Trace {self.path!r}{window}: N = {self.n:,}>"

    def _repr_html_(self) -> str:
        status = self.about.status
        facts: list[list[object]] = [
            ["trace", self.path],
            ["window", self._native.window],
            ["N", self.n],
            ["page size", self.page_size],
            ["CPUs", self.header.nr_cpus],
            ["kernel", f"{self.header.release} {self.header.arch}"],
            ["records of references", status.refs if status else None],
            ["events", status.events if status else None],
            ["windows", len(self.windows) or None],
            ["complete", "yes" if self.complete else "no: the trace was cut short"],
            ["damage", "; ".join(self.damage[:3]) or None],
        ]
        return _html(["", ""], [fact for fact in facts if fact[1] is not None])


def _objects(policy: Any, sizes: list[int] | None) -> list[tuple[object, int | None]]:
    """A policy for each size."""
    is_one = hasattr(policy, "access") or hasattr(policy, "victim")
    if inspect.isclass(policy) or (callable(policy) and not is_one):
        if sizes is None:
            raise ValueError("give sizes, such as 4000 (pages): the policy is made for each of them")
        return [(policy(size), size) for size in sizes]
    if sizes is None:
        return [(policy, None)]
    if len(sizes) > 1:
        raise ValueError("give the class of the policy, not an object, for several sizes")
    return [(policy, sizes[0])]
