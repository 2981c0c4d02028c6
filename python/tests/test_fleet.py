"""What a task of each job on Spark does, and datasets, without Spark and Java.

`make fleet` runs the jobs themselves (python/fleet_on_spark.py).
"""

import pathlib
import types

import pyarrow
import pyarrow.compute
import pyarrow.dataset
import pyarrow.parquet
import pytest

import kvmtrace
from kvmtrace import fleet
from kvmtrace._select import selected

from conftest import paths, trace_path


def test_a_task_of_each_job(tmp_path):
    """Traces that cannot be read are among the good ones."""
    broken, gone = tmp_path / "broken.vmt", tmp_path / "gone.vmt"
    broken.write_bytes(b"no trace")
    asked = [str(broken), *paths(), str(gone)]
    rows = [{"path": path, "host": f"host-{i}"} for i, path in enumerate(asked)]
    batches = [pyarrow.RecordBatch.from_pylist(rows[:5]), pyarrow.RecordBatch.from_pylist(rows[5:])]
    made = pyarrow.Table.from_batches(fleet._summaries_in_arrow(iter(batches))).to_pylist()
    assert [row["path"] for row in made] == asked
    for row in (made.pop(0), made.pop()):
        assert row["summary"] is None and pathlib.Path(row["path"]).name in row["error"]
    for row in made:
        one = kvmtrace.summary(row["path"], host=row["host"])
        assert row["summary"] == one.json
        assert row["error"] is None and row["cpu_seconds"] > 0
        assert (row["references"], row["good"]) == (one.references, one.trace.good)
        assert (row["footprint_pages"], row["lost"]) == (one.footprint, one.lost)
    texts = [row["summary"] for row in made]
    batches = pyarrow.table({"summary": texts}).to_batches(max_chunksize=3)
    merged = [*fleet._merge_in_arrow(iter(batches))]
    assert [batch["summary"][0].as_py() for batch in merged] == [kvmtrace.merge(texts).json]
    assert not [*fleet._merge_in_arrow(iter([]))]


@pytest.mark.parametrize("path", ["a.vmt", b"a.vmt", pathlib.Path("a.vmt")])
def test_one_path_is_no_list(path):
    with pytest.raises(TypeError, match="a list of paths"):
        fleet.summaries(None, path)


def test_batches_are_neither_small_nor_large():
    def sizes(summary, count):
        rows = [{"summary": summary}] * count
        return [batch.num_rows for batch in fleet._batches(rows, {"summary": "string"})]

    assert sizes("x" * 300_000, 10) == [4, 4, 2]
    assert sizes(None, 5_000) == [4096, 904]
    assert sizes(None, 0) == []


def test_lines_of_the_command_are_loaded(lines):
    texts = lines.read_text().splitlines()
    one = kvmtrace.summary(trace_path("fifo"), process="*")
    values = [*texts, "", "{}", one.json, kvmtrace.merge(texts).json]
    batch = pyarrow.RecordBatch.from_pydict({"value": values, "file": ["f"] * len(values)})
    *each, wrong, some, several = pyarrow.Table.from_batches(
        fleet._load_in_arrow(iter([batch]))
    ).to_pylist()
    for row, text, path in zip(each, texts, paths(), strict=True):
        assert row == fleet._summarize(path, "h") | {"cpu_seconds": None}
        assert row["summary"] == text
    assert "no summary of traces" in wrong["error"] and wrong["path"] == "f"
    assert some["selection"] == "--process '*'" and some["summary"] == one.json
    assert {row["selection"] for row in each} == {None}
    assert several["trace"] is None and several["references"] == sum(r["references"] for r in each)


