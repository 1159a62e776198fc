"""Commands that are killed at any moment, once or several times, and repeated: their results are the same to the bit.

A moment is a number of bytes in the journal, or hundredths of a second of work where there is no journal.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from support.attack import seeds
from support.launcher import COMMANDS as MODULES
from support.launcher import Launcher, launcher, ticks
from winnow.bundled import HEADS_PATH
from winnow.estimate.journal import Journal
from winnow.runs.folder import ABOUT, read_run
from winnow.tasks import generate_document

KILLED = -9
WINNOW = "winnow.cli:main"


@dataclass(frozen=True)
class Command:
    """A command that writes into its folder."""

    arguments: str
    out: str
    journal: str | None
    call: str = WINNOW
    replaces: bool = True
    """True if results that are there need --force."""

    @property
    def code(self) -> str:
        module, _, function = self.call.partition(":")
        return f"import sys\nfrom {module} import {function}\nsys.exit({function}(sys.argv[1:]))"

    def result(self, folder: Path) -> object:
        """Its findings, without the day."""
        path = folder / self.out
        if path.name == ABOUT:
            return [timeless(asdict(row)) for row in read_run(folder).rows]
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as file:
                facts = json.loads(file.metadata()["winnow_head_scores"])
                return {**facts, "date": None}, file.get_tensor("scores").numpy().tobytes()
        if path.suffix == ".json":
            found = json.loads(path.read_text())
            found.get("protocol", {}).pop("date", None)
            return found
        return without_seconds(path.read_text())


def without_seconds(text: str) -> object:
    """Lines of JSON without what a clock measured."""
    lines = [json.loads(line) if line.startswith("{") else line for line in text.splitlines()]
    return [timeless(line) for line in lines]


VARYING = ("second", "_ms", "peak_process")
"""Parts of the names of what a process measures of itself."""


def timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: timeless(each) for name, each in value.items() if not any(part in name for part in VARYING)}
    return value


SCORES = str(HEADS_PATH / "headkv-er.safetensors")
ASKED = "--dtype float32 --device cpu"
COMMANDS = {
    "needle": Command(
        f"heads needle --kind er --lengths 0,80 --depths 2 --out s.safetensors {ASKED}",
        "s.safetensors",
        "s.journal.jsonl",
    ),
    "cokv": Command(
        f"heads cokv --questions 4 --samples 32 --batch 8 --keep-noise --out s.safetensors {ASKED}",
        "s.safetensors",
        "s.journal.jsonl",
    ),
    "tune": Command(
        f"heads tune --method cokv --documents 1 --values 1,3 --budgets 64 --out s.json {ASKED}",
        "s.json",
        "s.journal.jsonl",
    ),
    "study": Command("s.jsonl s.json", "s.json", "s.jsonl", "support.small_study:main"),
    "processes": Command(
        "heads cokv --questions 4 --samples 32 --batch 8 --keep-noise --out s.safetensors "
        f"--executor processes {ASKED}",
        "s.safetensors",
        "s.journal.jsonl",
    ),
    "eval": Command(
        f"eval facts --lengths 700 --examples 8 --methods snapkv --budgets 5%,20% --allow-zero --out . {ASKED}",
        ABOUT,
        "cells.jsonl",
        replaces=False,
    ),
    "verify": Command(f"heads verify {SCORES} --share 0.05 {ASKED}", "out.txt", None),
    "run": Command(f"run --batch questions.jsonl --method snapkv --budget 64 --json {ASKED}", "out.txt", None),
}
ORDER = ("needle", "cokv", "tune", "study", "run", "verify", "processes", "eval")


@dataclass(frozen=True)
class Whole:
    """An uninterrupted run."""

    result: object
    journal: int
    """Bytes in the end."""
    begin: int
    """Bytes of the first line."""
    ticks: int


@pytest.fixture(scope="module")
def commands() -> Launcher:
    return launcher(MODULES)


@pytest.fixture(scope="module")
def wholes(commands: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Whole]:
    known: dict[str, Whole] = {}

    def of(name: str) -> Whole:
        if name not in known:
            folder = tmp_path_factory.mktemp(name)
            known[name] = uninterrupted(commands, COMMANDS[name], folder)
        return known[name]

    return of


def uninterrupted(commands: Launcher, command: Command, folder: Path) -> Whole:
    write_questions(folder)
    worked = [0]

    def watch(number: int) -> bool:
        worked[0] = max(worked[0], ticks(number))
        return False

    assert commands.run(command.code, command.arguments.split(), folder, watch) == 0, (folder / "err.txt").read_text()
    content = (folder / command.journal).read_bytes() if command.journal else b""
    return Whole(command.result(folder), len(content), content.find(b"\n") + 1, worked[0])


def write_questions(folder: Path) -> None:
    page = generate_document(11, 160, 1)
    lines = [json.dumps({"context": page.text, "question": question.text}) for question in page.questions]
    (folder / "questions.jsonl").write_text("\n".join(lines))


@pytest.mark.parametrize("seed", seeds(1, 32))
def test_killed_and_repeated(commands: Launcher, wholes: Callable[[str], Whole], tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    command, whole = COMMANDS[ORDER[seed % len(ORDER)]], wholes(ORDER[seed % len(ORDER)])
    write_questions(tmp_path)
    times = rng.choice((1, 1, 2, 3))
    for moment in sorted(rng.random() for _ in range(times)):
        status = commands.run(
            command.code, arguments(command, tmp_path), tmp_path, at(command, whole, moment, tmp_path)
        )
        if status != KILLED:
            # It was faster than whoever watched it.
            assert status == 0, (tmp_path / "err.txt").read_text()
            break
        check_journal(command, tmp_path)
        assert not list(tmp_path.glob("*.part")), "only hidden files may be left"
    if status == KILLED:
        assert commands.run(command.code, arguments(command, tmp_path), tmp_path) == 0, (
            tmp_path / "err.txt"
        ).read_text()
    assert command.result(tmp_path) == whole.result


def arguments(command: Command, folder: Path) -> list[str]:
    """The command line; results that it left when it was killed are replaced."""
    there = (folder / command.out).exists() and command.call == WINNOW and command.journal and command.replaces
    return command.arguments.split() + (["--force"] if there else [])


def at(command: Command, whole: Whole, moment: float, folder: Path) -> Callable[[int], bool]:
    """The end of a process at a share of its journal, or of its work."""

    def enough_work(number: int) -> bool:
        return ticks(number) >= moment * whole.ticks

    def enough_written(_: int) -> bool:
        path = folder / str(command.journal)
        return path.exists() and path.stat().st_size >= whole.begin + moment * (whole.journal - whole.begin)

    return enough_work if command.journal is None else enough_written


def check_journal(command: Command, folder: Path) -> None:
    """Every line that the killed process had finished is there."""
    if command.journal and (folder / command.journal).exists() and (folder / command.journal).stat().st_size:
        content = (folder / command.journal).read_bytes()
        assert len(Journal.existing(folder / command.journal).records()) >= content.count(b"\n") - 2
