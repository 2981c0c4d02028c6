"""Jobs over many traces on Spark.

    >>> from kvmtrace import fleet
    >>> rows = fleet.summaries(spark, paths).persist()     # a row for each trace, on all executors
    >>> fleet.health(rows).show()
    >>> everything = fleet.merged(rows)                    # kvmtrace.Summary of all traces
    >>> everything.curve("opt")
    >>> fleet.most_memory(rows).show()
    >>> fleet.curves(rows, sizes=[1000, 4000]).show()      # of each trace
    >>> fleet.outliers(rows).show()
    >>> fleet.lru_curve(spark, "days/")                    # kvmtrace.Curve of one huge trace, by all executors

In Spark's ``mapInArrow``, the package's native module reads the traces, so all figures are those of
``postproc``, to the last digit. Each executor must have the package, and must find the traces under the
paths that are given. pyspark is not imported before a job is made: ``pip install 'kvmtrace[fleet]'``
installs it. The session must be a classic one: jobs do not run over Spark Connect.

docs/fleet.md describes the jobs, and what they cost.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import _kvmtrace
from ._record import record
from ._results import Curve, warn
from ._select import Addresses, Names, Process, Selected, selected
from ._summary import Summary, merge
from ._trace import _options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

__all__ = [
    "COLUMNS",
    "MEASURES",
    "curves",
    "health",
    "load",
    "lru_curve",
    "mapped",
    "merged",
    "most_memory",
    "outliers",
    "summaries",
    "working_sets",
]

#: Columns of :func:`summaries` and :func:`load`, with Spark's types. Times are in ns, ``bytes`` is the size
#: of the trace, and ``cpu_seconds`` is what its summary took.
COLUMNS = {
    "path": "string",
    "trace": "string",
    "host": "string",
    "selection": "string",
    "kernel": "string",
    "n": "long",
    "page_size": "long",
    "start_unix_ns": "long",
    "duration_ns": "long",
    "bytes": "long",
    "references": "long",
    "events": "long",
    "pages": "long",
    "footprint_pages": "long",
    "cold": "long",
    "complete": "boolean",
    "good": "boolean",
    "lost": "long",
    "errors": "long",
    "failed_rules": "string",
    "error": "string",
    "cpu_seconds": "double",
    "summary": "string",
}

#: Which trace a row is of, in tables with several rows for each trace.
WHOSE = {"trace": "string", "host": "string", "selection": "string"}

#: Sums that one task of :func:`merged` adds up.
FAN_IN = 64

#: A batch goes back to Spark when it has so many rows, or so many characters of summaries.
BATCH_ROWS = 4096
BATCH_CHARACTERS = 1 << 20


def _schema(columns: Mapping[str, str]) -> str:
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())


def _arrow(rows: list[dict[str, Any]], columns: Mapping[str, str]) -> Any:
    import pyarrow

    types = {
        "string": pyarrow.string(),
        "long": pyarrow.int64(),
        "double": pyarrow.float64(),
        "boolean": pyarrow.bool_(),
    }
    schema = pyarrow.schema([(name, types[kind]) for name, kind in columns.items()])
    return pyarrow.RecordBatch.from_pylist(rows, schema=schema)


def _batches(rows: Iterable[dict[str, Any]], columns: Mapping[str, str]) -> Iterator[Any]:
    """The rows in batches. Small ones would cost more than the rows; a summary may have megabytes."""
    batch: list[dict[str, Any]] = []
    characters = 0
    for row in rows:
        batch.append(row)
        characters += len(row.get("summary") or "")
        if len(batch) >= BATCH_ROWS or characters >= BATCH_CHARACTERS:
            yield _arrow(batch, columns)
            batch, characters = [], 0
    if batch:
        yield _arrow(batch, columns)


def _row(one: Summary) -> dict[str, Any]:
    """The row of a summary. That of several traces has only what they have together."""
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    row |= {name: getattr(one, name) for name in ("page_size", "duration_ns", "bytes", "references")}
    row |= {name: getattr(one, name) for name in ("events", "pages", "lost")}
    row |= {"footprint_pages": one.footprint, "cold": one.lru.cold, "summary": one.json}
    row |= {"selection": one.selection}
    if one.trace is not None:
        row |= {name: one.trace[name] for name in COLUMNS if name in one.trace}
        row |= {"path": one.trace.source, "failed_rules": ",".join(one.trace.failed_rules)}
    return row


def _summarize(
    path: str,
    host: str | None,
    trust: bool = False,
    allow_loss: bool = False,
    selection: Selected | None = None,
) -> dict[str, Any]:
    """The row of a trace. If it cannot be read, or nothing of it is selected, the row has the error."""
    before = time.process_time()
    of = selected() if selection is None else selection
    try:
        # Spark has a task for each core, so a task has a thread.
        row = _row(Summary(_kvmtrace.Trace(path).summary_json(host, trust, allow_loss, False, of)))
    except _kvmtrace.TraceError as error:
        row = dict.fromkeys(COLUMNS) | {"host": host, "error": str(error)}
        row |= {"selection": _kvmtrace.selection(of)}
    return row | {"path": path, "cpu_seconds": time.process_time() - before}


def _summaries_in_arrow(
    batches: Iterator[Any],
    trust: bool = False,
    allow_loss: bool = False,
    selection: Selected | None = None,
) -> Iterator[Any]:
    asked = (row for batch in batches for row in batch.to_pylist())
    rows = (_summarize(**row, trust=trust, allow_loss=allow_loss, selection=selection) for row in asked)
    return _batches(rows, COLUMNS)


def _load_in_arrow(batches: Iterator[Any]) -> Iterator[Any]:
    lines = (line for batch in batches for line in batch.to_pylist())
    return _batches((_loaded(**line) for line in lines if line["value"].strip()), COLUMNS)


def _loaded(value: str, file: str) -> dict[str, Any]:
    """The row of a line of a file."""
    try:
        _kvmtrace.Sum().add(value)
    except ValueError as error:
        return dict.fromkeys(COLUMNS) | {"path": file, "error": str(error)}
    return _row(Summary(value))


def _load_tables_in_arrow(batches: Iterator[Any]) -> Iterator[Any]:
    tables = (table for batch in batches for table in batch.to_pylist())
    return _batches((row for table in tables for row in _of_table(**table)), COLUMNS)


def _of_table(content: bytes, file: str) -> Iterator[dict[str, Any]]:
    """The rows of a table of Parquet. If it cannot be read, there is one row, with the error."""
    try:
        found = _kvmtrace.table_of_summaries(content)
    except ValueError as error:
        found = [(None, str(error))]
    for text, why in found:
        if text is not None:
            yield _row(Summary(text))
        else:
            yield dict.fromkeys(COLUMNS) | {"path": file, "error": why or "the row has no summary"}


def _merge_in_arrow(batches: Iterator[Any]) -> Iterator[Any]:
    total = None
    for batch in batches:
        for text in batch.to_pydict()["summary"]:
            total = total or _kvmtrace.Sum()
            total.add(text)
    if total is not None:
        yield _arrow([{"summary": total.json()}], {"summary": "string"})


def _of_each(
    rows: DataFrame, columns: Mapping[str, str], make: Callable[[Summary], Iterable[dict[str, Any]]]
) -> DataFrame:
    """A DataFrame with the rows that ``make`` makes of each summary."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        texts = (text for batch in batches for text in batch.to_pydict()["summary"])
        return _batches((row for text in texts for row in make(Summary(text))), columns)

    return rows.select("summary").mapInArrow(run, _schema(columns))


