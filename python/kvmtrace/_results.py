"""What is computed from a trace."""

from __future__ import annotations

import bisect
import html
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from . import _kvmtrace
from ._record import Record, record
from ._table import Frame, _html

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes


class TraceWarning(UserWarning):
    """A result is worth less than it seems: the trace is not good, or bounds are missing."""


def warn(about: Any, level: int = 3) -> None:
    """Warns of what lies in the trace, and not in what was asked for."""
    for text in about["warnings"]:
        warnings.warn(text, TraceWarning, stacklevel=level)


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'kvmtrace[plot]'") from error
    return pyplot.subplots(figsize=(8, 4.5), layout="constrained")[1]


class _Result(Frame):
    """Rows, and what is known besides them."""

    def __init__(self, native: _kvmtrace.Batch, about: Record) -> None:
        super().__init__(native)
        self.about = about

    @property
    def references(self) -> int:
        """References that were simulated."""
        return int(self.about.references)

    @property
    def n(self) -> int:
        """N, in pages: references to the N pages of the set are not in the trace."""
        return int(self.about.evms_size)

    @property
    def page_size(self) -> int:
        """Bytes of a page."""
        return int(self.about.page_size)

    @property
    def good(self) -> bool:
        """Whether the trace passed its checks. Those that cost time are left out with ``trust``."""
        return bool(self.about.good)

    @property
    def findings(self) -> list[str]:
        """The first findings of these checks, in words."""
        return list(self.about.findings)

    @property
    def exact(self) -> bool:
        """Whether bounds can be proven for results of LRU and OPT: all references to one set were
        simulated. Bounds also need a good trace."""
        return bool(self.about.exact)

    @property
    def why_not_exact(self) -> str | None:
        """The reason, if :attr:`exact` is false."""
        why = self.about.why_not_exact
        return None if why is None else str(why)