def test_tables_of_the_command_are_loaded(postproc, tmp_path):
    """Tables of Parquet give the rows that lines of JSON give."""
    table = tmp_path / "all.parquet"
    postproc.run("summary", *paths(), "--host", "h", "-o", table, codes=(0, 1))

    def loaded(*contents):
        tables = {"content": [*contents], "file": [f"file {i}" for i in range(len(contents))]}
        batch = pyarrow.RecordBatch.from_pydict(tables)
        return pyarrow.Table.from_batches(fleet._load_tables_in_arrow(iter([batch]))).to_pylist()

    content = table.read_bytes()
    rows = loaded(content)
    assert rows == [fleet._summarize(path, "h") | {"cpu_seconds": None} for path in paths()]
    # Spark writes the rows of the job, and some have an error.
    rows[2] |= {"summary": None, "error": "no trace"}
    rows[3] |= {"summary": None, "error": None}
    pyarrow.parquet.write_table(pyarrow.Table.from_batches([fleet._arrow(rows, fleet.COLUMNS)]), table)
    broken, *again, last = loaded(content[:-9], table.read_bytes(), b"no table")
    assert "row" not in broken["error"] and broken["path"] == "file 0" and broken["summary"] is None
    assert last["path"] == "file 2" and last["error"]
    assert again[:2] + again[4:] == rows[:2] + rows[4:]
    assert [row["error"] for row in again[2:4]] == ["no trace", "the row has no summary"]
    assert {row["path"] for row in again[2:4]} == {"file 1"}
    # What it adds up to is what the command adds up.
    theirs = postproc.run("merge", table, "--json", codes=(2,)).stdout
    assert kvmtrace.merge(row["summary"] for row in again if row["summary"]).json + "\n" == theirs
    with pytest.raises(ValueError, match="there is no file"):
        fleet.load(None, [])


def test_a_task_of_a_selection(postproc):
    """Each trace has the row of the command; one of which nothing is selected has the reason."""
    words = ["--process", "t*", "--since", "10%"]
    selection = selected(process="t*", since="10%")
    asked = [{"path": path, "host": "h"} for path in paths()]
    batch = pyarrow.RecordBatch.from_pylist(asked)
    made = fleet._summaries_in_arrow(iter([batch]), selection=selection)
    rows = pyarrow.Table.from_batches(made).to_pylist()
    assert {row["selection"] for row in rows} == {"--process 't*' --since 10%"}
    done = postproc.run("summary", *paths(), *words, "--host", "h", codes=(0, 1, 2))
    assert [row["summary"] for row in rows if row["summary"]] == done.stdout.splitlines()
    errors = [row["error"] for row in rows if row["error"]]
    assert 0 < len(errors) < len(rows) and all("keeps no reference" in error for error in errors)


def test_a_wrong_selection_is_noticed_before_the_job():
    class NoSpark:
        def __getattr__(self, name):
            raise AssertionError(f"the job has begun: {name}")

    for options, error in (
        ({"since": "5"}, ValueError),
        ({"where": "comm = 'x'"}, kvmtrace.FilterError),
        ({"where": "time < 5ms"}, kvmtrace.FilterError),
    ):
        with pytest.raises(error):
            fleet.summaries(NoSpark(), ["a.vmt"], **options)


OPTIONS = {"selected": selected(), "set": None, "time": "real"}


def in_stretches(path, count, order=lambda stretches: stretches, **options):
    """The curve of a trace, as :func:`kvmtrace.fleet.lru_curve` computes it; or of its stretches in another
    order."""
    options = OPTIONS | {"pages": "canonical", "keep_freed": False} | options
    trace = kvmtrace._kvmtrace.Trace(path)
    ranges = trace.cut(count)
    assert ranges[0][0] == 0 and all(a[1] == b[0] for a, b in zip(ranges, ranges[1:]))
    noted = [trace.stretch_names(*of, options) for of in ranges]
    made = (
        trace.lru_stretch(*of, noted[:place], options, True) for place, of in enumerate(ranges)
    )
    total = kvmtrace._kvmtrace.Stretches()
    for stretch in order(made):
        total.add(stretch)
    batch = total.curve(0)
    return {name: batch[name].to_pylist() for name in batch.column_names}


