"""Facts by name."""

from __future__ import annotations

from typing import Any

from ._table import _html


class Record(dict[str, Any]):
    """A dictionary whose members are attributes, too: ``header.evms_size``."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self})

    def __repr__(self) -> str:
        return f"Record({super().__repr__()})"

    def _repr_html_(self) -> str:
        return _html(["", ""], [[name, value] for name, value in self.items()])


def record(value: Any) -> Any:
    """The same with records for dictionaries."""
    if isinstance(value, dict):
        return Record({name: record(member) for name, member in value.items()})
    if isinstance(value, list):
        return [record(member) for member in value]
    return value
