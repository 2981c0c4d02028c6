"""Curves, simulations, working sets and findings, compared with the command's to the last digit."""

import contextlib
import json
import struct
import subprocess
import warnings

import kvmtrace
import numpy
import pytest
from conftest import NAMES, TOP, trace_path

NAMED = ["policy", "size_pages", "misses", "write_backs"]


@contextlib.contextmanager
def maybe_bad():
    """Of some traces the results are worth less, which is said."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kvmtrace.TraceWarning)
        yield


def compared(row, theirs):
    """Our row with the names of the command."""
    ours = {
        **row,
        "low": row.get("lower"),
        "high": row.get("upper"),
        "measured_error": None
        if row["measured_mean_percent"] is None
        else {
            "mean_percent": row["measured_mean_percent"],
            "worst_percent": row["measured_worst_percent"],
        },
    }
    names = set(theirs) - {"measured_error_with_fill"}
    optional = {"low", "high", "measured_error"}
    assert {name: ours[name] for name in names} == {name: theirs[name] for name in names}
    # What the command leaves out is missing here, too.
    assert all(ours[name] is None for name in optional - names), (ours, theirs)


def test_curves(postproc, path):
    theirs = postproc.json("simulate", path, "--policy", "lru,opt", "--curve", "--points", 0)
    with maybe_bad():
        curves = kvmtrace.open(path).curve(["lru", "opt"])
    assert list(curves) == ["lru", "opt"]
    rows = [row for curve in curves.values() for row in curve.rows()]
    assert len(rows) == len(theirs["curve"]) > 100
    for row, point in zip(rows, theirs["curve"]):
        compared(row, point)
    for curve in curves.values():
        about = {name: theirs[name] for name in ("references", "good", "exact")}
        assert about == {name: getattr(curve, name) for name in about}
        assert curve.cold == theirs["cold"]
        assert curve.why_not_exact is None and "why_not_exact" not in theirs


@pytest.mark.parametrize("name", NAMES)
def test_bounds(name):
    with maybe_bad():
        curves = kvmtrace.open(trace_path(name)).curve(["lru", "opt"])
    for curve in curves.values():
        known = [row for row in curve.rows() if row["lower"] is not None]
        # The trace loss failed its checks. The pages of early are fewer than 2 N - 1.
        if curve.footprint >= 3 * curve.n or curve.policy == "opt":
            assert bool(known) == (name != "loss"), name
        least = min((row["size_pages"] for row in known), default=None)
        if known:
            assert least >= curve.n
        assert all(row["lower"] <= row["upper"] for row in known)


def test_points(postproc):
    path = trace_path("fifo")
    theirs = postproc.json("simulate", path, "--policy", "lru", "--curve", "--points", 10)
    curve = kvmtrace.open(path).curve(points=10)
    assert list(curve.sizes) == [point["size_pages"] for point in theirs["curve"]]
    assert curve.sizes[0] == 1 and curve.sizes[-1] == curve.footprint


@pytest.mark.parametrize(
    "options, arguments",
    [
        ({}, []),
        ({"fill": True}, ["--fill"]),
        ({"pages": "virtual"}, ["--pages", "virtual"]),
        ({"keep_freed": True}, ["--keep-freed"]),
        ({"trust": True}, ["--trust"]),
        ({"io": True}, ["--io"]),
        ({"where": "kind != exec"}, ["--where", "kind != exec"]),
        ({"since": "10%", "until": "90%"}, ["--since", "10%", "--until", "90%"]),
        ({"comm": "*", "process": "?*"}, ["--process", "?*", "--comm", "*"]),
        (
            {"mapping": "[stack]", "address": range(4096, 2**47), "where": "mode == user"},
            ["--address", "0x1000..0x800000000000", "--mapping", "[stack]", "--where", "mode == user"],
        ),
    ],
)
@pytest.mark.parametrize("name", ["again", "clock", "file-io", "fork-exec"])
def test_simulations(postproc, name, options, arguments):
    path, sizes = trace_path(name), [10, 64, 300]
    theirs = postproc.json(
        "simulate", path, "--policy", "all", "--size", ",".join(map(str, sizes)), *arguments
    )
    result = kvmtrace.open(path).simulate("all", sizes, **options)
    rows = result.rows()
    assert len(rows) == len(theirs["sizes"]) == len(sizes) * len(kvmtrace.policies())
    for row, counts in zip(rows, theirs["sizes"]):
        compared(row, counts)
    assert result.references == theirs["references"]
    assert result.exact == theirs["exact"]
    assert result.about.freeing == theirs["freeing"]
    assert result.about.io == theirs.get("io")
    assert result.about.filter == theirs.get("filter")
    if theirs.get("filter") is not None:
        by = "where" if [*options] == ["where"] else "the selection"
        assert f"{by} leaves references out" in result.why_not_exact
        assert result["lower"].null_count == len(rows)


def test_one_process(postproc):
    path = trace_path("fork-exec")
    trace = kvmtrace.open(path)
    for pid in set(trace.references(columns=["process"]).to_polars()["process"]):
        theirs = postproc.json("simulate", path, "--process", pid, "--size", 20)
        (row,) = trace.simulate("lru", 20, process=pid).rows()
        assert row["misses"] == theirs["sizes"][0]["misses"]
        assert row["lower"] is None and "low" not in theirs["sizes"][0]
    with pytest.raises(kvmtrace.TraceError, match="process 999999 has no reference"):
        trace.simulate("lru", 20, process=999999)
    with pytest.raises(kvmtrace.TraceError, match="--where keeps no reference: all .* left out"):
        trace.curve(where="pid == 999999")
    with pytest.raises(kvmtrace.TraceError, match="--until 0s --comm x keeps no reference"):
        trace.working_set(until="0s", comm="x")


def test_selections(postproc):
    """Curves and simulations of what is selected, in a trace with several processes."""
    path = TOP / "docs/gallery/gcc.vmt"
    trace = kvmtrace.open(path)
    pid = trace.references(columns=["process"], process="cc1").rows()[0]["process"]
    for options, arguments in (
        ({"process": "cc1", "since": "10%"}, ["--process", "cc1", "--since", "10%"]),
        ({"process": pid, "until": "50%"}, ["--process", pid, "--until", "50%"]),
        ({"mapping": ["[heap]", "[anon]"]}, ["--mapping", "[heap]", "--mapping", "[anon]"]),
        ({"set": 0, "comm": ["cc1", "sh"]}, ["--set", "0", "--comm", "cc1", "--comm", "sh"]),
    ):
        theirs = postproc.json(
            "simulate", path, "--policy", "lru", "--curve", "--points", "0", *arguments
        )
        curve = trace.curve("lru", **options)
        assert [*curve.misses] == [point["misses"] for point in theirs["curve"]]
        assert curve.about.filter == theirs["filter"]
        assert curve.references == theirs["references"]
        theirs = postproc.json("simulate", path, "--policy", "arc", "--size", "10%", *arguments)
        (row,) = trace.simulate("arc", "10%", **options).rows()
        assert row["misses"] == theirs["sizes"][0]["misses"]
        assert trace.references(columns=["seq"], **options).to_arrow().num_rows == curve.references
        assert trace.working_set(**options).references == curve.references


def test_estimates(postproc):
    path = trace_path("two-cpus")
    trace = kvmtrace.open(path)
    arguments = ["simulate", path, "--sample", "0.5"]
    theirs = postproc.json(*arguments, "--policy", "lru,clock", "--size", "200,400")
    ours = trace.simulate(["lru", "clock"], [200, 400], sample=0.5)
    assert ours.rows() == theirs["estimates"]
    theirs = postproc.json(*arguments, "--policy", "lru", "--curve", "--points", 20)
    curve = trace.curve("lru", sample=0.5, points=20)
    assert curve.rows() == theirs["estimates"]
    assert curve.is_estimate
    with pytest.raises(AttributeError, match="95 % band"):
        curve.lower
    with pytest.raises(ValueError, match="give a larger share|gives no estimate"):
        trace.simulate("lru", 1, sample=0.01)
    for share in (0, 1.5):
        with pytest.raises(ValueError, match="above 0 and not above 1"):
            trace.curve(sample=share)


def test_one_curve():
    trace = kvmtrace.open(trace_path("fifo"))
    curve = trace.curve()
    assert isinstance(curve, kvmtrace.Curve) and curve.policy == "lru"
    sizes, misses = numpy.asarray(curve.sizes), numpy.asarray(curve.misses)
    assert sizes.dtype == misses.dtype == numpy.int64
    assert list(sizes) == list(range(1, curve.footprint + 1))
    assert (numpy.diff(misses) <= 0).all() and misses[-1] == curve.cold
    lower = numpy.asarray(curve.lower)
    assert numpy.isnan(lower[0]) and lower[-1] == curve.lower[-1]
    (row,) = trace.simulate("lru", 100).rows()
    at = curve.at(100)
    assert {name: at[name] for name in row} == row
    assert curve.at(10**9).misses == curve.cold
    with pytest.raises(ValueError, match="no size of 0 pages"):
        curve.at(0)
    table = curve.to_polars()
    assert table.height == len(curve)
    # Which dictionary of words it is does not matter.
    assert set(table["policy"].to_list()) == {"lru"}


@pytest.mark.parametrize(
    "ask, error, message",
    [
        (lambda t: t.curve("clock"), ValueError, "give sizes to Trace.simulate"),
        (lambda t: t.curve("lur"), ValueError, "no policy is called \"lur\"; there are lru"),
        (lambda t: t.simulate("lru"), ValueError, "give sizes"),
        (lambda t: t.simulate("lru", []), ValueError, "one size or more"),
        (lambda t: t.simulate("lru", [0]), ValueError, "1 page or more"),
        (lambda t: t.simulate("lru", None), ValueError, "give sizes"),
        (lambda t: t.simulate("lru", 1.5), ValueError, "which is not above 1.0"),
        (lambda t: t.simulate("lru", [4, "16MB"]), ValueError, "write MiB"),
        (lambda t: t.simulate("lru", "1KiB"), ValueError, "less than a page"),
        (lambda t: t.simulate("lru", 4j), TypeError, "integer"),
        (lambda t: t.curve(fill=True, where="pid == 1"), ValueError, "leave out one of the two"),
        (lambda t: t.curve(io=True, pages="virtual"), ValueError, "pages='canonical'"),
        (lambda t: t.curve(io=True, where="addr == 0"), kvmtrace.FilterError, "has no address"),
        (lambda t: t.curve(fill=True, comm="*"), ValueError, "the selection leaves some out"),
        (lambda t: t.curve(io=True, mapping="x"), ValueError, "--mapping: .* has no address"),
        (lambda t: t.curve(set=0, process="x"), ValueError, "process or set, not both"),
        (lambda t: t.curve(since="1"), ValueError, "since is \"1\": expected a time"),
        (lambda t: t.curve(set=7), kvmtrace.TraceError, "set 7 has no reference"),
    ],
)
def test_wrong_arguments(ask, error, message):
    with pytest.raises(error, match=message):
        ask(kvmtrace.open(trace_path("fifo")))


def test_sizes_are_those_of_the_command(postproc):
    path = trace_path("fifo")
    trace = kvmtrace.open(path)
    sizes = ["400", "800KiB", "0.5", "25%"]
    theirs = postproc.json("simulate", path, "--size", ",".join(sizes))["sizes"]
    asked = [400, "800KiB", 0.5, "25%"]
    ours = trace.simulate("lru", asked)
    assert list(ours["size_pages"]) == [row["size_pages"] for row in theirs]
    assert list(ours["misses"]) == [row["misses"] for row in theirs]
    footprint = trace.curve("lru").footprint
    assert list(trace.simulate("lru", 1.0)["size_pages"]) == [footprint]
    for size in asked:
        (row,) = trace.simulate("lru", size).rows()
        assert row["size_pages"] == ours["size_pages"][asked.index(size)]
    estimated = trace.simulate("lru", "100%", sample=0.5)
    assert list(estimated["size_pages"]) == [footprint]


def test_working_sets(postproc, path, tmp_path):
    postproc.run("report", path, "-o", tmp_path / "report", codes=(0, 1))
    over_time = json.loads((tmp_path / "report/working-set.json").read_text())
    by_window = json.loads((tmp_path / "report/working-set-by-window.json").read_text())
    with maybe_bad():
        ours = kvmtrace.open(path).working_set()
    assert ours.taus == over_time["tau"]
    assert ours.times == [sample["t"] for sample in over_time["samples"]]
    assert ours.pages == [sample["pages"] for sample in over_time["samples"]]
    assert ours.percentiles == by_window["rows"]
    assert numpy.asarray(ours).shape == (len(ours.times), len(ours.taus))
    frame = ours.to_pandas()
    assert frame.shape == (len(ours.times), len(ours.taus))
    assert frame.iloc[-1].tolist() == ours.pages[-1]
    assert ours.svg[0].startswith("<svg") and ours.svg[0] in ours._repr_html_()


def test_working_sets_in_virtual_time(postproc, tmp_path):
    path = trace_path("virtual-time")
    postproc.run("report", path, "--time", "virtual", "-o", tmp_path / "report")
    theirs = json.loads((tmp_path / "report/working-set.json").read_text())
    ours = kvmtrace.open(path).working_set(time="virtual")
    assert ours.pages == [sample["pages"] for sample in theirs["samples"]]
    assert ours.pages != kvmtrace.open(path).working_set().pages


def test_checks(postproc, path):
    for options, arguments in (({}, []), ({"frames": True, "examples": 1}, ["--frames", "--examples", 1])):
        theirs = postproc.json("check", path, *arguments)
        ours = kvmtrace.open(path).check(**options)
        assert ours.good == bool(ours) == theirs["good"]
        assert ours.rules == theirs["rules"]
        assert ours.about.references == theirs["references"]
        assert ours.about.renewals == theirs["renewals"]


def test_losses(postproc):
    trace = kvmtrace.open(trace_path("loss"))
    report = trace.check()
    assert not report and report.errors > 0
    assert report.findings[0].message in repr(report)
    assert "not good" in report._repr_html_()
    # Losses that are counted can be accepted; here something else is wrong, too.
    assert 0 < trace.check(allow_loss=True).errors < report.errors
    theirs = postproc.json("check", trace_path("loss"), "--allow-loss")
    assert trace.check(allow_loss=True).rules == theirs["rules"]
    with pytest.warns(kvmtrace.TraceWarning, match="failed its checks"):
        assert not trace.simulate("lru", 10).good
    # Of what is not looked at, there is no warning.
    assert trace.simulate("lru", 10, allow_loss=True, trust=True).good


def test_damage(postproc, tmp_path):
    """Findings of a trace with a wrong byte."""
    raw = subprocess.run(["zstd", "-dc", trace_path("fifo")], capture_output=True, check=True).stdout
    middle = len(raw) // 2
    path = tmp_path / "damaged"
    path.write_bytes(raw[:middle] + bytes([raw[middle] ^ 1]) + raw[middle + 1 :])
    ours, theirs = kvmtrace.open(path).check(), postproc.json("check", path)
    assert not ours and ours.rules == theirs["rules"]
    assert any(finding.rule == "packet-crc" for finding in ours.findings), ours


def crc32c(data):
    """The checksum of packets."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_a_trace_that_lies(postproc, tmp_path):
    """A reference where nothing is mapped, in a packet whose checksum holds: only a rule about records
    finds it, and nothing is proven then."""
    raw = subprocess.run(["zstd", "-dc", trace_path("fifo")], capture_output=True, check=True).stdout
    raw = bytearray(raw)
    # struct vmtrace_packet and struct vmtrace_ref in vmtrace.h.
    header, head, kind, size, crc = 4096, 112, 24, 100, 108
    at = header
    while struct.unpack_from("<H", raw, at + kind) != (1,):
        at += head + struct.unpack_from("<I", raw, at + size)[0]
    (page,) = struct.unpack_from("<Q", raw, at + head)
    struct.pack_into("<Q", raw, at + head, page & 0xFFF | 0x1234_5678_9000)
    struct.pack_into("<I", raw, at + crc, 0)
    end = at + head + struct.unpack_from("<I", raw, at + size)[0]
    struct.pack_into("<I", raw, at + crc, crc32c(raw[at:end]))
    path = tmp_path / "lies"
    path.write_bytes(raw)
    trace = kvmtrace.open(path)
    with pytest.warns(kvmtrace.TraceWarning, match="failed its checks"):
        curve = trace.curve()
    assert not curve.good and "mapped" in "".join(curve.findings)
    assert curve.lower.null_count == curve.upper.null_count == len(curve)
    theirs = postproc.json("simulate", path, "--curve")
    assert not any("low" in point for point in theirs["curve"])
    # Whoever trusts it gets what follows from what it says.
    assert trace.curve(trust=True).upper.null_count < len(curve)