def _read(rows: DataFrame) -> DataFrame:
    """The rows of traces that could be read."""
    if "selection" not in rows.columns:
        # Rows that an earlier version has written are of all references.
        rows = rows.selectExpr("*", "CAST(NULL AS STRING) AS selection")
    return rows.where("summary IS NOT NULL")


def _traces(rows: DataFrame) -> DataFrame:
    """These, without sums of several traces."""
    return _read(rows).where("trace IS NOT NULL")


def summaries(
    spark: SparkSession,
    paths: Iterable[str | os.PathLike[str]] | Mapping[Any, str | None],
    *,
    tasks: int | None = None,
    where: str | None = None,
    since: str | None = None,
    until: str | None = None,
    process: Process | None = None,
    comm: Names | None = None,
    mapping: Names | None = None,
    address: Addresses | None = None,
    trust: bool = False,
    allow_loss: bool = False,
) -> DataFrame:
    """A DataFrame with a row for each trace: its main figures, and ``summary``, the line of ``postproc
    summary``.

    ``paths`` are files or directories of pieces. A mapping gives the host of each path: a trace does not
    record its host. If a trace cannot be read, its row has the message in ``error``, and null in most
    other columns. The job reads all other traces. ``tasks`` is the largest number of tasks; without it,
    this is four for each core. ``trust`` and ``allow_loss`` are the options of ``postproc summary``.
    Persist the result or write it to a file if it is used more than once.

    ``where``, ``since``, ``until``, ``process``, ``comm``, ``mapping`` and ``address`` select references of
    each trace, as in :func:`kvmtrace.summary`. The column ``selection`` has them as words. A trace of which
    nothing is selected has ``error``. No job puts rows of different selections together.

    Raises ValueError if there is no path, or if an argument is wrong; :class:`FilterError` if ``where`` is;
    and TypeError if ``paths`` is a single one.
    """
    selection = selected(
        where=where,
        since=since,
        until=until,
        process=process,
        comm=comm,
        mapping=mapping,
        address=address,
    )
    # What is wrong with it is the same for each trace.
    _kvmtrace.selection(selection)
    if isinstance(paths, (str, bytes, os.PathLike)):
        raise TypeError(f"paths must be a list of paths, or hosts by path: use [{paths!r}]")
    hosts: Mapping[Any, str | None] = paths if isinstance(paths, Mapping) else dict.fromkeys(paths)
    rows = [(os.path.abspath(path), host) for path, host in hosts.items()]
    if not rows:
        raise ValueError("there is no trace")
    if tasks is None:
        tasks = 4 * int(spark.sparkContext.defaultParallelism)
    frame = spark.createDataFrame(rows, "path string, host string")
    frame = frame.repartition(max(1, min(tasks, len(rows))))

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        return _summaries_in_arrow(batches, trust, allow_loss, selection)

    return frame.mapInArrow(run, _schema(COLUMNS))


