"""Summaries of traces, and their sum: what the command gives."""

import json
import re

import pytest

import kvmtrace

from conftest import TOP, trace_path


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
