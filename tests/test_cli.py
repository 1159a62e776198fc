"""The `winnow` program: its exit codes, what it imports, and how it ends when it is interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

import winnow
from support.asked import ASK_RUN, write_asked
from support.launcher import COMMANDS, launcher
from support.processes import environment, python
from winnow.cli import main

pytestmark = pytest.mark.usefixtures("one_thread")

PROGRAM = "from winnow.cli import program; program()"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A document to ask about."""
    folder = tmp_path_factory.mktemp("cli")
    write_asked(folder)
    return folder


def test_version_names_the_kernels(winnow_run):
    code, out, _ = winnow_run("--version")
    assert code == 0
    assert out.startswith(f"winnow {winnow.__version__} (kernels: ")


def test_the_package_runs_as_the_program():
    done = subprocess.run([sys.executable, "-m", "winnow", "--version"], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"winnow {winnow.__version__} (kernels: ")


def test_help(winnow_run):
    code, out, _ = winnow_run("run", "--help")
    assert code == 0
    assert "--question-agnostic" in out


def test_an_unknown_command_is_one_line_and_code_2(winnow_run):
    code, out, err = winnow_run("sing")
    assert (code, out) == (2, "")
    assert "'sing'" in err
    assert err.count("\n") == 1, err


@pytest.mark.parametrize(
    ("arguments", "usage"),
    [
        (("compress", "--document", "report.txt"), "winnow compress [OPTIONS] DOC; winnow compress --help"),
        (("run", "report.txt"), "winnow run [OPTIONS]; winnow run --help"),
        (("heads", "merge", "--oot", "x"), "winnow heads merge [OPTIONS]"),
    ],
)
def test_words_that_a_command_does_not_know_are_one_line_with_its_usage(winnow_run, arguments, usage):
    code, out, err = winnow_run(*arguments)
    assert (code, out) == (2, "")
    assert f". Usage: {usage}" in err
    assert err.count("\n") == 1, err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("export", "run"), "Missing option '--to'. Choose from: kvpress, lm-eval, csv, json\n"),
        (("run", "--truncate", "end"), "Invalid value for '--truncate': 'end' is not one of 'middle'.\n"),
        (("methods", "cokw"), "bits, cake, cokv, critical"),
    ],
)
def test_wrong_choices_are_one_line_that_names_each_choice_once(winnow_run, arguments, said):
    code, out, err = winnow_run(*arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1, err


@pytest.mark.parametrize(
    "problem",
    [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("can't allocate memory: 1 TB"), MemoryError()],
)
def test_running_out_of_memory_is_one_line(winnow_run, monkeypatch, problem):
    def read(*_):
        raise problem

    monkeypatch.setattr("winnow.commands.run_prefills.read_with_question", read)
    code, out, err = winnow_run(*ASK_RUN)
    assert (code, out) == (1, "")
    assert err.startswith("Out of memory")
    assert err.count("\n") == 1


@pytest.fixture
def broken(monkeypatch):
    """A command with an error that nobody thought of."""

    def build(*_):
        try:
            raise KeyError("first")
        except KeyError as first:
            raise RuntimeError("so it goes\nand on\x1b[2J") from first

    monkeypatch.setattr("winnow.commands.run.prepare", build)


ONE_LINE = (
    "Unexpected error, RuntimeError: so it goes (winnow --traceback COMMAND … shows where it came from; please report "
    "it).\n"
)


def test_an_unexpected_error_is_one_line(winnow_run, broken, caplog):
    assert winnow_run(*ASK_RUN) == (70, "", ONE_LINE)
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("winnow", "ERROR")
    assert record.exc_info[0] is RuntimeError


@pytest.mark.parametrize("how", ["option", "environment"])
def test_its_traceback_is_shown_where_that_is_asked_for(winnow_run, broken, monkeypatch, how):
    if how == "environment":
        monkeypatch.setenv("WINNOW_TRACEBACK", "1")
    code, out, err = winnow_run(*(["--traceback"] if how == "option" else []), *ASK_RUN)
    assert (code, out) == (70, "")
    assert err.startswith(ONE_LINE + "Traceback (most recent call last):\n")
    assert err.index("KeyError: 'first'") < err.index("direct cause") < err.index("in _run")
    assert err.endswith("RuntimeError: so it goes\nand on\x1b[2J\n")


def test_the_log_has_expected_errors_as_well(winnow_run, caplog):
    caplog.set_level("DEBUG", logger="winnow")
    code, _, err = winnow_run("run", "--budget", "none")
    assert code == 2
    (record,) = caplog.records
    assert (record.levelname, record.getMessage() + "\n") == ("DEBUG", err)
    assert record.exc_info[0].__name__ == "BudgetError"


def test_without_a_log_nothing_is_said_twice():
    code = (
        "import winnow.commands.run; from winnow.cli import program\n"
        "def build(*_):\n    raise RuntimeError('so it goes')\n"
        "winnow.commands.run.prepare = build\n"
        "program()"
    )
    process = launcher(COMMANDS).python(code, *ASK_RUN)
    assert (process.returncode, process.stderr) == (70, ONE_LINE)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("w" * 5000, f"No such command '{'w' * 99}…{'w' * 98}'.\n"),
        ("a\x1b[2Jb", "No such command 'a\\x1b[2Jb'.\n"),
        ("half\ud800", "No such command 'half\\ud800'.\n"),
        (":smile: [red]x[/red]", "No such command ':smile: [red]x[/red]'.\n"),
    ],
)
def test_messages_fit_on_a_screen_and_do_nothing_to_it(winnow_run, name, said):
    code, out, err = winnow_run(name)
    assert (code, out) == (2, "")
    assert err == said