def load(spark: SparkSession, files: str | Sequence[str]) -> DataFrame:
    """The same DataFrame from files that ``postproc summary`` or ``postproc merge`` has written, which Spark
    finds under these paths or addresses. No trace is read.

    A name that ends in .parquet is a table, or a directory with tables whose names end so, too. Tables are
    read as ``postproc merge`` reads them, also those that Spark has written of rows of :func:`summaries`. One
    task reads a table, which is in memory as a whole with its rows, and has 2 GiB at most. All other files
    have lines of JSON.

    ``path`` is the trace as the command line named it. A sum of several traces, as ``postproc merge``
    writes it, has null in ``trace``: only :func:`merged`, :func:`mapped` and :func:`most_memory` use it. A
    line or a row that is no summary, and a table that cannot be read, have the reason in ``error``, and their
    file in ``path``. Raises ValueError if there is no file.
    """
    of = [files] if isinstance(files, str) else list(files)
    if not of:
        raise ValueError("there is no file")
    tables = [file for file in of if file.rstrip("/").endswith(".parquet")]
    texts = [file for file in of if file not in tables]
    frames = []
    if texts:
        lines = spark.read.text(texts).selectExpr("value", "_metadata.file_path AS file")
        frames.append(lines.mapInArrow(_load_in_arrow, _schema(COLUMNS)))
    if tables:
        # Spark itself would read the lists of a row into objects that are larger than the table.
        binary = spark.read.format("binaryFile").option("pathGlobFilter", "*.parquet").load(tables)
        whole = binary.selectExpr("content", "path AS file")
        frames.append(whole.mapInArrow(_load_tables_in_arrow, _schema(COLUMNS)))
    return functools.reduce(lambda one, other: one.unionByName(other), frames)


def health(rows: DataFrame) -> DataFrame:
    """Which traces are bad, incomplete, have losses or cannot be read, and why: a row for each trace, those
    that cannot be read first, then the bad ones."""
    from pyspark.sql import functions

    names = "path", "trace", "host", "good", "complete", "lost", "errors", "failed_rules", "error"
    order = "error IS NULL", "good", "complete", "lost = 0", "path"
    return rows.select(*names).orderBy(*[functions.expr(key) for key in order])


