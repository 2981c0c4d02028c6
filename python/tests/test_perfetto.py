"""What `postproc export --format perfetto` writes, decoded by Perfetto's own definitions.

The trace_processor that Perfetto's Python package drives is a program that the package downloads when
it is used. So these tests use the messages alone, as a trace_processor sees them.
"""

import collections
import csv

import pytest
from conftest import NAMES, trace_path
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

COUNTER = protos.TrackEvent.TYPE_COUNTER
BIN_NS = 50_000
TAU_NS = 400_000


class Exported:
    """Counters by process id (0: the trace) and name, and everything else on tracks."""

    def __init__(self, path):
        self.trace = protos.Trace.FromString(path.read_bytes())
        self.tracks = {}
        self.counters = collections.defaultdict(list)
        self.events = []
        for packet in self.trace.packet:
            if packet.HasField("track_descriptor"):
                track = packet.track_descriptor
                assert track.uuid not in self.tracks
                self.tracks[track.uuid] = track
            elif packet.HasField("track_event"):
                self.add(packet)

    def add(self, packet):
        event = packet.track_event
        assert packet.timestamp_clock_id == protos.BUILTIN_CLOCK_MONOTONIC
        if event.type != COUNTER:
            self.events.append((packet.timestamp, event))
            return
        track = self.tracks[event.track_uuid]
        which = event.WhichOneof("counter_value_field")
        value = getattr(event, which)
        self.counters[track.parent_uuid, track.name].append((packet.timestamp, value))

    def of_trace(self, name):
        counters = self.counters.items()
        [values] = [v for (uuid, n), v in counters if n.startswith(name) and self.is_root(uuid)]
        return values

    def is_root(self, uuid):
        return self.tracks[uuid].name == "kVMTrace"

    def by_process(self, name):
        """For each process id: the values of each process that had it. 0 is the unknown process."""
        found = collections.defaultdict(list)
        for (parent, n), values in self.counters.items():
            if n.startswith(name) and not self.is_root(parent):
                found[self.tracks[parent].process.pid].append(values)
        return found


def references(values):
    """The number of references that a counter of faults stands for: exact, or the test fails."""
    total = 0
    assert values[-1][1] == 0
    for (begin, rate), (end, _) in zip(values, values[1:]):
        bins, rest = divmod(end - begin, BIN_NS)
        assert rest == 0 and bins > 0
        in_bin = rate * BIN_NS / 1e9
        assert abs(in_bin - round(in_bin)) < 1e-9
        total += bins * round(in_bin)
    return total


@pytest.fixture(scope="module", params=NAMES)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def exported(name, postproc, tmp_path_factory):
    out = tmp_path_factory.mktemp("perfetto") / f"{name}.pftrace"
    options = ["--bin", f"{BIN_NS // 1000}us", "--tau", f"{TAU_NS // 1000}us"]
    run = ["export", trace_path(name), "--format", "perfetto", "-o", out, *options]
    postproc.run(*run, codes=(0, 1))
    return Exported(out)


@pytest.fixture(scope="module")
def summary(name, postproc, tmp_path_factory):
    out = tmp_path_factory.mktemp("report") / "report.html"
    return postproc.json("report", trace_path(name), "-o", out)


def test_faults_add_up_to_the_references_of_the_report(exported, summary):
    assert references(exported.of_trace("faults")) == summary["references"]
    expected = collections.Counter()
    for process in summary["top_processes"]:
        expected[process["pid"]] += process["references"]
    found = {
        pid: sum(references(values) for values in several)
        for pid, several in exported.by_process("faults").items()
    }
    # The report has all processes of these traces.
    assert summary["references"] == sum(expected.values())
    assert found == {pid: n for pid, n in expected.items() if n > 0}


def test_the_set_never_has_more_members_than_the_kernel_counted(exported, summary, name):
    sizes = [value for _, value in exported.of_trace("set size")]
    assert sizes and min(sizes) >= 0
    # The kernel lost the records of some members.
    if name != "loss":
        assert sizes[-1] == 0
    assert max(sizes) <= summary["status"]["members_max"]


def test_working_sets_are_those_of_the_csv(exported, name, postproc, tmp_path):
    out = tmp_path / "run.csv"
    postproc.run("export", trace_path(name), "--format", "csv", "-o", out, codes=(0, 1))
    times, freed = collections.defaultdict(list), {}
    with out.open(newline="") as lines:
        for row in csv.DictReader(lines):
            if row["access"] == "free":
                freed[row["page"]] = int(row["time_ns"])
            else:
                times[row["page"]].append(int(row["time_ns"]))
    clocks = exported.trace.packet[0].clock_snapshot.clocks
    [start] = [c.timestamp for c in clocks if c.clock_id == protos.BUILTIN_CLOCK_MONOTONIC]
    values = exported.of_trace("working set")
    assert len(values) > 10
    for moment, value in values[:: max(1, len(values) // 50)]:
        now = moment - start
        assert now % BIN_NS == 0
        there = [
            page
            for page, all_of_it in times.items()
            if any(now - TAU_NS < t < now for t in all_of_it) and freed.get(page, now) >= now
        ]
        assert value == len(there), moment


def test_tracks_of_processes_have_their_names(exported, summary):
    processes = [t.process for t in exported.tracks.values() if t.HasField("process")]
    names = {(p.pid, p.process_name) for p in processes}
    if any(t.name == "unknown process" for t in exported.tracks.values()):
        names.add((0, "(unknown)"))
    for process in summary["top_processes"]:
        assert (process["pid"], process["comm"]) in names
    assert all(p.start_timestamp_ns > 0 for p in processes)


def test_kernel_events_are_as_many_as_in_the_report(exported, summary):
    names = collections.Counter(event.name for _, event in exported.events if event.name)
    for kind in ("fork", "exec", "exit", "resize"):
        assert names[kind] == summary["event_types"].get(kind, 0), kind


def test_times_are_those_of_the_trace(exported, postproc, name):
    header = postproc.json("info", trace_path(name))["header"]
    snapshot = exported.trace.packet[0].clock_snapshot
    assert snapshot.primary_trace_clock == protos.BUILTIN_CLOCK_MONOTONIC
    clocks = {c.clock_id: c.timestamp for c in snapshot.clocks}
    start = header["start_time_ns"]
    assert clocks == {
        protos.BUILTIN_CLOCK_MONOTONIC: start,
        protos.BUILTIN_CLOCK_REALTIME: start + header["realtime_offset_ns"],
    }
