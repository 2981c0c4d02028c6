"""Tables, compared with what postproc writes."""

import pathlib

import kvmtrace
import numpy
import pandas
import polars
import pyarrow
import pyarrow.parquet
import pytest
from conftest import trace_path


def exported(postproc, path, directory, *args):
    """The tables of `postproc export --format parquet`, by name."""
    out = directory / "tables"
    postproc.run("export", path, "--format", "parquet", "-o", out, *args, codes=(0, 1))
    return {
        table.name: pyarrow.concat_tables(
            pyarrow.parquet.read_table(part) for part in sorted(table.iterdir())
        )
        for table in out.iterdir()
    }


def plain(table):
    """Rows of a table without dictionaries of words."""
    return table.to_pylist()


def test_references_are_those_of_parquet(postproc, path, tmp_path):
    tables = exported(postproc, path, tmp_path)
    trace = kvmtrace.open(path)
    ours, theirs = trace.references().to_arrow(), tables["references"]
    assert ours.column_names == theirs.column_names
    for field in theirs.schema:
        kind = ours.schema.field(field.name).type
        kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
        assert kind == field.type, field.name
        assert ours.schema.field(field.name).nullable == field.nullable, field.name
    assert ours.num_rows > 0
    assert plain(ours) == sorted(plain(theirs), key=lambda row: row["seq"])
    assert trace.freed().rows() == tables["freed"].to_pylist()
    names = {row["process"]: (row["comm"], row["exe"]) for row in trace.processes().rows()}
    assert names == {r["process"]: (r["comm"], r["exe"]) for r in tables["processes"].to_pylist()}


@pytest.mark.parametrize(
    "options, arguments",
    [
        ({"pages": "virtual"}, ["--pages", "virtual"]),
        ({"keep_freed": True}, ["--keep-freed"]),
        ({"where": 'mode == kernel || comm ~ "*"'}, ["--where", 'mode == kernel || comm ~ "*"']),
        ({"where": "kind == write"}, ["--where", "kind == write"]),
        ({"where": 'mapping ~ "*a*"'}, ["--where", 'mapping ~ "*a*"']),
        ({"since": "20%", "until": "80%"}, ["--since", "20%", "--until", "80%"]),
        ({"process": "fork*", "mapping": "[stack]"}, ["--process", "fork*", "--mapping", "[stack]"]),
    ],
)
def test_which_references(postproc, tmp_path, options, arguments):
    path = trace_path("fork-exec")
    theirs = exported(postproc, path, tmp_path, *arguments)["references"]
    ours = kvmtrace.open(path).references(**options).to_arrow()
    assert plain(ours) == sorted(plain(theirs), key=lambda row: row["seq"])


def test_virtual_time(postproc, tmp_path):
    path = trace_path("virtual-time")
    theirs = exported(postproc, path, tmp_path, "--time", "virtual")["references"]
    ours = kvmtrace.open(path).references(time="virtual").to_arrow()
    assert plain(ours) == sorted(plain(theirs), key=lambda row: row["seq"])
    assert ours["vtime"].null_count == 0
    with pytest.raises(ValueError, match="--since: `time` is the system's clock"):
        kvmtrace.open(path).references(time="virtual", since="1ms")
    with pytest.raises(kvmtrace.TraceError, match="has no virtual time"):
        kvmtrace.open(trace_path("fifo")).references(time="virtual")


def test_one_process(postproc):
    path = trace_path("fork-exec")
    trace = kvmtrace.open(path)
    everything = trace.references(columns=["process"]).rows()
    pids = {row["process"] for row in everything}
    assert len(pids) > 1
    for pid in pids:
        rows = trace.references(process=pid).rows()
        assert {row["process"] for row in rows} == {pid}
        assert len(rows) == sum(row["process"] == pid for row in everything)
        # As if it had run alone: its pages are numbered from 1.
        assert rows[0]["page"] == 1


def test_columns():
    trace = kvmtrace.open(trace_path("file-map"))
    table = trace.references(columns=["page", "mapping", "set", "address", "seq"])
    assert table.column_names == ["page", "mapping", "set", "address", "seq"]
    rows = table.rows()
    assert [r["page"] for r in rows] == [r["page"] for r in trace.references().rows()]
    assert {r["set"] for r in rows} == {0}
    named = {r["mapping"] for r in rows}
    assert {"file-map", "[stack]"} <= named, named
    # `where` knows the same names.
    for name in named - {None}:
        some = trace.references(columns=["seq"], where=f'mapping == "{name}"').rows()
        assert [r["seq"] for r in some] == [r["seq"] for r in rows if r["mapping"] == name]
    with pytest.raises(ValueError, match='references have no column "pge"; they have window'):
        trace.references(columns=["pge"])
    assert trace.references(columns=[]).to_arrow().num_rows == len(rows)


