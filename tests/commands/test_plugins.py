"""Methods of one's own on a command line: from a file, and from an installed package."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.asked import ASK_RUN, write_asked
from support.own_parts import install
from support.processes import python

pytestmark = pytest.mark.usefixtures("names_of_this_test")

PLUGIN = """
from __future__ import annotations
from support.own_parts import ValueNorm
import winnow
winnow.register("valuenorm", ValueNorm)
"""


ODD = """
from __future__ import annotations
from dataclasses import dataclass, field
from support.own_parts import ValueNorm
from winnow.parameters import meaning
import winnow
@dataclass(frozen=True)
class Odd(ValueNorm):
    mark: str = field(default="[/dim][b]x", metadata=meaning("a word"))
winnow.register("odd", Odd)
"""


SPAWNED = """
import pickle, sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
import winnow
from winnow.commands.plugins import run_plugins
run_plugins([Path(sys.argv[1])])
made = winnow.method("odd @ 64")
print(pickle.loads(pickle.dumps(made)) == made)
with ProcessPoolExecutor(1, get_context("spawn")) as pool:
    print(pool.submit(repr, made.scorer).result().partition("(")[0])
"""


@pytest.fixture
def folder(tmp_path):
    write_asked(tmp_path)
    (tmp_path / "mine.py").write_text(PLUGIN)
    return tmp_path


def test_a_method_of_a_file_runs(winnow_run):
    code, out, err = winnow_run(
        *ASK_RUN, "--plugin", "mine.py", "--method", "valuenorm+ada", "--set", "sinks=2", "--budget", "24", "--json"
    )
    assert code == 0, err
    assert json.loads(out)["method"] == "valuenorm(sinks=2)+ada"
    code, out, _ = winnow_run(*ASK_RUN, "--plugin", "mine.py", "--compare", "valuenorm(sinks=1)", "--json")
    assert code == 0
    assert [json.loads(line)["method"] for line in out.splitlines()] == ["adakv", "valuenorm(sinks=1)"]


def test_it_is_compressed_and_asked_without_the_file(winnow_run):
    given = ("--plugin", "mine.py", "--method", "valuenorm", "--budget", "24")
    code, _, err = winnow_run("compress", "document.txt", "-o", "mine.safetensors", *given)
    assert code == 0, err
    code, out, err = winnow_run("ask", "mine.safetensors", "Who?", "--max-new-tokens", "2")
    assert (code, "valuenorm @ 24" in out) == (0, True), err


def test_defaults_are_no_markup(winnow_run, folder):
    (folder / "odd.py").write_text(ODD)
    for name in ((), ("odd",)):
        code, out, err = winnow_run("methods", "--plugin", "odd.py", *name)
        assert (code, "[/dim][b]x" in out) == (0, True), err


def test_other_processes_run_the_file_themselves(folder):
    """Spawned workers are sent the method, whose class no import finds."""
    (folder / "odd.py").write_text(ODD)
    found = python(SPAWNED, str(folder / "odd.py"), paths=(Path(__file__).parents[1],))
    assert found.returncode == 0, found.stderr
    assert found.stdout.split() == ["True", "Odd"]


def test_a_cluster_is_refused(winnow_run):
    code, _, err = winnow_run("eval", "facts", "--plugin", "mine.py", "--executor", "ray", "--out", "run")
    assert code == 2
    assert "--plugin" in err
    assert "Ray cluster" in err


def test_it_is_listed(winnow_run, folder):
    code, out, _ = winnow_run("methods", "--plugin", "mine.py", "valuenorm")
    assert code == 0
    assert "Keeps tokens with large values." in out
    assert "first tokens that are always kept" in out
    assert not (folder / "__pycache__").exists()
    code, out, _ = winnow_run("methods", "--plugin", "mine.py", "--json")
    names = [entry["name"] for entry in json.loads(out)]
    assert (names[0], names[-1]) == ("full", "valuenorm")


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("x = (", "mine.py, line 1: SyntaxError"),
        ("import winnow\n\nundefined", "mine.py, line 3: NameError: name 'undefined' is not defined"),
        ("def f():\n    import json\n    json.loads('{')\nf()", "mine.py, line 3: JSONDecodeError"),
        ("import winnow\nwinnow.register('snapkv', 3)", "mine.py, line 2: int is not a part of a method"),
        (PLUGIN.replace('"valuenorm"', '"snapkv"'), "mine.py, line 5: 'snapkv' is the name of a method or part"),
        ("import sys\nsys.exit(3)", "mine.py, line 2: SystemExit: 3"),
        (None, "there is no such file"),
    ],
)
def test_a_file_that_fails_is_one_line(winnow_run, folder, source, told):
    if source is None:
        (folder / "mine.py").unlink()
    else:
        (folder / "mine.py").write_text(source)
    code, out, err = winnow_run(*ASK_RUN, "--plugin", "mine.py", "--method", "valuenorm")
    assert (code, out) == (1, "")
    assert f"--plugin {told}" in err or f"--plugin mine.py: {told}" in err
    assert err.count("\n") == 1, err


def test_an_installed_package_is_listed_and_a_broken_one_is_named(winnow_run, tmp_path, monkeypatch):
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    install(site, "brings_listed", {"valuenorm": "brings_listed:ValueNorm"}, "from support.own_parts import ValueNorm")
    install(site, "broken_listed", {"broken": "broken_listed:Missing"}, "raise RuntimeError('for good')")
    code, out, err = winnow_run("methods")
    assert code == 0
    assert "valuenorm" in out
    assert err.count("\n") == 1
    assert "package broken_listed 1.2" in err
    assert "RuntimeError: for good" in err
    code, out, err = winnow_run(*ASK_RUN, "--method", "valuenorm", "--json")
    assert (code, json.loads(out)["method"]) == (0, "valuenorm"), err
    code, _, err = winnow_run(*ASK_RUN, "--method", "broken")
    assert code == 2
    assert "package broken_listed 1.2" in err


def test_listing_needs_no_torch_where_nobody_brings_methods():
    found = python(
        "import sys\nfrom winnow.cli import main\nassert main(['methods']) == 0\nassert 'torch' not in sys.modules"
    )
    assert found.returncode == 0, found.stderr
