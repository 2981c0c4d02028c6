"""Opening traces, and what is known of them at once."""

import os
import shutil
import subprocess
import sys
import warnings

import kvmtrace
import pytest
from conftest import trace_path


def test_header(postproc, path):
    trace = kvmtrace.open(path)
    info = postproc.json("info", path)
    assert trace.header == info["header"]
    assert trace.n == info["header"]["evms_size"]
    assert trace.page_size == 4096
    assert trace.complete == info["complete"]
    assert trace.about.status == info["status"]
    assert trace.about.windows == info["windows"]
    assert trace.header.release == info["header"]["release"]
    assert str(path) in repr(trace) and str(path) in trace._repr_html_()
    with pytest.raises(AttributeError, match="no_such_field"):
        trace.header.no_such_field


def test_windows(postproc):
    path = trace_path("windows")
    trace = kvmtrace.open(path)
    assert trace.windows == [w["number"] for w in postproc.json("info", path)["windows"]]
    assert len(trace.windows) > 1
    for number in trace.windows:
        window = trace.window(number)
        simulated = postproc.json(
            "simulate", path, "--window", number, "--policy", "lru", "--size", 50
        )
        assert window.simulate("lru", 50).references == simulated["references"]
    with pytest.raises(kvmtrace.TraceError, match="there is no window 99"):
        trace.window(99)


def test_pieces_are_the_trace(pieces):
    whole, trace = kvmtrace.open(trace_path("two-cpus")), kvmtrace.open(pieces)
    assert trace.path == str(pieces)
    assert trace.references().rows() == whole.references().rows()
    ours, theirs = trace.curve(), whole.curve()
    assert ours.rows() == theirs.rows() and ours.exact


def test_a_piece_missing(pieces, tmp_path):
    shutil.copytree(pieces, tmp_path / "pieces")
    first = sorted((tmp_path / "pieces").iterdir())[1]
    first.unlink()
    with pytest.raises(kvmtrace.TraceError, match="put all pieces into one directory"):
        kvmtrace.open(tmp_path / "pieces")


def messages(postproc, path):
    """What the command and the package say of a file that is no trace."""
    said = postproc.run("info", path, codes=(2,)).stderr.removeprefix("postproc: ").rstrip("\n")
    with pytest.raises(kvmtrace.TraceError) as raised:
        kvmtrace.open(path)
    assert str(raised.value) == said
    return said


def test_messages(postproc, tmp_path):
    assert "not a kVMTrace trace" in messages(postproc, __file__)
    messages(postproc, tmp_path / "nothing")
    messages(postproc, tmp_path)
    empty = tmp_path / "empty"
    empty.touch()
    messages(postproc, empty)
    raw = subprocess.run(["zstd", "-dc", trace_path("fifo")], capture_output=True, check=True).stdout
    short = tmp_path / "short"
    short.write_bytes(raw[:1000])
    assert "inside the trace header" in messages(postproc, short)
    broken = tmp_path / "broken"
    broken.write_bytes(raw[:100] + b"\xff" + raw[101:])
    assert "corrupt trace header" in messages(postproc, broken)


def test_a_trace_that_was_cut_short(postproc, tmp_path):
    raw = subprocess.run(["zstd", "-dc", trace_path("fifo")], capture_output=True, check=True).stdout
    cut = tmp_path / "cut"
    cut.write_bytes(raw[: len(raw) // 2])
    trace = kvmtrace.open(cut)
    assert not trace.complete and trace.about.status is None
    assert not trace.check()
    with pytest.warns(kvmtrace.TraceWarning, match="failed its checks") as warned:
        curve = trace.curve()
    # The line that has called, and not one above it.
    assert warned[0].filename == __file__
    assert not curve.good and curve.findings
    # Bounds follow from good traces alone.
    assert curve["lower"].null_count == len(curve)
    assert postproc.json("simulate", cut, "--curve")["good"] is False


def test_other_threads_run_meanwhile(tmp_path):
    """The trace comes from a pipe that another thread of the program fills: if opening held the lock
    of the interpreter, nobody would."""
    program = """if True:
        import os, sys, threading, kvmtrace
        pipe, source = sys.argv[1:]
        os.mkfifo(pipe)
        def fill():
            with open(source, "rb") as trace, open(pipe, "wb") as out:
                out.write(trace.read())
        thread = threading.Thread(target=fill)
        thread.start()
        print(kvmtrace.open(pipe).n)
        thread.join()
    """
    command = [sys.executable, "-P", "-c", program, tmp_path / "pipe", trace_path("fifo")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert int(done.stdout) == kvmtrace.open(trace_path("fifo")).n


def test_interrupt(tmp_path):
    """Ctrl-C ends a call into the native module, also one that waits for a pipe for ever."""
    program = """if True:
        import os, signal, sys, threading, kvmtrace
        pipe, source = sys.argv[1:]
        os.mkfifo(pipe)
        def fill():
            with open(source, "rb") as trace:
                raw = trace.read()
            out = os.open(pipe, os.O_WRONLY)
            os.write(out, raw)
            os.kill(os.getpid(), signal.SIGINT)
            # The pipe stays open.
            over.wait()
        over = threading.Event()
        threading.Thread(target=fill).start()
        try:
            kvmtrace.open(pipe)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        over.set()
    """
    raw = tmp_path / "raw"
    with open(raw, "wb") as out:
        subprocess.run(["zstd", "-dc", trace_path("fifo")], stdout=out, check=True)
    command = [sys.executable, "-P", "-c", program, tmp_path / "pipe", raw]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "interrupted" in done.stdout, done.stderr


def test_nothing_else_is_needed():
    """The package, and rows as Python's own objects, without any other package."""
    program = """if True:
        import sys
        class Nothing:
            def find_spec(self, name, *rest):
                if name.split(".")[0] in ("numpy", "pyarrow", "pandas", "polars", "matplotlib"):
                    raise ImportError(f"there is no {name}")
        sys.meta_path.insert(0, Nothing())
        import kvmtrace
        trace = kvmtrace.open(sys.argv[1])
        curve = trace.curve()
        print(len(trace.references().rows()), trace.check().good, curve.at(10).misses)
        curve._repr_html_(), trace.working_set()._repr_html_(), trace.events()._repr_html_()
        try:
            curve.plot()
        except ImportError as error:
            print(error)
    """
    path = trace_path("fifo")
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, path], capture_output=True, text=True, check=True
    )
    trace = kvmtrace.open(path)
    first, second = done.stdout.splitlines()
    assert first == f"{trace.curve().references} True {trace.curve().at(10).misses}"
    assert "numpy" in second or "kvmtrace[plot]" in second


def test_hostile_traces_are_errors_or_traces():
    """Nothing but the documented exceptions, and no panic."""
    folder = trace_path("x").parents[2] / "hostile"
    for path in folder.iterdir():
        try:
            trace = kvmtrace.open(path)
        except kvmtrace.TraceError:
            continue
        trace.check(frames=True)
        for ask in (
            lambda: trace.references().rows(10),
            lambda: trace.events().rows(10),
            lambda: trace.mappings(),
            lambda: trace.simulate("all", 10),
            lambda: trace.curve(["lru", "opt"]),
            lambda: trace.working_set(),
        ):
            try:
                with warnings.catch_warnings(action="ignore", category=kvmtrace.TraceWarning):
                    ask()
            except kvmtrace.TraceError as error:
                assert "defect" not in str(error)


def test_path_like():
    assert kvmtrace.open(os.fspath(trace_path("fifo"))).n == kvmtrace.open(trace_path("fifo")).n
    with pytest.raises(TypeError):
        kvmtrace.open(7)