def test_frames_of_others():
    trace = kvmtrace.open(trace_path("two-cpus"))
    table = trace.references()
    arrow = pyarrow.table(table)
    assert arrow == table.to_arrow()
    # A table can be read again and again.
    assert arrow == pyarrow.table(table)
    ours = table.to_polars()
    assert ours.height == arrow.num_rows
    assert polars.DataFrame(table).equals(ours)
    assert ours["page"].to_list() == arrow["page"].to_pylist()
    assert ours["why"].to_list() == arrow["why"].to_pylist()
    frame = table.to_pandas()
    assert len(frame) == arrow.num_rows
    assert frame["access"].dtype == "category"
    assert list(frame["access"].astype(str)) == arrow["access"].to_pylist()
    by_access = frame.groupby("access", observed=True)["seq"].count()
    assert by_access.sum() == len(frame)
    exact = table.to_pandas(types_mapper=pandas.ArrowDtype)
    assert exact["stay_ns"].tolist() == arrow["stay_ns"].to_pylist()
    for empty in (table, trace.events("resize")):
        kept = trace.references(where="seq == 0") if empty is table else empty
        assert kept.to_arrow().num_rows == 0
        assert kept.to_polars().height == 0
        assert kept.to_pandas().empty
        assert kept.rows() == []


def test_nothing_is_copied():
    (batch, *_) = kvmtrace.open(trace_path("fifo")).references()
    column = batch["page"]
    address, is_read_only = column.__array_interface__["data"]
    assert is_read_only
    assert pyarrow.record_batch(batch)["page"].buffers()[1].address == address
    assert pyarrow.array(column).buffers()[1].address == address
    array = numpy.asarray(column)
    assert array.__array_interface__["data"][0] == address
    assert array.dtype == numpy.uint32 and not array.flags.writeable
    # The array keeps the memory.
    values = column.to_pylist()
    del column, batch
    assert array.tolist() == values


def test_columns_are_sequences():
    (batch, *_) = kvmtrace.open(trace_path("fifo")).references()
    column = batch["seq"]
    assert len(column) == len(batch)
    assert list(column) == column.to_pylist() == [column[i] for i in range(len(column))]
    assert column[-1] == column[len(column) - 1]
    for beyond in (len(column), -len(column) - 1):
        with pytest.raises(IndexError):
            column[beyond]
    with pytest.raises(KeyError):
        batch["no such column"]
    assert column.name == "seq" and column.type == "Int64"
    vtime = batch["vtime"]
    assert vtime.null_count == len(vtime) and vtime[0] is None
    assert numpy.isnan(numpy.asarray(vtime)).all()
    assert numpy.asarray(batch["kernel"]).dtype == bool
    assert numpy.asarray(batch["access"]).tolist() == batch["access"].to_pylist()
    assert numpy.asarray(column, dtype=float).dtype == float


def test_a_reader_may_leave():
    """The thread that makes batches ends with the reader, also in the middle."""

    def threads():
        names = [task.joinpath("comm") for task in pathlib.Path("/proc/self/task").iterdir()]
        return [name for name in names if name.read_text() == "kvmtrace rows\n"]

    trace = kvmtrace.open(trace_path("two-cpus"))
    for _ in range(50):
        batches = iter(trace.references())
        next(batches)
        del batches
        reader = pyarrow.RecordBatchReader.from_stream(trace.events())
        reader.read_next_batch()
        reader.close()
        assert not threads()
    batches = iter(trace.references())
    list(batches)
    assert list(batches) == []


def test_events_are_those_of_the_command(postproc, path):
    theirs = postproc.lines("events", path)
    table = kvmtrace.open(path).events()
    ours = table.rows()
    assert len(ours) == len(theirs) > 0
    for row, event in zip(ours, theirs):
        event["time_ns"] = event.pop("ns")
        event.setdefault("no_news", None)
        event.setdefault("vtime", None)
        assert {name: value for name, value in row.items() if name in event} == event
        assert all(row[name] is None for name in row if name not in event)
    assert table.to_arrow().to_pylist() == ours
    assert table.to_polars().height == len(ours)


