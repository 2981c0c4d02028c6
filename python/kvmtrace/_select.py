"""Selections, as the commands have them."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, TypedDict

#: A process: its id, or its name, which may be a pattern.
Process = int | str
#: A name, which may be a pattern, or several of which one must fit.
Names = str | Iterable[str]
#: Addresses: an address, which stands for its page; a text as ``--address`` of the commands takes it; a
#: range (the end is not included); or several of these.
Addresses = int | str | range | Iterable[int | str | range]


class Selected(TypedDict):
    """A selection as the native module takes it: texts that the options of the commands take, too."""

    where: str | None
    since: str | None
    until: str | None
    process: str | None
    comm: list[str]
    mapping: list[str]
    address: list[str]


def _text(name: str, value: Any, such: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r}; it must be a text such as {such}")
    return value


def _moment(name: str, value: str | None) -> str | None:
    return None if value is None else _text(name, value, "'1.5s', '250ms' or '90%'")


def _number(name: str, value: Any) -> int:
    number = operator.index(value)
    if number < 0:
        raise ValueError(f"{name} is {number}; it must be 0 or more")
    return number


def _process(value: Process | None) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return str(_number("process", value))


def _names(name: str, value: Names | None) -> list[str]:
    if value is None or isinstance(value, str):
        return [] if value is None else [value]
    return [_text(name, one, "'cc1', '[heap]' or '*.so*'") for one in value]


def _address(value: Any) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, range):
        return hex(_number("address", value))
    if value.step != 1:
        raise ValueError(f"address is {value!r}; a range of addresses has a step of 1")
    return f"{_number('address', value.start):#x}..{_number('address', value.stop):#x}"


def _addresses(value: Addresses | None) -> list[str]:
    if value is None:
        return []
    # A range is one, although its numbers can be read one by one.
    is_one = isinstance(value, (str, range)) or not isinstance(value, Iterable)
    return [_address(one) for one in ([value] if is_one else value)]  # type: ignore[union-attr]


def selected(
    *,
    where: str | None = None,
    since: str | None = None,
    until: str | None = None,
    process: Process | None = None,
    comm: Names | None = None,
    mapping: Names | None = None,
    address: Addresses | None = None,
) -> Selected:
    """A selection as the native module takes it.

    Raises TypeError and ValueError for what can never be a selection. The native module reads the texts.
    """
    return {
        "where": where,
        "since": _moment("since", since),
        "until": _moment("until", until),
        "process": _process(process),
        "comm": _names("comm", comm),
        "mapping": _names("mapping", mapping),
        "address": _addresses(address),
    }
