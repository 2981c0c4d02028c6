"""Policies that are written in Python."""

import collections
import ctypes
import signal

import kvmtrace
import pytest
from conftest import NAMES, trace_path
from test_results import maybe_bad


class Lru(kvmtrace.Policy):
    """The least recently used page is replaced."""

    name = "lru in Python"

    def __init__(self, size):
        self.pages = collections.OrderedDict()

    def hit(self, page):
        self.pages.move_to_end(page)

    def insert(self, page):
        self.pages[page] = None

    def victim(self, incoming):
        return self.pages.popitem(last=False)[0]

    def forget(self, page):
        self.pages.pop(page, None)


class Fifo(Lru):
    """The page that came first is replaced."""

    def hit(self, page):
        pass


class LruMemory:
    """A whole memory with LRU."""

    def __init__(self, size):
        self.size = size
        self.pages = collections.OrderedDict()

    def access(self, page, write):
        hit = page in self.pages
        self.pages[page] = None
        self.pages.move_to_end(page)
        if len(self.pages) > self.size:
            self.pages.popitem(last=False)
        return hit

    def free(self, page):
        self.pages.pop(page, None)


def without_bounds(rows):
    names = ("policy", "lower", "upper", "measured_mean_percent", "measured_worst_percent")
    return [{name: value for name, value in row.items() if name not in names} for row in rows]


@pytest.mark.parametrize("name", NAMES)
def test_lru_is_the_built_in_one(name):
    trace, sizes = kvmtrace.open(trace_path(name)), [3, 20, 100]
    with maybe_bad():
        theirs = trace.simulate("lru", sizes).rows()
        ours = trace.simulate(Lru, sizes)
        memories = trace.simulate(LruMemory, sizes).rows()
        fifo = trace.simulate(Fifo, sizes).rows()
        built_in = trace.simulate("fifo", sizes).rows()
    assert without_bounds(ours.rows()) == without_bounds(theirs)
    assert set(ours["policy"]) == {"lru in Python"}
    # Nothing is proven or measured of them.
    assert ours["upper"].null_count == ours["measured_mean_percent"].null_count == len(sizes)
    for memory, row in zip(memories, theirs):
        assert memory["policy"] == "LruMemory"
        assert [memory[n] for n in ("size_pages", "references", "misses", "hits", "cold", "capacity")] == [
            row[n] for n in ("size_pages", "references", "misses", "hits", "cold", "capacity")
        ]
        # It does not say which pages are dirty.
        assert memory["write_backs"] is None and memory["dirty_left"] is None
    assert without_bounds(fifo) == without_bounds(built_in)
    # Another policy has other misses.
    assert [row["misses"] for row in fifo] != [row["misses"] for row in theirs]


def test_options():
    trace = kvmtrace.open(trace_path("fork-exec"))
    for options in (
        {"keep_freed": True},
        {"pages": "virtual"},
        {"fill": True},
        {"where": "kind == write"},
        {"io": True},
    ):
        theirs = trace.simulate("lru", [5, 50], **options).rows()
        assert without_bounds(trace.simulate(Lru, [5, 50], **options).rows()) == without_bounds(theirs)


def test_objects():
    trace = kvmtrace.open(trace_path("fifo"))
    (expected,) = trace.simulate("lru", 20)["misses"]
    memory = LruMemory(20)
    result = trace.simulate(memory)
    assert list(result["misses"]) == [expected] and list(result["size_pages"]) == [20]
    assert 0 < len(memory.pages) <= 20
    assert list(trace.simulate(Lru(20), 20)["misses"]) == [expected]
    assert list(trace.simulate(lambda size: Lru(size), 20)["misses"]) == [expected]

    class NeverHits:
        def access(self, page, write):
            return False

    (row,) = trace.simulate(NeverHits()).rows()
    assert row["misses"] == row["references"] == trace.curve().references
    assert row["size_pages"] is None and row["policy"] == "NeverHits"


def test_writes_are_told():
    trace = kvmtrace.open(trace_path("fifo"))
    seen = []

    class Remembers:
        def access(self, page, write):
            seen.append((page, write))
            return False

    trace.simulate(Remembers(), keep_freed=True)
    rows = trace.references(columns=["page", "access", "dirtied"], keep_freed=True).rows()
    assert seen == [(r["page"], r["access"] == "write" or r["dirtied"]) for r in rows]


class Broken(Lru):
    """Goes wrong after some references."""

    def __init__(self, size):
        super().__init__(size)
        self.left = 10

    def hit(self, page):
        super().hit(page)
        self.left -= 1
        if self.left == 0:
            self.fail()


