"""Summaries of traces, and their sum: what the command gives."""

import json
import re

import pytest

import kvmtrace

from conftest import TOP, trace_path

#: A trace with processes, threads and mappings that have names.
SQLITE3 = TOP / "docs/gallery/sqlite3.vmt"


def test_a_summary_is_the_command_s(postproc, path):
    theirs = postproc.run("summary", path, "--host", "h", codes=(0, 1)).stdout
    mine = kvmtrace.summary(path, host="h")
    assert mine.json + "\n" == theirs
    assert kvmtrace.summary(path, host="h", threads=False).json == mine.json
    assert mine.trace.host == "h"
    trace = kvmtrace.open(path)
    for policy in ("lru", "opt"):
        curve = trace.curve(policy, trust=True, allow_loss=True)
        sizes = [*curve.sizes]
        assert mine.curve(policy, sizes) == (sizes, [*curve.misses])
        assert mine.misses(policy, 0) == mine.misses(policy, 1)
    with pytest.raises(ValueError, match="must be 'lru' or 'opt'"):
        mine.misses("arc", 1)


def test_merged_summaries_are_the_command_s(postproc, lines):
    theirs = postproc.run("merge", lines, "--json").stdout
    texts = lines.read_text().splitlines()
    mine = kvmtrace.merge(texts)
    assert mine.json + "\n" == theirs
    # In any order, and in any number of steps.
    halves = [kvmtrace.merge(texts[1::2][::-1]), kvmtrace.merge(texts[::2])]
    assert kvmtrace.merge(halves).json == mine.json
    sizes, misses = mine.curve("lru")
    each = [kvmtrace.Summary(text) for text in texts]
    assert misses == [sum(one.misses("lru", size) for one in each) for size in sizes]
    assert mine.traces == len(texts) and mine.most_memory(3)[0].bytes > 0
    # A reference more in one of the traces is seen.
    one = texts[3].replace(f'"cold":{each[3].lru.cold}', f'"cold":{each[3].lru.cold + 1}', 1)
    assert kvmtrace.merge([*texts[:3], one, *texts[4:]]).json != mine.json


def test_a_selection(lines):
    text = lines.read_text().splitlines()[0]
    whole = kvmtrace.Summary(text)
    count = f"{whole.references:,} references"
    assert whole.selection is None
    assert repr(whole) == f"<kvmtrace.Summary of 1 trace: {count}>"
    # Version 1 has no such field.
    fields = json.loads(text) | {"summary_version": 1}
    del fields["selection"]
    early = kvmtrace.Summary(json.dumps(fields))
    assert early.selection is None and repr(early) == repr(whole)
    assert kvmtrace.merge([early]).selection is None
    some = kvmtrace.Summary(json.dumps(fields | {"summary_version": 2, "selection": "--comm cc1"}))
    assert repr(some) == f"<kvmtrace.Summary of 1 trace: {count} that --comm cc1 selects>"
    assert "--comm cc1" in some._repr_html_() and "selection" not in whole._repr_html_()


#: Selections as Python has them, and as the command has them. All fit something in the trace sqlite3 of the
#: gallery.
SELECTIONS = [
    ({"since": "10%"}, ["--since", "10%"]),
    ({"since": "1ms", "until": "99.5%"}, ["--since", "1ms", "--until", "99.5%"]),
    ({"process": "sqlite3"}, ["--process", "sqlite3"]),
    ({"process": "sql*"}, ["--process", "sql*"]),
    ({"comm": "sqlite3"}, ["--comm", "sqlite3"]),
    ({"comm": ["sqlite?", "sh"]}, ["--comm", "sh", "--comm", "sqlite?"]),
    ({"mapping": ("[heap]", "*.so*")}, ["--mapping", "[heap]", "--mapping", "*.so*"]),
    ({"address": "0x1000..0x7fffffffffff"}, ["--address", "0x1000..0x7fffffffffff"]),
    ({"address": range(4096, 2**47)}, ["--address", "0x1000..0x800000000000"]),
    ({"where": "kind == write"}, ["--where", "kind == write"]),
    (
        {"where": 'mapping != "a b"', "since": "5%", "process": "*", "comm": "*3", "mapping": "*"},
        ["--since", "5%", "--comm", "*3", "--process", "*", "--mapping", "*", "--where", 'mapping != "a b"'],
    ),
]


