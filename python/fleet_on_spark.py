"""The jobs of kvmtrace.fleet on a local cluster with several executor processes: `make fleet`.

    fleet_on_spark.py POSTPROC SYNTHESIZE WORK TRACES REPEAT

Makes TRACES traces in WORK, and takes those of the kernel in postproc/tests/fixtures and docs/gallery, too.
Compares what the jobs give with what the command POSTPROC gives, and measures what 10, 100, 1,000 … traces cost
with one and with two executors: the best of REPEAT measurements. WORK/cost.json has the figures. The exit code is 1
if a figure is wrong, or if 1,000 traces or more miss the target (scripts/targets.py). If other programs use the CPUs,
JUDGE=0 only reports that.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import json
import math
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import time
import warnings

from pyspark.sql import SparkSession, functions

import kvmtrace
from kvmtrace import fleet

TOP = pathlib.Path(__file__).resolve().parents[1]
sys.path.append(str(TOP / "scripts"))
from targets import Target, settle

FIXTURES = sorted((TOP / "postproc/tests/fixtures/v1").glob("*.vmt.zst"))
GALLERY = sorted((TOP / "docs/gallery").glob("*.vmt"))
#: Traces that the kernel has recorded: of programs made for tests, and of those that docs/gallery.md shows.
RECORDED = [*FIXTURES, *GALLERY]
#: Traces are of so many hosts.
HOSTS = 20
#: For so many traces, two executors are at least so many times as fast as one. For fewer, Spark's own work is much.
MANY, TWICE = 1_000, 1.7


class Wrong(Exception):
    """A figure is not what it must be."""


def must(condition, *what):
    if not condition:
        raise Wrong(" ".join(map(str, what)))


def say(*text):
    print(*text, flush=True)


class Commands:
    """Runs `postproc`, and makes traces."""

    def __init__(self, postproc, synthesize):
        self.postproc, self.synthesize = postproc, synthesize

    def run(self, *args, codes=(0,)):
        command = [self.postproc, *map(str, args)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        must(done.returncode in codes, command[:3], "exits with", done.returncode, done.stderr[-2000:])
        return done.stdout

    def make(self, path, seed):
        """A trace of 20,000 to 100,000 references to 200 to 6,200 pages. Each seed gives another one."""
        if not path.exists():
            references, pages = 20_000 + seed * 7919 % 80_000, 200 + seed * 104_729 % 6_000
            numbers = [references, pages, 64, 50, 1 + seed % 8, 1000, seed]
            partial = path.with_suffix(".partial")
            subprocess.run([self.synthesize, partial, *map(str, numbers)], check=True)
            partial.rename(path)
        return path


def make_traces(commands, work, count):
    """The kernel's traces, and others, evenly mixed."""
    traces = work / "traces"
    traces.mkdir(exist_ok=True)
    seeds = range(1, count - len(RECORDED) + 1)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
        made = [*threads.map(lambda seed: commands.make(traces / f"{seed:07}.vmt", seed), seeds)]
    every = len(made) // len(RECORDED)
    for place, recorded in enumerate(RECORDED):
        made.insert(place * (every + 1), recorded)
    return {str(path): f"host-{place % HOSTS}" for place, path in enumerate(made)}


