"""Tables: rows of a trace in Arrow's memory format."""

from __future__ import annotations

import html
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from . import _kvmtrace

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

#: Rows that a notebook shows.
_SHOWN = 10


class Table:
    """Rows that are made while they are read.

    A table takes no memory: each reading goes through the trace anew, in a thread that is a few
    batches ahead of the reader. Whatever reads the Arrow PyCapsule interface takes a table as it is,
    and nothing is copied on the way: ``pyarrow.table(t)``, ``polars.DataFrame(t)``,
    ``duckdb.sql("from t")``. With ``for batch in t``, a program reads a trace of any length in a
    memory of a few MB.
    """

    def __init__(self, native: _kvmtrace.Table | _kvmtrace.Batch) -> None:
        self._native = native

    @property
    def column_names(self) -> list[str]:
        """The names of the columns."""
        return self._native.column_names

    def __arrow_c_schema__(self) -> object:
        return self._native.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._native.__arrow_c_stream__(requested_schema)

    def __iter__(self) -> Iterator[_kvmtrace.Batch]:
        """Batches of up to 65,536 rows, in the order of the trace. Ctrl-C ends the iteration."""
        native = self._native
        if isinstance(native, _kvmtrace.Batch):
            return iter([native])
        return iter(native)

    def to_arrow(self) -> pyarrow.Table:
        """All rows as a table of pyarrow, without a copy. Ctrl-C ends it."""
        import pyarrow

        batches = [pyarrow.record_batch(batch) for batch in self]
        return pyarrow.Table.from_batches(batches, schema=pyarrow.schema(self))

    def to_pandas(self, **options: Any) -> pandas.DataFrame:
        """All rows as a data frame of pandas.

        Columns of words, such as ``access``, are categories. ``options`` are those of
        ``pyarrow.Table.to_pandas``: with ``types_mapper=pandas.ArrowDtype``, integers that may be
        missing stay integers.
        """
        frame: pandas.DataFrame = self.to_arrow().to_pandas(**options)
        return frame

    def to_polars(self) -> polars.DataFrame:
        """All rows as a data frame of polars. Ctrl-C ends it."""
        import polars

        frames = [polars.DataFrame(batch) for batch in self]
        return polars.concat(frames) if frames else polars.DataFrame(self)

    def rows(self, limit: int | None = None) -> list[dict[str, Any]]:
        """The first ``limit`` rows, or all, as dictionaries. It needs no other package, and is slow."""
        rows = itertools.islice(_rows(self), limit)
        return list(rows)

    def _length(self) -> str:
        return ""

    def __repr__(self) -> str:
        return f"<kvmtrace.{type(self).__name__}{self._length()}: {', '.join(self.column_names)}>"

    def _repr_html_(self) -> str:
        rows = self.rows(_SHOWN + 1)
        more = "<p>…</p>" if len(rows) > _SHOWN else ""
        return _html(self.column_names, [list(row.values()) for row in rows[:_SHOWN]]) + more


class Frame(Table):
    """A table whose rows are in memory."""

    _native: _kvmtrace.Batch

    def __init__(self, native: _kvmtrace.Batch) -> None:
        super().__init__(native)

    def __len__(self) -> int:
        return len(self._native)

    def __getitem__(self, name: str) -> _kvmtrace.Column:
        """The column of this name. ``numpy.asarray`` makes an array of it, of numbers without a copy."""
        return self._native[name]

    def _length(self) -> str:
        return f" of {len(self):,} rows"


def _rows(batches: Iterator[_kvmtrace.Batch] | Table) -> Iterator[dict[str, Any]]:
    for batch in batches:
        names = batch.column_names
        columns = [batch[name] for name in names]
        for at in range(len(batch)):
            yield {name: column[at] for name, column in zip(names, columns)}


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return html.escape(str(value))


def _html(names: list[str], rows: list[list[Any]]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{_text(value)}</td>" for value in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