@pytest.mark.parametrize("options, arguments", SELECTIONS)
def test_a_row_of_a_selection_is_the_command_s(postproc, options, arguments):
    theirs = postproc.run("summary", SQLITE3, *arguments, "--host", "h").stdout
    mine = kvmtrace.summary(SQLITE3, host="h", **options)
    assert mine.json + "\n" == theirs
    words = re.findall(r"--\w+", mine.selection)
    assert sorted(words) == sorted(word for word in arguments if word.startswith("--"))
    whole = kvmtrace.summary(SQLITE3)
    assert 0 < mine.references <= whole.references
    assert mine.events == whole.events and mine.lost == whole.lost
    with pytest.raises(ValueError, match="merge summaries of one selection only"):
        kvmtrace.merge([kvmtrace.summary(trace_path("fifo")), mine])


def test_rows_of_selections_of_all_traces(postproc, path):
    """Shares of the time, and a process by its id, which is a filter here."""
    trace = kvmtrace.open(path)
    pid = trace.references(columns=["process"]).rows()[-1]["process"]
    for options, arguments in (
        ({"since": "25%", "until": "75%"}, ["--since", "25%", "--until", "75%"]),
        ({"process": pid}, ["--process", pid]),
        ({"process": str(pid), "comm": "*"}, ["--comm", "*", "--process", pid]),
    ):
        done = postproc.run("summary", path, *arguments, codes=(0, 1, 2))
        if done.returncode == 2:
            with pytest.raises(kvmtrace.TraceError) as error:
                kvmtrace.summary(path, **options)
            assert str(error.value) in done.stderr
        else:
            assert kvmtrace.summary(path, **options).json + "\n" == done.stdout
    # An option that is given and selects everything is a selection nevertheless.
    everything = kvmtrace.summary(path, process="*")
    assert everything.references == kvmtrace.summary(path).references
    assert everything.selection == "--process '*'"


def test_what_is_no_selection(postproc):
    for options, arguments in (
        ({"since": "5"}, ["--since", "5"]),
        ({"until": "101%"}, ["--until", "101%"]),
        ({"process": ""}, ["--process", ""]),
        ({"process": 2**32}, ["--process", 2**32]),
        ({"address": "5-5"}, ["--address", "5-5"]),
        ({"address": range(5, 5)}, ["--address", "0x5..0x5"]),
        ({"where": "time < 5ms"}, ["--where", "time < 5ms"]),
        ({"where": "comm = 'x'"}, ["--where", "comm = 'x'"]),
        ({"comm": "no such thread"}, ["--comm", "no such thread"]),
    ):
        stderr = postproc.run("summary", SQLITE3, *arguments, codes=(2,)).stderr
        with pytest.raises((ValueError, kvmtrace.TraceError)) as error:
            kvmtrace.summary(SQLITE3, **options)
        # In front of the reason is the value, which each of the two shows in its way.
        why = str(error.value)
        why = why.partition(": ")[2] if why.startswith(f"{[*options][0]} is ") else why
        assert why and " ".join(why.split()) in " ".join(stderr.split()), (why, stderr)
    for options, error, message in (
        ({"process": -1}, ValueError, "process is -1; it must be 0 or more"),
        ({"process": 1.5}, TypeError, "integer"),
        ({"since": 5}, TypeError, "since is 5; it must be a text such as '1.5s'"),
        ({"comm": ["a", 7]}, TypeError, "comm is 7; it must be a text"),
        ({"address": range(0, 9, 2)}, ValueError, "has a step of 1"),
        ({"address": -1}, ValueError, "address is -1"),
        ({"where": "time < 5ms"}, kvmtrace.FilterError, "use --since and --until"),
    ):
        with pytest.raises(error, match=message):
            kvmtrace.summary(SQLITE3, **options)


def test_what_cannot_be_added_up(lines):
    texts = lines.read_text().splitlines()
    with pytest.raises(ValueError, match="there is no summary"):
        kvmtrace.merge([])
    with pytest.raises(ValueError, match="no summary of traces"):
        kvmtrace.merge(["{}"])
    with pytest.raises(ValueError, match="was added already"):
        kvmtrace.merge([texts[0], texts[1], texts[0]])
    with pytest.raises(ValueError, match="a summary of 0 traces"):
        kvmtrace.merge([texts[0].replace('"traces":1,', '"traces":0,', 1)])
    other = texts[1].replace('"page_size":4096', '"page_size":8192')
    with pytest.raises(ValueError, match="pages of 8192 bytes"):
        kvmtrace.merge([texts[0], other])
    with pytest.raises(kvmtrace.TraceError, match="gone.vmt"):
        kvmtrace.summary("gone.vmt")


def test_the_page():
    """The program of docs/fleet.md runs."""
    text = (TOP / "docs/fleet.md").read_text()
    programs = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(programs) == 1
    program = programs[0].replace("run.vmt", str(trace_path("two-cpus")))
    exec(compile(program, "docs/fleet.md", "exec"), {})