def test_figures():
    trace = kvmtrace.open(trace_path("fifo"))
    curves = trace.curve(["lru", "opt"])
    ax = None
    for curve in curves.values():
        ax = curve.plot(ax)
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["lru", "proven bounds", "opt", "proven bounds"]
    (line, _) = ax.get_lines()
    assert list(line.get_xdata()) == list(curves["lru"].sizes)
    assert list(line.get_ydata()) == list(curves["lru"].misses)
    # Without bounds there is no band.
    some = trace.curve(where="kind != exec").plot()
    assert [text.get_text() for text in some.get_legend().get_texts()] == ["lru"]
    ax = trace.simulate(["clock", "arc"], [10, 100]).plot()
    assert {line.get_label() for line in ax.get_lines()} == {"clock", "arc"}
    ax = trace.working_set().plot(lines=3)
    assert len(ax.get_lines()) >= 3
    from matplotlib import pyplot

    pyplot.close("all")


def test_display():
    trace = kvmtrace.open(trace_path("fifo"))
    curve = trace.curve()
    page = curve._repr_html_()
    assert f"{curve.misses[0]:,}" in page and "<kvmtrace" not in page
    assert "No bounds: where leaves" in trace.curve(where="kind != exec")._repr_html_()
    assert "good" in trace.check()._repr_html_()
    assert "evms_size" in trace.header._repr_html_()