def merged(rows: DataFrame) -> Summary:
    """The summary of all traces together, as ``postproc merge`` makes it.

    Executors add up the summaries of each partition, and then :data:`FAN_IN` sums in each task, until few
    are left. Raises ValueError if no trace could be read, if rows are of different selections, or if two
    rows are of the same trace. A row of several traces does not have their ids, so a trace that is repeated
    there is not noticed. Traces with pages of different sizes (``page_size``) cannot be added up: Spark's
    exception has the reason.
    """
    # The rows are read three times.
    persisted = rows.storageLevel.useMemory or rows.storageLevel.useDisk
    if not persisted:
        rows = rows.persist()
    try:
        of = _read(rows).select("selection").distinct().orderBy("selection").limit(2).collect()
        if len(of) > 1:
            one, other = (row.selection or "all references" for row in of)
            raise ValueError(f"rows of {one} cannot be added to rows of {other}: merge one selection only")
        twice = _traces(rows).groupBy("trace").count().where("count > 1").select("trace").first()
        if twice is not None:
            paths = [row.path for row in rows.where(rows.trace == twice.trace).collect()]
            raise ValueError(f"trace {twice.trace} is there more than once: {', '.join(paths)}")
        left = _read(rows).select("summary")
        parts: int = left.rdd.getNumPartitions()
        left = left.mapInArrow(_merge_in_arrow, "summary string")
        while parts > FAN_IN:
            parts = -(-parts // FAN_IN)
            left = left.repartition(parts).mapInArrow(_merge_in_arrow, "summary string")
        return merge(row.summary for row in left.collect())
    finally:
        if not persisted:
            rows.unpersist()


def curves(rows: DataFrame, sizes: Iterable[int], policies: Sequence[str] = ("lru", "opt")) -> DataFrame:
    """Misses of each trace: trace, host, selection, policy, size_pages (pages), misses."""
    columns = WHOSE | {"policy": "string"}
    columns |= {"size_pages": "long", "misses": "long"}
    of = sorted(set(sizes))

    def points(one: Summary) -> Iterator[dict[str, Any]]:
        for policy in policies:
            for size, misses in zip(*one.curve(policy, of), strict=True):
                yield {"policy": policy, "size_pages": size, "misses": misses, **_whose(one)}

    return _of_each(_traces(rows), columns, points)


def working_sets(rows: DataFrame) -> DataFrame:
    """Working sets of each trace: trace, host, selection, tau_ns, samples, pages (the sum of the set's sizes
    over the samples), most_pages. ``pages / samples`` is the mean size."""
    figures = dict.fromkeys(("tau_ns", "samples", "pages", "most_pages"), "long")

    def sets(one: Summary) -> Iterator[dict[str, Any]]:
        for of in one.working_sets:
            yield {name: of[name] for name in figures} | _whose(one)

    return _of_each(_traces(rows), WHOSE | figures, sets)


def mapped(rows: DataFrame) -> DataFrame:
    """What was mapped in each trace: trace, host, selection, name, kind, traces, references, pages, bytes,
    dirtied. ``traces`` is 1, except in the row of a sum."""
    names = ("traces", "references", "pages", "bytes", "dirtied")
    columns = WHOSE | dict.fromkeys(("name", "kind"), "string") | dict.fromkeys(names, "long")

    def objects(one: Summary) -> Iterator[dict[str, Any]]:
        for of in one.mapped:
            yield of | _whose(one)

    return _of_each(_read(rows), columns, objects)


def _whose(one: Summary) -> dict[str, str | None]:
    of = {name: one.trace and one.trace[name] for name in ("trace", "host")}
    return of | {"selection": one.selection}


def most_memory(rows: DataFrame, count: int = 25) -> DataFrame:
    """The files, libraries and other objects whose referenced pages take most memory over all traces: name,
    kind, selection, hosts (with a name), traces, references, pages, bytes, dirtied. Each selection has rows of
    its own."""
    from pyspark.sql import functions

    names = ("traces", "references", "pages", "bytes", "dirtied")
    hosts = functions.countDistinct("host").alias("hosts")
    sums = [functions.sum(name).alias(name) for name in names]
    objects = mapped(rows).groupBy("name", "kind", "selection").agg(hosts, *sums)
    return objects.orderBy(functions.desc("bytes"), "name", "kind", "selection").limit(count)


#: What :func:`outliers` compares: a name, and an expression of SQL over :data:`COLUMNS`.
MEASURES = {
    "footprint_pages": "footprint_pages",
    "references_per_second": "try_divide(`references`, duration_ns / 1e9)",
    "references_per_page": "try_divide(`references`, pages)",
    "lost": "lost",
}


def outliers(rows: DataFrame, *, above: float = 3.5, measures: Mapping[str, str] = MEASURES) -> DataFrame:
    """Traces that differ from the others: trace, path, selection, measure, value, median, score. Each row is
    compared with those of the same selection.

    The score of a value is 0.6745 times its distance from the median of all traces, divided by the
    median of these distances (Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993). If more than
    half of the values are equal, that median is 0, and each other value is an outlier with an infinite
    score. If an expression of SQL in ``measures`` is null for a trace, that
    measure leaves the trace out.
    """
    from pyspark.sql import functions

    pairs = ", ".join(f"'{name}', CAST({of} AS DOUBLE)" for name, of in measures.items())
    stacked = f"stack({len(measures)}, {pairs}) AS (measure, value)"
    # A join finds no nulls.
    group = "coalesce(selection, '') AS selected"
    values = _traces(rows).selectExpr("trace", "path", "selection", group, stacked)
    values, alike = values.where("value IS NOT NULL"), ["selected", "measure"]
    medians = values.groupBy(alike).agg(functions.median("value").alias("median"))
    values = values.join(medians, alike)
    values = values.withColumn("distance", functions.expr("abs(value - median)"))
    middle = values.groupBy(alike).agg(functions.median("distance").alias("mad"))
    score = "CASE WHEN distance = 0 THEN 0D WHEN mad = 0 THEN CAST('Infinity' AS DOUBLE) "
    score += "ELSE 0.6745 * distance / mad END"
    scored = values.join(middle, alike).withColumn("score", functions.expr(score))
    names = "trace", "path", "selection", "measure", "value", "median", "score"
    chosen = scored.where(functions.col("score") > above).select(*names)
    return chosen.orderBy(functions.desc("score"), "measure", "path")


def _in_arrow(batches: Iterator[Any], make: Callable[[int, int, int], bytes]) -> Iterator[Any]:
    """What ``make`` makes of each range of sequence numbers."""
    import pyarrow

    for batch in batches:
        for row in batch.to_pylist():
            made = make(row["place"], int(row["first"]), int(row["end"]))
            yield pyarrow.RecordBatch.from_pydict({"place": [row["place"]], "made": [made]})


def _in_order(rows: Iterable[Row], count: int) -> Iterator[bytes]:
    """What was made of each range, in order. Raises RuntimeError if Spark has lost or moved one."""
    place = -1
    for place, row in enumerate(rows):
        if row.place != place:
            raise RuntimeError(f"stretch {row.place} came instead of stretch {place}")
        yield bytes(row.made)
    if place + 1 != count:
        raise RuntimeError(f"{place + 1} of {count} stretches came")


def lru_curve(
    spark: SparkSession,
    path: str | os.PathLike[str],
    *,
    points: int = 0,
    stretches: int | None = None,
    pages: str = "canonical",
    keep_freed: bool = False,
    allow_loss: bool = False,
) -> Curve:
    """The LRU curve of one huge trace, computed by all executors: each number is that of ``Trace.curve``.

    The trace is a file or a directory of pieces, which each executor must find under ``path``. It is cut
    into ``stretches``: ranges of sequence numbers with about as many references each. Without
    ``stretches``, there is one for each core. An executor reads the references of its stretch, and the
    events from the beginning of the trace to the end of its stretch.

    ``points``, ``pages`` and ``keep_freed`` are those of ``Trace.curve``. The rules of ``Trace.check`` are
    not applied, which the result warns of, and the curve has no bounds.

    Raises :class:`TraceError` if the trace cannot be opened; if it has no end, has lost records or is known
    to be damaged, and ``allow_loss`` is not given. Damage that an executor finds later is an exception of
    Spark. Raises ValueError if ``stretches`` is below 1.
    """
    path = os.path.abspath(path)
    trace = _kvmtrace.Trace(path)
    options = _options(selected(), None, pages, keep_freed)
    about = record(json.loads(trace.stretch_about_json(options, allow_loss)))
    if stretches is None:
        stretches = int(spark.sparkContext.defaultParallelism)
    if stretches < 1:
        raise ValueError(f"stretches is {stretches}; it must be 1 or more")
    # Spark has no numbers without a sign.
    ranges = [(place, str(a), str(b)) for place, (a, b) in enumerate(trace.cut(stretches))]
    count = len(ranges)
    # Each is a partition, and partitions keep their order.
    partitions = spark.sparkContext.parallelize(ranges, count)
    frame = spark.createDataFrame(partitions, _schema({"place": "long", "first": "string", "end": "string"}))
    columns = _schema({"place": "long", "made": "binary"})

    def names(_: int, first: int, end: int) -> bytes:
        return _kvmtrace.Trace(path).stretch_names(first, end, options)

    def compute(place: int, first: int, end: int) -> bytes:
        of = _kvmtrace.Trace(path)
        return of.lru_stretch(first, end, noted.value[:place], options, allow_loss)

    # First, each executor notes the references of its stretch that may be the first to their pages.
    rows = frame.mapInArrow(lambda batches: _in_arrow(batches, names), columns)
    noted = spark.sparkContext.broadcast([*_in_order(rows.collect(), count)])
    # With these notes, each executor computes its stretch. The driver takes one after the other.
    made = frame.mapInArrow(lambda batches: _in_arrow(batches, compute), columns).persist()
    try:
        made.count()
        total = _kvmtrace.Stretches()
        for stretch in _in_order(made.toLocalIterator(), count):
            total.add(stretch)
    finally:
        made.unpersist()
        noted.destroy()
    about["references"] = total.references
    warn(about)
    return Curve("lru", total.curve(points), about)
