"""The package as such: types, documentation, notebooks."""

import importlib.metadata
import inspect
import pathlib
import re
import subprocess
import sys

import kvmtrace
import nbclient
import nbformat
import pytest
from kvmtrace import fleet
from conftest import TOP, trace_path

PACKAGE = pathlib.Path(kvmtrace.__file__).parent
NOTEBOOKS = sorted((TOP / "python/notebooks").glob("*.ipynb"))


def test_installed():
    assert (PACKAGE / "py.typed").exists()
    # Not the sources of the repository, which have no native module.
    assert TOP / "python" not in PACKAGE.parents
    assert importlib.metadata.version("kvmtrace") == kvmtrace.__version__
    assert importlib.metadata.requires("kvmtrace") is not None
    assert all("extra ==" in need for need in importlib.metadata.requires("kvmtrace"))


def test_types(tmp_path):
    command = [sys.executable, "-P", "-m"]
    config = ["--config-file", TOP / "python/pyproject.toml"]
    stubs = [*command, "mypy.stubtest", "kvmtrace._kvmtrace", "--mypy-config-file", config[1]]
    done = subprocess.run(stubs, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    done = subprocess.run(
        [*command, "mypy", *config, "--no-incremental", "-p", "kvmtrace"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wrong_use_is_a_type_error(tmp_path):
    """The types say what is right, to whoever looks."""
    program = tmp_path / "program.py"
    program.write_text(
        "import kvmtrace\n"
        "t = kvmtrace.open('x')\n"
        "reveal_type(t.curve('lru'))\n"
        "reveal_type(t.curve(['lru', 'opt']))\n"
        "t.references(pages='huge')\n"
    )
    command = [sys.executable, "-P", "-m", "mypy", "--strict", "--no-incremental", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert 'Revealed type is "kvmtrace._results.Curve"' in done.stdout
    assert re.search(r"dict\[.*str, kvmtrace._results.Curve\]", done.stdout), done.stdout
    assert 'program.py:5: error: Argument "pages"' in done.stdout


def public():
    for name in kvmtrace.__all__:
        thing = getattr(kvmtrace, name)
        yield name, thing
        if inspect.isclass(thing):
            for member, value in vars(thing).items():
                if not member.startswith("_") and (callable(value) or isinstance(value, property)):
                    yield f"{name}.{member}", value
    for name in fleet.__all__:
        if callable(getattr(fleet, name)):
            yield f"fleet.{name}", getattr(fleet, name)


@pytest.mark.parametrize("name, thing", [pytest.param(*p, id=p[0]) for p in public()])
def test_all_is_documented(name, thing):
    if name != "__version__":
        assert inspect.getdoc(thing), name


def test_all_of_fleet_is_documented():
    source, page = inspect.getsource(fleet), (TOP / "docs/fleet.md").read_text()
    for name in fleet.__all__:
        thing = getattr(fleet, name)
        if callable(thing):
            assert f"| `{name}(" in page, name
        else:
            assert re.search(rf"^#: .*\n(?:#: .*\n)*{name} = ", source, re.MULTILINE), name
    made = {name for name, thing in vars(fleet).items() if inspect.isfunction(thing)}
    own = {name for name in made if getattr(fleet, name).__module__ == fleet.__name__}
    assert {name for name in own if not name.startswith("_")} <= {*fleet.__all__}


def test_every_column_is_documented():
    trace = kvmtrace.open(trace_path("fifo"))
    for table, method in (
        (trace.references(), kvmtrace.Trace.references),
        (trace.freed(), kvmtrace.Trace.freed),
        (trace.mappings(), kvmtrace.Trace.mappings),
        (trace.processes(), kvmtrace.Trace.processes),
        (trace.simulate("lru", 1), kvmtrace.Simulation),
    ):
        text = inspect.getdoc(method)
        for column in table.column_names:
            assert re.search(rf"\b{column}\b", text), (method, column)


def test_policies(postproc):
    known = kvmtrace.policies()
    text = postproc.run("simulate", "--help").stdout
    for policy in known:
        assert re.search(rf"^ *- {re.escape(policy.name)}:", text, re.MULTILINE), policy
    assert [policy.name for policy in known if policy.curve] == ["lru", "opt"]


def test_there_are_notebooks():
    assert len(NOTEBOOKS) == 2


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path, monkeypatch):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    # The repository has no results: they would be old ones.
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert not cell.outputs and cell.execution_count is None
    # Each opens the trace that the variable names.
    monkeypatch.setenv("KVMTRACE_TRACE", str(trace_path("two-cpus")))
    # The kernel chooses how figures come into the notebook.
    monkeypatch.delenv("MPLBACKEND")
    client = nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3")
    client.execute()
    kinds = [
        kind
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        for kind in output.get("data", {})
    ]
    assert "text/html" in kinds and "image/png" in kinds
    errors = [o for c in notebook.cells for o in c.get("outputs", []) if o.output_type == "error"]
    assert not errors


def test_the_page():
    """Each program of docs/python.md runs."""
    text = (TOP / "docs/python.md").read_text()
    programs = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(programs) >= 3
    names = {}
    for program in programs:
        program = program.replace("run.vmt", str(trace_path("two-cpus")))
        exec(compile(program, "docs/python.md", "exec"), names)
    from matplotlib import pyplot

    pyplot.close("all")
