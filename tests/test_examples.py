"""The first things that a new user types: README's first command and the examples answer right, as printed."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from support.processes import environment
from winnow.cli import main
from winnow.commands.app import app

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
QUESTION, ANSWER = "What is the favorite fruit of Alice?", "is mango"

pytestmark = pytest.mark.usefixtures("one_thread")


def commands(page: Path) -> list[list[str]]:
    """The `winnow` commands of a page's shell blocks, as words."""
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.startswith("winnow ")]


def script(name: str, *arguments: str) -> str:
    """Lines that an example prints, run as its first lines say."""
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    run = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_the_first_command_of_the_readme_answers_right(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    first = commands(ROOT / "README.md")[0]
    assert QUESTION in first
    code = main([*first[1:], "--json"])
    printed = capsys.readouterr()
    assert (code, printed.err) == (0, "")
    assert json.loads(printed.out)["answer"] == ANSWER


@pytest.mark.parametrize("line", commands(ROOT / "docs" / "command-line.md"), ids=" ".join)
def test_commands_of_the_page_run_as_printed(capsys, monkeypatch, tmp_path, line):
    (tmp_path / "examples").symlink_to(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    code = main(line[1:])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    assert "Warning" not in printed.err
    assert printed.out
    written = [line[line.index(option) + 1] for option in ("--csv", "--picture") if option in line]
    assert all((tmp_path / name).stat().st_size > 1000 for name in written)


def test_the_page_tells_every_command_and_option_of_run():
    text = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    program = typer.main.get_command(app)
    groups = [program, program.commands["heads"]]
    names = {name for group in groups for name in group.commands} - {"heads"}
    assert [name for name in sorted(names) if not re.search(rf"`(winnow )?(heads )?{name}`", text)] == []
    own = set("--document --question --batch --compare --budgets --question-agnostic --fold --csv".split())
    own |= set("--picture --force --json --chunk --method --budget --model".split())
    known = {option for parameter in program.commands["run"].params for option in parameter.opts}
    assert own <= known
    assert [option for option in sorted(own) if option not in text] == []


def test_the_example_answers_right():
    answer, costs = script("question_answering.py").splitlines()
    assert answer.strip() == ANSWER
    held, full = map(int, re.fullmatch(r"(\d+) kB held instead of (\d+) kB", costs).groups())
    assert held < full / 4


def test_the_report_says_what_is_asked_and_comes_from_its_command(tmp_path):
    script("make_report.py", "--out", str(tmp_path))
    for name in ("report.txt", "questions.jsonl", "exam.jsonl"):
        assert (tmp_path / name).read_bytes() == (EXAMPLES / name).read_bytes()
    asked = [json.loads(line) for line in (EXAMPLES / "questions.jsonl").read_text(encoding="utf-8").splitlines()]
    assert asked[0] == {"question": QUESTION, "answer": ANSWER}
    assert "favorite fruit of Alice is mango." in (EXAMPLES / "report.txt").read_text(encoding="utf-8")


def test_the_town_comes_from_its_command(tmp_path):
    asked = script("make_town.py", "--out", str(tmp_path))
    assert (tmp_path / "town.txt").read_bytes() == (EXAMPLES / "town.txt").read_bytes()
    assert all(
        line.rsplit(" ", 1)[1] in (EXAMPLES / "town.txt").read_text(encoding="utf-8") for line in asked.splitlines()
    )