def bad_traces(commands, work, seed):
    """A file that is no trace, none at all, and a trace that ends in the middle."""
    broken, gone, cut = work / "broken.vmt", work / "gone.vmt", work / "cut.vmt"
    broken.write_bytes(b"no trace")
    whole = commands.make(work / "whole.vmt", seed).read_bytes()
    cut.write_bytes(whole[: len(whole) // 2])
    return {str(path): "host-of-bad-ones" for path in (broken, gone, cut)}


@contextlib.contextmanager
def session(work, executors):
    """A local cluster, until the end of the block: each executor is a process with one core."""
    # Executors and their Python workers are processes that inherit these.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    for name in ("SPARK_WORKER_DIR", "SPARK_LOCAL_DIRS", "TMPDIR"):
        place = work / "spark" / name.lower()
        place.mkdir(parents=True, exist_ok=True)
        os.environ[name] = str(place)
    # Nothing is written outside WORK.
    java = f"-Djava.io.tmpdir={os.environ['TMPDIR']} -XX:-UsePerfData"
    settings = {
        "spark.app.name": "kvmtrace fleet",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": java,
        "spark.executor.extraJavaOptions": java,
        "spark.executor.memory": "900m",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.warehouse.dir": str(work / "spark/warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master(f"local-cluster[{executors},1,1024]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        # Executors register one after the other. A job before that would have fewer.
        deadline = time.monotonic() + 300
        status = spark.sparkContext._jsc.sc().statusTracker()
        # The driver is in the list, too.
        while len(status.getExecutorInfos()) < executors + 1:
            must(time.monotonic() < deadline, "no", executors, "executors come within 300 s")
            time.sleep(0.2)
        yield spark
    finally:
        spark.stop()


def cpu_seconds():
    """CPU seconds of this process and of all that it has started: Java, the executors, their Python."""
    parents, ticks = {}, {}
    for directory in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            fields = (directory / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        # utime, stime, and those of children that have ended.
        parents[int(directory.name)] = int(fields[1])
        ticks[int(directory.name)] = sum(map(int, fields[11:15]))
    of = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in of} - of:
        of |= more
    return sum(ticks[pid] for pid in of if pid in ticks) / os.sysconf("SC_CLK_TCK")


def children_cpu():
    """CPU seconds of commands that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@dataclasses.dataclass
class Cost:
    """What summaries of all traces and their sum cost."""

    executors: int
    traces: int
    megabytes: float
    references: int
    seconds: float
    #: Of the native module and its Python, for each trace.
    cpu_in_tasks: float
    #: Of all processes, for each trace.
    cpu: float
    #: Of these, what it takes to add up rows that are there.
    cpu_of_sum: float
    bytes_of_a_row: float
    bytes_of_sum: int

    def row(self):
        # The CPUs that the processes got: fewer than there are if other programs ran.
        cpus = self.cpu * self.traces / self.seconds
        return (
            f"{self.executors:>9} {self.traces:>7,} {self.megabytes:>8,.1f} {self.references:>11,}"
            f" {self.seconds:>8.2f} {cpus:>5.2f} {self.cpu_in_tasks:>8.4f} {self.cpu:>8.4f}"
            f" {self.cpu_of_sum:>8.4f} {self.bytes_of_a_row:>8,.0f} {self.bytes_of_sum:>10,}"
        )


HEADING = """
                                                          CPU seconds of a trace      bytes of
executors  traces       MB  references  seconds  CPUs in tasks   in all  the sum    a row    the sum"""


def measure(spark, executors, hosts):
    before, begin = cpu_seconds(), time.monotonic()
    rows = fleet.summaries(spark, hosts).persist()
    count = rows.count()
    between = cpu_seconds()
    merged = fleet.merged(rows)
    seconds, after = time.monotonic() - begin, cpu_seconds()
    must(count == len(hosts) == merged.traces, "rows are missing:", count, len(hosts), merged.traces)
    figures = "sum(bytes)", "sum(references)", "sum(cpu_seconds)", "avg(length(summary))"
    size, references, in_tasks, of_a_row = rows.selectExpr(*figures).first()
    rows.unpersist()
    return Cost(
        executors=executors,
        traces=count,
        megabytes=size / 1e6,
        references=references,
        seconds=seconds,
        cpu_in_tasks=in_tasks / count,
        cpu=(after - before) / count,
        cpu_of_sum=(after - between) / count,
        bytes_of_a_row=of_a_row,
        bytes_of_sum=len(merged.json),
    )


def some(hosts, count):
    """So many, spread evenly."""
    paths = [*hosts]
    return {path: hosts[path] for path in (paths[i * len(paths) // count] for i in range(count))}


def cost(work, hosts, repeat):
    """The best of some measurements for each number of executors and traces."""
    counts = [10**power for power in range(1, 10) if 10**power < len(hosts)] + [len(hosts)]
    best = {}
    for _ in range(repeat):
        for executors in (1, 2):
            with session(work, executors) as spark:
                # What is loaded or compiled once does not count.
                for _ in range(3):
                    measure(spark, executors, some(hosts, min(60, len(hosts))))
                for count in counts:
                    new = measure(spark, executors, some(hosts, count))
                    old = best.get((executors, count), new)
                    best[executors, count] = min(old, new, key=lambda one: one.seconds)
    say(HEADING)
    for one in (best[key] for key in sorted(best)):
        say(one.row())
    ratios = {count: best[1, count].seconds / best[2, count].seconds for count in counts}
    for count, ratio in ratios.items():
        say(f"{count:,} traces: two executors are {ratio:.2f} times as fast as one")
    return {
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg(),
        "repeat": repeat,
        "costs": [dataclasses.asdict(best[key]) for key in sorted(best)],
        "ratios": ratios,
    }


def by_command(commands, work, hosts):
    """The files that `postproc summary` writes for each host."""
    paths = collections.defaultdict(list)
    for path, host in hosts.items():
        paths[host].append(path)
    files = []
    for host, of in paths.items():
        files.append(work / f"{host}.ndjson")
        # 1: one of the kernel's traces has losses, and the one that was cut is bad. 2: two cannot be read.
        commands.run("summary", *of, "--host", host, "-o", files[-1], codes=(0, 1, 2))
    return files


def wrong_rows(mine, theirs):
    """The ids of the traces whose rows differ."""
    return [of for of in {*mine, *theirs} if mine.get(of) != theirs.get(of)]


def compare(commands, spark, work, hosts, bad):
    """All that the jobs give is what the command gives, to the last digit."""
    rows = fleet.summaries(spark, {**bad, **hosts}).persist()
    files = by_command(commands, work, {**hosts, **bad})
    lines = [line for file in files for line in file.read_text().splitlines()]
    theirs = {json.loads(line)["trace"]["trace"]: line for line in lines}
    mine = {row.trace: row.summary for row in rows.where("error IS NULL").collect()}
    must(len(theirs) == len(hosts) + 1, "the command has read", len(theirs))
    must(not wrong_rows(mine, theirs), "rows differ:", wrong_rows(mine, theirs))
    # Negative control: a hit more in one histogram is seen.
    one = sorted(mine)[-1]
    changed = json.loads(mine[one])
    changed["opt"]["hits"][-1] += 1
    must(wrong_rows({**mine, one: json.dumps(changed)}, theirs) == [one], "a wrong row is not seen")

    # Bad traces have names, and come first.
    health = [(row.path, row.good, row.error) for row in fleet.health(rows).collect()]
    must(len(health) == len(hosts) + len(bad), "rows of health:", len(health))
    broken, gone, cut = bad
    must({path for path, _, error in health if error} == {broken, gone}, health[:4])
    must({path for path, _, _ in health[:2]} == {broken, gone}, health[:4])
    must(all(pathlib.Path(path).name in error for path, _, error in health[:2]), health[:4])
    loss = str(next(path for path in FIXTURES if path.name.startswith("loss")))
    must({path for path, good, _ in health if good is False} == {cut, loss}, health[:6])

    merged = fleet.merged(rows)
    whole = commands.run("merge", *files, "--json")
    must(merged.json + "\n" == whole, "the sum differs")
    # So many parts are added up in two rounds.
    many = rows.repartition(fleet.FAN_IN + 6)
    must(fleet.merged(many).json == merged.json, "the sum of many parts differs")
    must(fleet.merged(rows.where("path <> '%s'" % loss)).json + "\n" != whole, "a missing row is not seen")

    sizes = [1, 64, 1_000, 100_000]
    curves = fleet.curves(rows, sizes).collect()
    must(len(curves) == len(theirs) * len(sizes) * 2, "points of curves:", len(curves))
    each = {of: kvmtrace.Summary(line) for of, line in theirs.items()}
    for row in curves:
        must(row.misses == each[row.trace].misses(row.policy, row.size_pages), row)
    sets = fleet.working_sets(rows).collect()
    must(len(sets) == sum(len(one.working_sets) for one in each.values()), "sets:", len(sets))
    for row in sets:
        of = next(one for one in each[row.trace].working_sets if one.tau_ns == row.tau_ns)
        must(all(row[name] == of[name] for name in ("samples", "pages", "most_pages")), row)

    expected = collections.defaultdict(set)
    for one in each.values():
        for of in one.mapped:
            expected[of.name, of.kind].add(one.trace.host)
    most = [row.asDict() for row in fleet.most_memory(rows).collect()]
    hosts_of = [of.pop("hosts") for of in most]
    must({of.pop("selection") for of in most} == {None}, "a selection of all references")
    must(most == merged.most_memory(), "what takes most memory differs:", most[:3])
    must(hosts_of == [len(expected[of["name"], of["kind"]]) for of in most], "hosts:", hosts_of)
    outliers(rows, each)

    # Commands that are not made of summaries.
    for path in map(str, [*FIXTURES[:5], *GALLERY]):
        row = rows.where(rows.path == path).first()
        one = kvmtrace.Summary(row.summary)
        for policy in ("lru", "opt"):
            text = commands.run("simulate", path, "--policy", policy, "--curve", "--points", "0", "--json")
            points = [(of["size_pages"], of["misses"]) for of in json.loads(text)["curve"]]
            must(one.curve(policy, [size for size, _ in points])[1] == [m for _, m in points], path)
    # Rows in a few files instead of a file for each trace.
    rows.write.mode("overwrite").parquet(str(work / "rows"))
    parts = len([*(work / "rows").glob("*.parquet")])
    again = spark.read.parquet(str(work / "rows"))
    must(fleet.merged(again).json == merged.json, "the sum differs after Parquet")
    loaded = fleet.load(spark, [str(file) for file in files])
    must(fleet.merged(loaded).json == merged.json, "the sum of loaded rows differs")
    # Tables of the command and of Spark, and lines.
    host, *others = files
    paths = [path for path, of in hosts.items() if of == host.stem]
    commands.run("summary", *paths, "--host", host.stem, "-o", work / "host.parquet", codes=(0, 1))
    written = work / "rows-of-others.parquet"
    rows.where(rows.host.isin([file.stem for file in others[1:]])).write.mode("overwrite").parquet(str(written))
    loaded = fleet.load(spark, [str(work / "host.parquet"), f"{written}/", str(others[0])]).persist()
    must(fleet.merged(loaded).json == merged.json, "the sum of loaded tables differs")
    errors = sorted(row.error for row in loaded.where("summary IS NULL").collect())
    must(errors == sorted(error for _, _, error in health if error), "errors of tables:", errors)
    loaded.unpersist()
    size = sum(file.stat().st_size for file in (work / "rows").glob("*.parquet"))
    text = sum(file.stat().st_size for file in files)
    say(
        f"{len(theirs):,} summaries: {text:,} bytes of JSON lines, and {size:,} bytes of Parquet in"
        f" {parts} files"
    )

    # Losses can be allowed.
    of_loss = fleet.summaries(spark, [loss], allow_loss=True).first()
    must(of_loss.lost > 0 and "loss" not in of_loss.failed_rules.split(","), of_loss.failed_rules)

    # A trace that is there twice is not added up.
    copy = shutil.copy(next(iter(set(hosts) - set(map(str, RECORDED)))), work / "copy.vmt")
    try:
        fleet.merged(fleet.summaries(spark, [*hosts, copy]))
    except ValueError as error:
        must("copy.vmt" in str(error), error)
    else:
        raise Wrong("a trace was added twice")
    rows.unpersist()


def selections(commands, spark, work, hosts):
    """Rows of selections are those of the command, and are never put together with others."""
    arguments = ["--since", "10%", "--process", "t*", "--mapping", "*.so*", "--mapping", "[heap]"]
    rows = fleet.summaries(
        # Without hosts, as the command has none: the sum of a single row has its host.
        spark, [*hosts], since="10%", process="t*", mapping=["*.so*", "[heap]"], allow_loss=True
    ).persist()
    file = work / "selected.ndjson"
    # 2: of most traces, nothing is selected.
    commands.run("summary", *hosts, *arguments, "--allow-loss", "-o", file, codes=(0, 1, 2))
    theirs = file.read_text().splitlines()
    mine = [row.summary for row in rows.where("summary IS NOT NULL").collect()]
    must(0 < len(theirs) < len(hosts), "lines of selections:", len(theirs))
    must(sorted(mine) == sorted(theirs), "selections differ")
    must(fleet.merged(rows).json + "\n" == commands.run("merge", file, "--json"), "their sum differs")
    failed = rows.where("summary IS NULL").collect()
    must(all("keeps no reference" in row.error for row in failed), failed[:1])
    must(len({row.selection for row in rows.select("selection").collect()}) == 1, "selections of rows")
    both = rows.unionByName(fleet.summaries(spark, hosts, allow_loss=True)).persist()
    try:
        fleet.merged(both)
    except ValueError as error:
        must("rows of all references cannot be added" in str(error), error)
    else:
        raise Wrong("rows of different selections were added up")
    most = fleet.most_memory(both, 10**6).where("selection IS NOT NULL").drop("selection", "hosts")
    must([row.asDict() for row in most.collect()] == fleet.merged(rows).most_memory(10**6), "mapped differ")
    apart = fleet.outliers(both).where("selection IS NOT NULL").collect()
    must(sorted(apart) == sorted(fleet.outliers(rows).collect()), "outliers of a selection differ")
    for frame in (rows, both):
        frame.unpersist()
    say(f"{len(theirs):,} rows of a selection are those of postproc")


def outliers(rows, each):
    """The scores are those of Python's own median."""
    found = {(row.trace, row.measure): row.score for row in fleet.outliers(rows).collect()}
    measures = {
        "footprint_pages": lambda one: one.footprint,
        "references_per_second": lambda one: (
            one.duration_ns and one.references / (one.duration_ns / 1e9)
        ),
        "references_per_page": lambda one: one.references / one.pages,
        "lost": lambda one: one.lost,
    }
    expected = {}
    for name, of in measures.items():
        values = {trace: of(one) for trace, one in each.items()}
        median = statistics.median(values.values())
        mad = statistics.median(abs(value - median) for value in values.values())
        for trace, value in values.items():
            distance = abs(value - median)
            score = distance and (0.6745 * distance / mad if mad else math.inf)
            if score > 3.5:
                expected[trace, name] = score
    must(found.keys() == expected.keys(), "outliers differ:", found.keys() ^ expected.keys())
    for key, score in found.items():
        must(math.isclose(score, expected[key], rel_tol=1e-12), key, score, expected[key])
    must("lost" in {measure for _, measure in found}, "the trace with losses is no outlier")


def wrong_sums(spark, each):
    """The ids of the traces of which the dataset's tables have not the rows that their summaries count."""
    counted = collections.defaultdict(dict)
    for table, figures in {
        "references": "count(*) AS references, sum(int(first)) AS cold, count_if(process IS NULL) AS outside",
        "pages": "count(*) AS pages, sum(bytes) AS bytes, sum(references) AS by_page",
        "events": "count(*) AS events",
        "processes": "sum(references) AS by_process",
        "traces": "sum(references) AS in_traces, sum(int(good)) AS good",
    }.items():
        for row in spark.sql(f"SELECT trace, {figures} FROM {table} GROUP BY trace").collect():
            counted[row.trace] |= row.asDict()
    for of in counted.values():
        # A trace with losses may have references of threads that no event mentions.
        of["by_process"] = of.get("by_process", 0) + of.pop("outside", 0)
    expected = {
        of: {
            "trace": of,
            "references": one.references,
            "cold": one.lru.cold,
            "pages": one.pages,
            "bytes": sum(of.bytes for of in one.mapped),
            "by_page": one.references,
            "events": one.events,
            "by_process": one.references,
            "in_traces": one.references,
            "good": one.good,
        }
        for of, one in each.items()
    }
    return wrong_rows(counted, expected)


def read_dataset(commands, spark, work, hosts):
    """Spark reads the dataset of docs/dataset.md: its types, and the sums that the summaries have."""
    data = work / "data"
    shutil.rmtree(data, ignore_errors=True)
    before = children_cpu()
    commands.run("dataset", *hosts, "-o", data, codes=(0, 1))
    cpu = (children_cpu() - before) / len(hosts)
    files = [file for file in data.rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files)
    say(
        f"dataset: for each of {len(hosts)} traces, {cpu:.3f} CPU seconds,"
        f" {size / len(hosts):,.0f} bytes, {len(files) / len(hosts):.1f} files"
    )
    known = {"bigint", "boolean", "int", "string", "timestamp"}
    for table in ("references", "events", "mappings", "pages", "processes", "traces"):
        frame = spark.read.option("mergeSchema", True).parquet(str(data / table))
        must({kind for _, kind in frame.dtypes} <= known, table, frame.dtypes)
        must(dict(frame.dtypes)["trace"] == "string", table, frame.dtypes)
        frame.createOrReplaceTempView(table)
    summaries = [kvmtrace.summary(path) for path in hosts]
    each = {one.trace.trace: one for one in summaries}
    must(not wrong_sums(spark, each), "sums differ:", wrong_sums(spark, each))
    merged = kvmtrace.merge(summaries)
    expected = collections.Counter()
    for one in merged.mapped:
        expected[one.name] += one.bytes
    by_name = spark.sql("SELECT coalesce(name, '(not mapped)'), sum(bytes) FROM pages GROUP BY 1")
    # A name may have references and no page: pages count where they were referenced first.
    must(dict(map(tuple, by_name.collect())) == dict(+expected), "bytes of names differ")
    shared = spark.sql(
        "SELECT count(*) FROM (SELECT name, offset FROM pages WHERE kind = 'file'"
        " GROUP BY name, offset HAVING count(DISTINCT trace) > 1)"
    ).first()[0]
    must(shared > 0, "no page of a file is in several traces")
    # Many small files become few large ones.
    pages = spark.table("pages")
    few = pages.repartitionByRange(2, "trace").sortWithinPartitions("trace", "page")
    few.write.mode("overwrite").parquet(str(work / "compact"))
    compact = spark.read.parquet(str(work / "compact"))
    must(len(compact.inputFiles()) == 2 and len(pages.inputFiles()) == len(hosts), "files of pages")
    must(compact.select(pages.columns).exceptAll(pages).isEmpty(), "compaction has changed rows")
    must(compact.count() == pages.count(), "compaction has lost rows")
    # Negative control: without the references of one CPU of one trace, that trace is wrong.
    one = sorted(each)[0]
    whole = spark.table("references")
    cpu = whole.where(whole.trace == one).first().cpu
    whole.where(~((functions.col("trace") == one) & (whole.cpu == cpu))).createOrReplaceTempView(
        "references"
    )
    must(wrong_sums(spark, each) == [one], "a missing reference is not seen")
    say(f"Spark reads a dataset of {len(hosts)} traces, and its sums are those of postproc")


#: Columns of a curve that the job for one trace computes.
OF_CURVE = ("size_pages", "references", "misses", "cold", "write_backs", "dirty_left")


def columns(curve):
    return {name: list(curve[name]) for name in OF_CURVE}


def one_trace(commands, spark, work):
    """The curve of a trace that all executors compute, in several ways, is that of one pass."""
    pieces = work / "pieces"
    shutil.rmtree(pieces, ignore_errors=True)
    commands.run("split", FIXTURES[0].with_name("two-cpus.vmt.zst"), "--by", "size=100KiB", "-o", pieces)
    large = commands.make(work / "large.vmt", 77_777)
    with warnings.catch_warnings():
        # Each of these curves warns that the trace was not checked.
        warnings.simplefilter("ignore", kvmtrace.TraceWarning)
        for path in (*RECORDED, pieces, large):
            for stretches in (1, 3):
                mine = fleet.lru_curve(spark, path, stretches=stretches, allow_loss=True)
                whole = columns(kvmtrace.open(path).curve("lru", trust=True))
                must(columns(mine) == whole, path, "in", stretches, "stretches is another curve")
        for options in ({"pages": "virtual"}, {"keep_freed": True}):
            mine = columns(fleet.lru_curve(spark, pieces, **options))
            must(mine == columns(kvmtrace.open(pieces).curve("lru", **options)), options)
            must(mine != columns(fleet.lru_curve(spark, pieces)), options, "change nothing")
    say(f"the LRU curves of {len(RECORDED)} traces, and of a directory of pieces, are those of one pass")


def cost_of_one(work, synthesize, repeat, references=5_000_000):
    """Seconds and CPU seconds of the curve of one long trace: in one pass, and by one and two executors."""
    path = work / "long.vmt"
    if not path.exists():
        numbers = [references, 400_000, 512, 1000, 4, 1000, 9]
        subprocess.run([synthesize, path, *map(str, numbers)], check=True)
    begin, before = time.monotonic(), cpu_seconds()
    whole = kvmtrace.open(path).curve("lru", trust=True)
    figures = {"one pass": (time.monotonic() - begin, cpu_seconds() - before)}
    for executors in (1, 2):
        with session(work, executors) as spark, warnings.catch_warnings():
            warnings.simplefilter("ignore", kvmtrace.TraceWarning)
            for _ in range(repeat + 1):
                begin, before = time.monotonic(), cpu_seconds()
                mine = fleet.lru_curve(spark, path)
                new = (time.monotonic() - begin, cpu_seconds() - before)
                must(columns(mine) == columns(whole), "the curve of the long trace differs")
                name = f"{executors} executors"
                figures[name] = min(new, figures.get(name, new))
    say(f"\nthe LRU curve of one trace of {whole.references:,} references to {whole.footprint:,} pages:")
    for name, (seconds, cpu) in figures.items():
        say(f"{name:>12}: {seconds:6.2f} s, {cpu:6.2f} CPU seconds")
    return figures


def run(commands, work, count, repeat):
    hosts = make_traces(commands, work, count)
    bad = bad_traces(commands, work, count + 1)
    with session(work, 2) as spark:
        compare(commands, spark, work, hosts, bad)
        say(f"the figures of {len(hosts):,} traces are those of postproc")
        selections(commands, spark, work, some(hosts, min(60, len(hosts))))
        read_dataset(commands, spark, work, some(hosts, min(60, len(hosts))))
        one_trace(commands, spark, work)
    figures = cost(work, hosts, repeat)
    figures["one trace"] = cost_of_one(work, commands.synthesize, repeat)
    (work / "cost.json").write_text(json.dumps(figures, indent=1) + "\n")
    many = [(traces, ratio) for traces, ratio in figures["ratios"].items() if traces >= MANY]
    what = "{:,} traces, two executors, times one"
    return settle([Target(what.format(traces), "least", TWICE, ratio) for traces, ratio in many])


def main():
    if len(sys.argv) != 6:
        say(__doc__)
        return 2
    commands, work = Commands(*sys.argv[1:3]), pathlib.Path(sys.argv[3])
    count, repeat = map(int, sys.argv[4:])
    if count < 2 * len(RECORDED) or repeat < 1:
        say(f"error: TRACES must be {2 * len(RECORDED)} or more, and REPEAT 1 or more")
        return 2
    work.mkdir(parents=True, exist_ok=True)
    # Executors do not run in the folder of the package's sources.
    os.chdir(work)
    try:
        return run(commands, work, count, repeat)
    except Wrong as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