def test_exceptions_are_passed_on():
    trace = kvmtrace.open(trace_path("fifo"))

    class Mine(Exception):
        pass

    class Raises(Broken):
        def fail(self):
            raise Mine("after 10 hits")

    with pytest.raises(Mine, match="after 10 hits") as raised:
        trace.simulate(Raises, [100, 200])
    # The traceback leads into the policy.
    assert raised.traceback[-1].name == "fail"

    class Interrupted(Broken):
        def fail(self):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        trace.simulate(Interrupted, 100)
    # Nothing is left behind: the same trace can be used.
    assert trace.simulate(Lru, 20).rows()


def test_interrupt_during_a_pass():
    """A signal comes while no code of Python runs: the methods are functions in C, of which one raises
    it, and one counts."""
    interrupt, calls = ctypes.pythonapi.PyErr_SetInterrupt, []
    interrupt.restype = None

    class Policy:
        def __init__(self, size):
            self.access = {1: interrupt, 2: calls.insert}[size]

    trace = kvmtrace.open(trace_path("two-cpus"))
    references = trace.curve().references
    # Accesses are handed on in blocks of 4,096.
    assert references > 4096
    with pytest.raises(KeyboardInterrupt):
        trace.simulate(Policy, [1, 2])
    # The pass has ended by it. The interpreter would have found it behind the pass.
    assert 4096 <= len(calls) < references
    calls.clear()
    trace.simulate(Policy, [2])
    assert len(calls) == references


@pytest.mark.parametrize("wrong", [None, 0, -1, 2**40, "7", 4_000_000])
def test_victims_must_be_in_memory(wrong):
    class Lies(Lru):
        def victim(self, incoming):
            return wrong

    with pytest.raises(ValueError, match=r"Lies\.victim\(\) returned .*no page in memory"):
        kvmtrace.open(trace_path("fifo")).simulate(Lies, 20)


def test_a_replaced_page_is_no_victim():
    class Stubborn(Lru):
        first = None

        def victim(self, incoming):
            self.first = self.first or super().victim(incoming)
            return self.first

    with pytest.raises(ValueError, match="no page in memory"):
        kvmtrace.open(trace_path("fifo")).simulate(Stubborn, 5)


def test_a_freed_page_is_no_victim():
    class Forgetful(Lru):
        def forget(self, page):
            pass

    trace = kvmtrace.open(trace_path("fork-exec"))
    with pytest.raises(ValueError, match="no page in memory"):
        trace.simulate(Forgetful, 20)
    assert trace.simulate(Forgetful, 20, keep_freed=True).rows()


def test_what_is_no_policy():
    trace = kvmtrace.open(trace_path("fifo"))

    class Half:
        def victim(self, incoming):
            return 1

    class AlwaysHits:
        def access(self, page, write):
            return True

    with pytest.raises(TypeError, match="Half has no method hit"):
        trace.simulate(Half(), 10)
    with pytest.raises(TypeError, match="object has no method access"):
        trace.simulate(object())
    with pytest.raises(ValueError, match="give sizes"):
        trace.simulate(Lru(3))
    with pytest.raises(ValueError, match="give sizes"):
        trace.simulate(Lru)
    with pytest.raises(ValueError, match="give the class"):
        trace.simulate(Lru(3), [3, 4])
    with pytest.raises(ValueError, match="sample is for policies"):
        trace.simulate(Lru, 3, sample=0.5)
    with pytest.raises(ValueError, match="was never referenced before"):
        trace.simulate(AlwaysHits())

    class Nothing(kvmtrace.Policy):
        def __init__(self, size):
            pass

    with pytest.raises(NotImplementedError):
        trace.simulate(Nothing, 3)


def test_a_memory_that_is_not_told_of_freed_pages():
    """Freed pages stay in it until they are replaced, and no number stands for two pages."""
    trace = kvmtrace.open(trace_path("fork-exec"))

    class Kept:
        def __init__(self, size):
            self.memory = LruMemory(size)
            self.access = self.memory.access

    (row,) = trace.simulate(Kept, 300).rows()
    (kept,) = trace.simulate("lru", 300, keep_freed=True).rows()
    assert [row[n] for n in ("references", "misses", "cold")] == [
        kept[n] for n in ("references", "misses", "cold")
    ]
    (freed,) = trace.simulate(LruMemory, 300).rows()
    assert row["misses"] != freed["misses"]