class Curve(_Result):
    """The misses of a policy by size of memory. Each column has a row for each size, ascending.

    Columns are Arrow arrays, and arrays of numpy (``numpy.asarray(curve.misses)``). The whole curve
    is a table, too: ``curve.to_pandas()``, ``polars.DataFrame(curve)``.
    """

    def __init__(self, policy: str, native: _kvmtrace.Batch, about: Record) -> None:
        super().__init__(native, about)
        #: The policy.
        self.policy = policy

    @property
    def is_estimate(self) -> bool:
        """Whether the misses were estimated from a sample of pages."""
        return self.about.sample is not None

    @property
    def sizes(self) -> _kvmtrace.Column:
        """Sizes of memory, in pages: int64, ascending."""
        return self["size_pages"]

    @property
    def misses(self) -> _kvmtrace.Column:
        """References to pages that were not in memory, by size: int64; float64 of an estimate."""
        return self["misses"]

    @property
    def write_backs(self) -> _kvmtrace.Column:
        """Dirty pages that were replaced, by size: int64, null where the number cannot be known."""
        return self["write_backs"]

    @property
    def lower(self) -> _kvmtrace.Column:
        """The least number of misses that all references of the run would give, by size: int64.

        It is proven (docs/fidelity.md). It is null where nothing is proven: for memories smaller than
        2 N - 1 pages with LRU (N with OPT), for other policies, for a trace that failed its checks,
        and for references that a filter has kept (:attr:`why_not_exact`).
        """
        self._no_bounds()
        return self["lower"]

    @property
    def upper(self) -> _kvmtrace.Column:
        """The largest number of misses that all references of the run would give: as :attr:`lower`."""
        self._no_bounds()
        return self["upper"]

    def _no_bounds(self) -> None:
        if self.is_estimate:
            raise AttributeError(
                "an estimate has no proven bounds; the columns low and high are its 95 % band"
            )

    @property
    def cold(self) -> int:
        """Misses that every size has: first references to pages."""
        return int(self["cold"][0]) if len(self) else 0

    @property
    def footprint(self) -> int:
        """The smallest size, in pages, that has only cold misses: the most pages that there were at
        one time. 0 if there was no reference."""
        return int(self.sizes[-1]) if len(self) else 0

    def at(self, size: int) -> Record:
        """The row of a size, in pages; of the next smaller size that the curve has, if it has not
        this one. A size above the footprint has the row of the footprint.

        Raises ValueError if the curve begins above this size.
        """
        place = bisect.bisect_right(self.sizes, size) - 1
        if place < 0:
            raise ValueError(f"the curve has no size of {size} pages or less")
        return Record({name: self[name][place] for name in self.column_names})

    def plot(self, ax: Axes | None = None, *, bounds: bool = True, label: str | None = None) -> Axes:
        """Draws misses by size with matplotlib, both logarithmic, and the proven bounds as a band.

        Returns the axes: ``ax``, or those of a new figure.
        """
        import numpy

        ax = _axes(ax)
        sizes, misses = numpy.asarray(self.sizes), numpy.asarray(self.misses)
        (line,) = ax.step(sizes, misses, where="post", label=label or self.policy)
        names = ("low", "high") if self.is_estimate else ("lower", "upper")
        if bounds and len(self):
            low, high = (numpy.asarray(self[name], dtype=float) for name in names)
            if not numpy.isnan(low).all():
                what = "95 % band" if self.is_estimate else "proven bounds"
                ax.fill_between(
                    sizes, low, high, step="post", alpha=0.25, color=line.get_color(), label=what
                )
        ax.set(xscale="log", yscale="log", xlabel="memory in pages", ylabel="misses")
        ax.set_title(f"{self.references:,} references, N = {self.n:,} pages")
        ax.grid(True, which="both", alpha=0.2)
        ax.legend()
        return ax

    def __repr__(self) -> str:
        return (
            f"<kvmtrace.Curve of {self.policy}: {len(self):,} sizes up to {self.footprint:,} pages, "
            f"{self.references:,} references>"
        )

    def _repr_html_(self) -> str:
        last, shown = len(self) - 1, []
        size = 1
        while size < self.footprint:
            shown.append(max(bisect.bisect_right(self.sizes, size) - 1, 0))
            size *= 4
        places = sorted({*shown, last}) if len(self) else []
        names = [name for name in self.column_names if name not in ("policy", "references")]
        names = [name for name in names if any(self[name][at] is not None for at in places)]
        rows = [[self[name][at] for name in names] for at in places]
        why = f"<p>No bounds: {self.why_not_exact}.</p>" if self.why_not_exact else ""
        return f"<p>{html.escape(repr(self))}</p>" + _html(names, rows) + why


