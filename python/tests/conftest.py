"""Traces of the kernel, and the command whose results are the right ones."""

import json
import os
import pathlib
import subprocess

import pytest

TOP = pathlib.Path(__file__).resolve().parents[2]
TRACES = TOP / "postproc/tests/fixtures/v1"
NAMES = sorted(path.name.removesuffix(".vmt.zst") for path in TRACES.glob("*.vmt.zst"))

# Figures are drawn without a screen, here and in notebooks.
os.environ["MPLBACKEND"] = "Agg"


def postproc_path():
    path = os.environ.get("KVMTRACE_POSTPROC")
    assert path, "KVMTRACE_POSTPROC must name the command postproc: scripts/python-test.sh does"
    return path


class Postproc:
    """Runs the command."""

    def run(self, *args, codes=(0,)):
        done = subprocess.run(
            [postproc_path(), *map(str, args)], capture_output=True, text=True, check=False
        )
        assert done.returncode in codes, (args, done.returncode, done.stderr)
        return done

    def json(self, *args, codes=(0, 1)):
        return json.loads(self.run(*args, "--json", codes=codes).stdout)

    def lines(self, *args, codes=(0, 1)):
        text = self.run(*args, "--json", codes=codes).stdout
        return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="session")
def postproc():
    return Postproc()


@pytest.fixture(params=NAMES)
def path(request):
    """The path of each trace."""
    return TRACES / f"{request.param}.vmt.zst"


def trace_path(name):
    return TRACES / f"{name}.vmt.zst"


@pytest.fixture(scope="session")
def pieces(postproc, tmp_path_factory):
    """A directory with the pieces of the trace two-cpus."""
    directory = tmp_path_factory.mktemp("pieces") / "pieces"
    postproc.run("split", trace_path("two-cpus"), "--by", "size=100KiB", "-o", directory)
    assert len(list(directory.iterdir())) > 2
    return directory


def paths():
    """The paths of all traces."""
    return sorted(map(str, TRACES.glob("*.vmt.zst")))


@pytest.fixture(scope="session")
def lines(postproc, tmp_path_factory):
    """A file with the summaries of all traces, as the command writes it."""
    out = tmp_path_factory.mktemp("summaries") / "all.ndjson"
    postproc.run("summary", *paths(), "--host", "h", "-o", out, codes=(0, 1))
    return out