def test_which_events(postproc):
    path = trace_path("file-io")
    trace = kvmtrace.open(path)
    maps = trace.events("map", "unmap")
    # Only fields of these types.
    assert "prot" in maps.column_names and "bytes" not in maps.column_names
    rows = maps.rows()
    assert {row["event"] for row in rows} == {"map", "unmap"}
    theirs = postproc.lines("events", path, "--type", "map,unmap")
    assert [row["seq"] for row in rows] == [event["seq"] for event in theirs]
    where = "class == io"
    some = trace.events(where=where).rows()
    theirs = postproc.lines("events", path, "--where", where)
    assert [row["seq"] for row in some] == [event["seq"] for event in theirs if "seq" in event]
    pid = rows[0]["pid"]
    assert {row["pid"] for row in trace.events(pid=pid).rows()} == {pid}
    for options, arguments in (
        ({"process": pid, "since": "10%"}, ["--process", pid, "--since", "10%"]),
        ({"comm": ["stack*", "sh"], "until": "90%"}, ["--comm", "stack*", "--comm", "sh", "--until", "90%"]),
        ({"process": "stacked", "where": where}, ["--process", "stacked", "--where", where]),
        ({"mapping": ["[stack]", "ld-*"]}, ["--mapping", "[stack]", "--mapping", "ld-*"]),
        ({"address": 0x7FFFFFFFE123}, ["--address", "0x7fffffffe123"]),
        ({"address": range(0, 0x7000_0000_0000)}, ["--address", "0..0x700000000000"]),
    ):
        some = trace.events(**options).rows()
        theirs = postproc.lines("events", path, *arguments)
        assert some and [row["seq"] for row in some] == [e["seq"] for e in theirs if "seq" in e]
    mm = rows[0]["mm"]
    assert {row["mm"] for row in trace.events(mm=mm).rows()} == {mm}
    with pytest.raises(ValueError, match='no event is called "mapp"; there are map, unmap'):
        trace.events("mapp")


def prot(bits):
    return "".join(letter if bits & bit else "-" for letter, bit in zip("rwx", (1, 2, 4)))


def test_mappings_are_those_of_the_command(postproc, path):
    trace = kvmtrace.open(path)
    seqs = [row["seq"] for row in trace.events().rows()]
    some = 0
    for seq in [seqs[len(seqs) // 3], seqs[len(seqs) // 2], seqs[-1], None]:
        arguments = [] if seq is None else ["--seq", seq]
        theirs = [
            {"process": p["pid"], "comm": p["comm"], "mm": p["mm"], **m, "prot": prot(m["prot"])}
            for p in postproc.json("maps", path, *arguments)["processes"]
            for m in p["maps"]
        ]
        ours = trace.mappings(seq=seq)
        assert ours.rows() == theirs
        assert len(ours) == len(theirs)
        some += len(ours)
    assert some > 0


def test_moments(postproc):
    path = trace_path("file-io")
    trace = kvmtrace.open(path)
    opened = trace.events("open").rows()[-1]
    theirs = postproc.json("maps", path, "--at-open", opened["name"])["processes"]
    ours = trace.mappings(at_open=opened["name"])
    assert sorted(set(ours["process"])) == [p["pid"] for p in theirs if p["maps"]]
    pid = ours["process"][0]
    assert set(trace.mappings(pid=pid, at_open=opened["name"])["process"]) == {pid}
    with pytest.raises(kvmtrace.TraceError, match="the trace ends before that moment"):
        trace.mappings(at_open="no such file")
    with pytest.raises(ValueError, match="give one of seq, at_open and until"):
        trace.mappings(seq=1, at_open="x")
    with pytest.raises(ValueError, match="give pid or process"):
        trace.mappings(pid=1, process="sh")


def test_what_is_mapped_is_selected(postproc):
    path = trace_path("fork-exec")
    trace = kvmtrace.open(path)
    for options, arguments in (
        ({"until": "50%"}, ["--until", "50%"]),
        ({"until": "50%", "process": 52}, ["--until", "50%", "--process", 52]),
        ({"until": "60%", "process": "fork*"}, ["--until", "60%", "--process", "fork*"]),
        ({"until": "60%", "mapping": "[stack]"}, ["--until", "60%", "--mapping", "[stack]"]),
        ({"until": "60%", "address": "0..0x700000000000"}, ["--until", "60%", "--address", "0..0x700000000000"]),
    ):
        theirs = postproc.json("maps", path, *arguments)["processes"]
        theirs = [(p["pid"], m["start"], m["end"]) for p in theirs for m in p["maps"]]
        ours = trace.mappings(**options).rows()
        assert ours and [(m["process"], m["start"], m["end"]) for m in ours] == theirs


@pytest.mark.parametrize(
    "where, message",
    [("comm = 'x'", "=="), ("nonsense == 1", "nonsense"), ("comm == ", "where|comm|expected")],
)
def test_wrong_expressions(where, message):
    trace = kvmtrace.open(trace_path("fifo"))
    for ask in (trace.references, trace.events, trace.curve):
        with pytest.raises(kvmtrace.FilterError, match=message):
            ask(where=where)


def test_wrong_arguments():
    trace = kvmtrace.open(trace_path("fifo"))
    for wrong in ({"pages": "huge"}, {"time": "summer"}, {"process": 1, "set": 0}):
        with pytest.raises(ValueError):
            trace.references(**wrong)


def test_display():
    trace = kvmtrace.open(trace_path("file-io"))
    table = trace.references()
    assert repr(table).startswith("<kvmtrace.Table: window, process")
    page = table._repr_html_()
    assert page.count("<tr>") == 11 and "…" in page
    frame = trace.processes()
    assert f"of {len(frame)} rows" in repr(frame)
    assert "…" not in frame._repr_html_()
