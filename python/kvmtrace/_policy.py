"""Policies in Python: what they have to have."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Policy(Protocol):
    """Chooses the page to replace, and nothing else.

    postproc keeps which pages are in memory and which are dirty, and counts misses and write-backs.
    So results are comparable with those of the built-in policies. ``Trace.simulate`` takes a class
    (or another callable), and calls it with each size in pages.

    A page is a number from 1. After :meth:`forget`, the number may stand for another page. With
    ``keep_freed=True`` no page is forgotten, so a policy needs no such method of its own.

    An attribute ``name`` is the name in the result, instead of that of the class.
    """

    def hit(self, page: int) -> None:
        """A page in memory was referenced."""

    def insert(self, page: int) -> None:
        """A page was loaded."""

    def victim(self, incoming: int) -> int:
        """Chooses the page to replace, before ``incoming`` is inserted. It must be in memory. The
        page leaves memory then."""
        raise NotImplementedError

    def forget(self, page: int) -> None:
        """A page that was inserted before, and may have been replaced since, was freed: its last
        mapping has gone. Without this, ``victim`` could choose a page that is no more."""


@runtime_checkable
class Memory(Protocol):
    """A whole memory: it says of each reference whether it hits.

    ``Trace.simulate`` takes an object, or a class that is called with each size in pages. postproc
    counts references, misses and cold misses. Nothing is proven of such a memory. An attribute
    ``size``, in pages, is the size in the result.

    If the object has a method ``free(page: int)``, it is called when a page that was referenced has
    ended; its number may stand for another page later. Without this method, a freed page is the
    memory's to replace, and no number stands for two pages.
    """

    def access(self, page: int, write: bool) -> bool:
        """A page is referenced, and written if ``write``: whether it was in memory. Numbers are from
        1."""
        raise NotImplementedError