def test_a_reader_that_goes_away_ends_the_program_quietly(folder):
    for arguments in (("methods",), ("methods", "--json"), ("--help",)):
        with subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments],
            env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            process.stdout.close()
            assert (process.wait(120), process.stderr.read()) == (1, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no such device")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_that_is_full_is_one_line(unbuffered):
    for arguments in (("methods",), ("methods", "adakv")):
        with open("/dev/full", "w") as full:
            process = subprocess.run(
                [sys.executable, "-c", PROGRAM, *arguments],
                env=environment(PYTHONUNBUFFERED=unbuffered), stdout=full, stderr=subprocess.PIPE, text=True,
                check=False,
            )  # fmt: skip
        assert process.returncode == 1
        assert process.stderr == "Cannot write to standard output: No space left on device.\n"


def test_another_disk_that_is_full_is_not_taken_for_the_output():
    """No pipe is ever full."""
    process = python(
        "from winnow.cli import program\n"
        "import winnow.commands.methods\n"
        "def failing(_): raise OSError(28, 'No space left on device')\n"
        "winnow.commands.methods.methods = failing\n"
        "program()\n",
        "--traceback",
        "methods",
    )
    assert process.returncode == 70
    assert process.stderr.startswith("Unexpected error, OSError: [Errno 28] No space left on device")
    assert "in failing" in process.stderr
    assert "standard output" not in process.stderr


PREPARED = (
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY", "GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS"
)  # fmt: skip
"""Variables that libraries read when torch is loaded."""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ["128", "128", "2000", None, "3"]),
        (dict.fromkeys(PREPARED, "7"), ["7", "7", "7", "7", "7"]),
        ({"OMP_WAIT_POLICY": "active"}, ["128", "128", None, "active", "3"]),
    ],
    ids=["nothing", "all", "policy"],
)
def test_torchs_libraries_are_told_what_a_process_wants(given, expected):
    """The variables stand before torch is there to read them; those that a user has set stay."""
    code = (
        "import json, os, sys, winnow.cli as cli, winnow.commands.container_threads as container\n"
        "container.container_threads = lambda: 3\n"
        f"found = lambda: [[os.environ.get(name) for name in {PREPARED}], 'torch' in sys.modules]\n"
        "cli.main = lambda: print(json.dumps(found())) or 0\n"
        "cli.program()\n"
    )
    told = {name: value for name, value in environment().items() if name not in PREPARED}
    done = subprocess.run([sys.executable, "-c", code], env=told | given, capture_output=True, text=True, timeout=120)
    assert done.stdout == f"{json.dumps([expected, False])}\n", done.stderr


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(SystemExit, match=r"pip install \"winnow-kv\[cli\]\""):
        main(["--help"])


LIGHT = [
    ("--help",),
    ("run", "--help"),
    ("heads", "--help"),
    ("heads", "cokv", "--help"),
    ("methods",),
    ("methods", "adakv"),
    ("methods", "--json"),
    ("run", "--no-such-option"),
]


def test_what_needs_no_model_imports_no_torch():
    code = f"""
import sys
from winnow.cli import main
for arguments in {LIGHT}:
    main(arguments)
    if heavy := {{'torch', 'transformers', 'numpy'}} & sys.modules.keys():
        sys.exit(f"{{arguments}} imports {{heavy}}")
"""
    process = python(code)
    assert process.returncode == 0, process.stderr


def start(folder, *arguments, **more):
    """The program in a process of its own, from the moment on in which it answers interrupts."""
    code = (
        "import sys; from winnow.cli import main; from winnow.commands.interrupts import end_at_once; end_at_once(); "
        "print('up', file=sys.stderr, flush=True); sys.exit(main())"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A test run in the background ignores interrupts, and its children would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr.readline() == "up\n"
    return process


def test_an_unknown_name_without_network(folder):
    status = launcher(COMMANDS).run(PROGRAM, [*ASK_RUN, "--model", "nobody/no-such-model"], folder)
    err = (folder / "err.txt").read_text()
    assert (status, (folder / "out.txt").read_text()) == (1, "")
    assert "nobody/no-such-model" in err
    assert err.count("\n") == 1, err


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_interrupting_keeps_what_was_finished(folder):
    lines = "\n".join(json.dumps({"question": f"What is the value of variable {number}?"}) for number in range(3000))
    (folder / "many.jsonl").write_text(lines, encoding="utf-8")
    (folder / "short.txt").write_text("The lemon is yellow.", encoding="utf-8")
    sent = False

    def interrupt(number):
        nonlocal sent
        if not sent and b"\n" in (folder / "out.txt").read_bytes():
            os.kill(number, signal.SIGINT)
            sent = True
        return False

    arguments = ["run", "--document", "short.txt", "--batch", "many.jsonl", "--json"]
    assert launcher(COMMANDS).run(PROGRAM, arguments, folder, interrupt) == 130
    out, err = ((folder / name).read_text() for name in ("out.txt", "err.txt"))
    answers = [json.loads(line) for line in out.splitlines()]
    assert [a["question"] for a in answers] == [f"What is the value of variable {n}?" for n in range(len(answers))]
    assert len(answers) < 3000
    assert err == "Interrupted.\n"


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize("seconds", [0, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0, 1.5])
def test_interrupting_imports_shows_no_traceback(folder, seconds):
    process = start(folder, *ASK_RUN)
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode in (0, 130)
    assert err == ("Interrupted.\n" if process.returncode else "")