@pytest.mark.parametrize("options", [{}, {"pages": "virtual"}, {"keep_freed": True}])
def test_stretches_are_the_curve(path, options):
    whole = kvmtrace.open(path).curve("lru", trust=True, allow_loss=True, **options)
    names = [name for name in whole.column_names if name not in ("lower", "upper")]
    for count in (1, 2, 5):
        mine = in_stretches(path, count, **options)
        assert {name: mine[name] for name in names} == {name: list(whole[name]) for name in names}


def test_stretches_of_pieces_are_the_curve(pieces):
    whole = kvmtrace.open(pieces).curve("lru")
    assert in_stretches(pieces, 4)["misses"] == list(whole.misses)
    # Negative control: in another order, it is another curve.
    wrong = in_stretches(pieces, 4, lambda stretches: reversed([*stretches]))
    assert wrong["misses"] != list(whole.misses)


def test_a_stretch_that_is_missing_is_noticed():
    rows = [types.SimpleNamespace(place=place, made=b"x") for place in range(3)]
    assert [*fleet._in_order(rows, 3)] == [b"x"] * 3
    for wrong, text in ((rows[:2], "2 of 3"), (rows[1:], "instead of stretch 0"), ([], "0 of 3")):
        with pytest.raises(RuntimeError, match=text):
            [*fleet._in_order(wrong, 3)]


def test_what_is_no_stretch_is_refused(path):
    options = OPTIONS | {"pages": "canonical", "keep_freed": False}
    trace = kvmtrace._kvmtrace.Trace(path)
    (first, end), *_ = trace.cut(2)
    noted = trace.stretch_names(first, end, options)
    total = kvmtrace._kvmtrace.Stretches()
    stretch = trace.lru_stretch(first, end, [], options, True)
    for bytes_ in (b"", stretch[:-1], stretch[:20] + b"x" + stretch[21:]):
        with pytest.raises(ValueError, match="no stretch"):
            total.add(bytes_)
    with pytest.raises(kvmtrace.TraceError):
        trace.lru_stretch(end, 2**64 - 1, [noted[:-1]], options, True)
    with pytest.raises(kvmtrace.TraceError):
        trace.lru_stretch(end, 2**64 - 1, [], options, True)
    for some in ({"selected": selected(process=1)}, {"selected": selected(comm="*")}, {"set": 0}):
        with pytest.raises(ValueError, match="stretches have all references: select nothing"):
            trace.stretch_names(first, end, options | some)


def test_a_trace_with_losses_is_no_curve():
    with pytest.raises(kvmtrace.TraceError, match="lost"):
        fleet.lru_curve(None, trace_path("loss"))


def test_a_dataset_is_read_by_arrow(postproc, tmp_path):
    """The types are those that Spark has."""
    data = tmp_path / "data"
    postproc.run("dataset", *paths(), "-o", data, codes=(0, 1))
    read = {
        table: pyarrow.dataset.dataset(data / table, partitioning="hive").to_table()
        for table in ("references", "events", "mappings", "pages", "processes", "traces")
    }
    text = pyarrow.string()
    moment = pyarrow.timestamp("us", tz="UTC")
    known = {pyarrow.int32(), pyarrow.int64(), pyarrow.bool_(), text, moment}
    for table in read.values():
        assert {*table.schema.types} <= known
        assert table.schema.field("trace").type == text
    for row in read["traces"].to_pylist():
        trace = kvmtrace.open(row["source"])
        assert row["trace"] == trace.header.uuid and row["n"] == trace.n
        assert row["start_unix_ns"] // 1000 == round(row["start"].timestamp() * 1e6)
        mine = read["references"].filter(pyarrow.compute.field("trace") == row["trace"])
        columns = ["seq", "time_ns", "page", "address", "tid", "mm", "why", "stay_ns", "kernel"]
        mine = mine.select(columns).sort_by("seq").to_pylist()
        theirs = trace.references(columns=columns).to_arrow().to_pylist()
        assert mine == theirs
    sources = {row["source"] for row in read["traces"].to_pylist()}
    assert str(trace_path("windows")) in sources and len(sources) == len(paths())