class Simulation(_Result):
    """The counts of memories of some sizes: a row for each policy and size.

    ======================  =====================================================================
    column                  what
    ======================  =====================================================================
    policy                  its name
    size_pages              size of memory, in pages
    references              references
    misses, hits            references to pages that were not in memory, and that were
    cold, capacity          misses that are first references to pages, and all others
    write_backs             dirty pages that were replaced; null if that cannot be known
    dirty_left              dirty pages in memory at the end
    lower, upper            proven bounds on the misses that all references of the run would give:
                            see :attr:`Curve.lower`
    measured_mean_percent,  the error of such simulations that was measured with other programs
    measured_worst_percent  (docs/fidelity.md), in percent of misses and distinct pages
    ======================  =====================================================================

    Estimates of a sample have the columns misses_error, low and high (the 95 % band) instead, and
    floats.
    """

    def __iter__(self) -> Iterator[Any]:
        return super().__iter__()

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draws misses by size with matplotlib, a line for each policy. Returns the axes."""
        ax = _axes(ax)
        lines: dict[str, list[tuple[int, float]]] = {}
        for row in self.rows():
            lines.setdefault(row["policy"], []).append((row["size_pages"] or 0, row["misses"]))
        for policy, points in lines.items():
            ax.plot(*zip(*sorted(points)), marker="o", label=policy)
        ax.set(xscale="log", yscale="log", xlabel="memory in pages", ylabel="misses")
        ax.grid(True, which="both", alpha=0.2)
        ax.legend()
        return ax


class WorkingSet:
    """How many pages were referenced in the time τ before t: W(t, τ).

    References to the N pages of the set are not in the trace, so the program's own working set may be
    up to N pages larger.
    """

    def __init__(self, about: Record) -> None:
        self.about = about
        over_time, by_window = about.figures
        #: The moments t, in ns since the trace began, ascending.
        self.times: list[int] = [sample["t"] for sample in over_time["data"]["samples"]]
        #: The lengths τ, in ns, ascending.
        self.taus: list[int] = list(over_time["data"]["tau"])
        #: Pages: ``pages[i][j]`` is W(times[i], taus[j]). Its shape is (times, taus).
        self.pages: list[list[int]] = [list(sample["pages"]) for sample in over_time["data"]["samples"]]
        #: A record for each τ whose whole length lies in the trace: tau (ns), and mean, p5, p50, p95
        #: and max over time (pages).
        self.percentiles: list[Record] = list(by_window["data"]["rows"])
        #: Two pictures as SVG: over time, and by τ.
        self.svg: list[str] = [over_time["svg"], by_window["svg"]]

    @property
    def n(self) -> int:
        """N, in pages."""
        return int(self.about.evms_size)

    @property
    def references(self) -> int:
        """References that were counted."""
        return int(self.about.references)

    @property
    def good(self) -> bool:
        """Whether the trace passed its checks."""
        return bool(self.about.good)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        import numpy

        return numpy.array(self.pages, dtype=dtype or "int64").reshape(len(self.times), len(self.taus))

    def to_pandas(self) -> pandas.DataFrame:
        """A data frame: a row for each moment (ns), a column for each τ (ns)."""
        import pandas

        index = pandas.Index(self.times, name="t_ns")
        return pandas.DataFrame(self.pages, index=index, columns=pandas.Index(self.taus, name="tau_ns"))

    def plot(self, ax: Axes | None = None, *, lines: int = 5) -> Axes:
        """Draws W over time with matplotlib for some τ. Returns the axes."""
        ax = _axes(ax)
        step = max(1, (len(self.taus) - 1) // max(1, lines - 1))
        for j in range(len(self.taus) - 1, -1, -step):
            values = [row[j] for row in self.pages]
            times = [t / 1e9 for t in self.times]
            ax.plot(times, values, label=f"τ = {self.taus[j] / 1e6:g} ms")
        ax.set(xlabel="time since the trace began, s", ylabel="pages")
        ax.set_title(f"working set, N = {self.n:,} pages")
        ax.grid(True, alpha=0.2)
        ax.legend()
        return ax

    def __repr__(self) -> str:
        return f"<kvmtrace.WorkingSet: {len(self.times)} moments, {len(self.taus)} lengths τ>"

    def _repr_html_(self) -> str:
        return "".join(self.svg)


class Finding(Record):
    """What breaks a rule: rule, severity, message, offset (in bytes), record, related."""


class CheckReport:
    """The findings of all rules. It is true if the trace is good."""

    def __init__(self, about: dict[str, Any]) -> None:
        self.about: Record = record(about)

    @property
    def good(self) -> bool:
        """Whether no rule found an error."""
        return bool(self.about.good)

    def __bool__(self) -> bool:
        return self.good

    @property
    def rules(self) -> list[Record]:
        """A record for each rule: id, about (what it demands), the counts errors, warnings and notes,
        and examples (the first findings)."""
        return list(self.about.rules)

    @property
    def findings(self) -> list[Finding]:
        """The first findings of all rules."""
        return [Finding(finding) for rule in self.rules for finding in rule.examples]

    @property
    def errors(self) -> int:
        """Findings that make the trace bad, also those that are not shown."""
        return sum(rule.errors for rule in self.rules)

    def __repr__(self) -> str:
        verdict = "good" if self.good else f"NOT GOOD: {self.errors:,} errors"
        lines = [f"<kvmtrace.CheckReport: {verdict}>"]
        lines += [f"{f.severity}: {f.rule}: {f.message}" for f in self.findings]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        names = ["id", "errors", "warnings", "notes", "about"]
        rows = [[rule[name] for name in names] for rule in self.rules]
        verdict = "good" if self.good else f"<b>not good: {self.errors:,} errors</b>"
        shown = _html(["finding"], [[f"{f.rule}: {f.message}"] for f in self.findings])
        return f"<p>{verdict}</p>" + _html(names, rows) + (shown if self.findings else "")
