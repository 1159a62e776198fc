"""Everybody who reads a journal, on work so small that the journal is all there is to do."""

from __future__ import annotations

import contextlib
import io
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from support.items import PLAN, play
from support.needles import BUNDLED, small_plan
from winnow import Method, method
from winnow.cli import main
from winnow.estimate.cokv.ledger import Ledger
from winnow.estimate.cokv.run import run_sampled
from winnow.estimate.cokv.settings import StopRule
from winnow.estimate.errors import JournalError
from winnow.estimate.executors.base import Item
from winnow.estimate.executors.local import LocalExecutor
from winnow.estimate.journal import Journal
from winnow.estimate.needle import run as needle_run
from winnow.estimate.needle.run import mean_scores, run_needles
from winnow.estimate.needle.settings import NeedleKind
from winnow.estimate.tune import answering
from winnow.estimate.tune.answering import Answering, Setting
from winnow.estimate.tune.questions import QuestionSplit
from winnow.heads import HeadScores
from winnow.models import load_model
from winnow.tasks import generate_document

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


class JournalUser(ABC):
    """A command or benchmark with its journal."""

    @abstractmethod
    def result(self, journal: Path) -> object:
        """All results, with what the journal lacks worked out again. Raises JournalError where it is refused."""


class Coalitions(JournalUser):
    """Sliced Shapley values of an additive game."""

    def result(self, journal: Path) -> object:
        ledger = Ledger.journaled(Journal.open(journal, PLAN.config()), PLAN, 4)
        found = run_sampled(PLAN, StopRule(64), LocalExecutor(play), ledger)
        return found.values.tolist(), found.errors.tolist()


class Shards(JournalUser):
    """The same merged by the command, from this journal and that of another shard."""

    def __init__(self) -> None:
        facts = {"task": "cokv", "model": "m", "layers": 2, "heads": 4, "examples": 4, "window": 8}
        self.config = {**facts, **PLAN.config()}

    def result(self, journal: Path) -> object:
        other, out = journal.with_name("other.jsonl"), journal.with_name("out.safetensors")
        for path, examples in ((other, (0, 2)), (journal, (1, 3))):
            if not path.exists():
                ledger = Ledger.journaled(Journal.open(path, self.config), PLAN, 4)
                for item in [Item(batch, example) for example in examples for batch in range(8)]:
                    ledger.add(next(iter(LocalExecutor(play).run([item]))))
        said: list[str] = []
        before = journal.read_bytes()
        code = _told(said, ["heads", "merge", str(journal), str(other), "--out", str(out), "--force"])
        assert journal.read_bytes() == before
        if code:
            raise JournalError("\n".join(said))
        # Shards that are not complete have fewer samples.
        found = HeadScores.load(out)
        return (found.values.tolist(), found.samples) if found.samples == 64 else None


class Needles(JournalUser):
    """Scores of the bundled model, its answers known."""

    def __init__(self) -> None:
        self._model = load_model(BUNDLED, "cpu", "float32")
        self._plan = small_plan(NeedleKind.R2, (0, 60), depths=2)
        self._known: dict[Any, Any] = {}
        self._real = needle_run.make_run

    def result(self, journal: Path) -> object:
        needle_run.make_run = self._run  # type: ignore[assignment]
        try:
            outcomes = list(run_needles(self._model, self._plan, Journal.open(journal, self._plan.config())))
        finally:
            needle_run.make_run = self._real
        # Those that the journal has come first, in its order.
        outcomes.sort(key=lambda outcome: self._plan.cells.index(outcome.cell))
        return mean_scores(self._plan, outcomes).values.tolist(), [outcome.text for outcome in outcomes]

    def _run(self, *arguments: Any) -> Any:
        cells = arguments[2].cells
        if cells[0] not in self._known:
            self._known[cells[0]] = self._real(*arguments)
        return replace(self._known[cells[0]], cell=cells[0])


class Tuning(JournalUser):
    """Answers that depend on the question and the method alone."""

    split = QuestionSplit(tuple(generate_document(seed, 200, 1) for seed in (1, 2)), (generate_document(3, 200, 1),))

    def __init__(self) -> None:
        self.methods = {Setting(value, "64"): method(f"cokv(alpha={value})", 64) for value in (1, 2, 3)}

    def result(self, journal: Path) -> object:
        real = answering.evaluate
        answering.evaluate = self._answers  # type: ignore[assignment]
        try:
            opened = Journal.open(journal, {"task": "tune"})
            asked = Answering(None, None, self.split, opened)  # type: ignore[arg-type]
            return [asked.tally(split, self.methods) for split in ("validation", "test")]
        finally:
            answering.evaluate = real

    def _answers(
        self, _: Any, __: Any, text: str, questions: Any, methods: Sequence[Method], *___: Any
    ) -> Iterator[Any]:
        for tried in methods:
            for number, question in enumerate(questions):
                right = (len(text) + len(question.text) + number + int(str(tried).count("2"))) % 3 == 0
                yield SimpleNamespace(method=tried, right=right)


class Study(JournalUser):
    """The study's journal, with findings that depend on the document and the method alone."""

    seeds = (5, 6, 7)

    def __init__(self) -> None:
        self.methods = [method("snapkv", budget) for budget in (16, 32)]

    def result(self, journal: Path) -> object:
        sys.path[:0] = [str(each) for each in (BENCHMARKS, BENCHMARKS / "study") if str(each) not in sys.path]
        from answers import Asked, answer_findings
        from journaled import DocumentJournal
        from kept import KEPT_FINDINGS

        tasks = {"answers": answer_findings(Asked(1024, 4, 24)), **KEPT_FINDINGS}
        opened = DocumentJournal(Journal.open(journal, {"tokens": 1024}), tasks, self.seeds)
        return [opened.over(task, task, self.seeds, self.methods, getattr(self, f"_{task}")) for task in tasks]

    def _answers(self, seed: int, methods: Sequence[Method]) -> Iterator[dict[str, Any]]:
        for each in methods:
            yield {"method": str(each), "answers": {"secret": [seed % 4, 4]}, "slots": seed + 0.25, "share": 0.5}

    def _kept(self, seed: int, methods: Sequence[Method]) -> Iterator[dict[str, Any]]:
        for each in methods:
            yield {"method": str(each), "coverage": seed / 8, "iou": 0.1, "facts": 0.2, "found": 1.0}

    def _layers(self, seed: int, methods: Sequence[Method]) -> Iterator[dict[str, Any]]:
        for each in methods:
            yield {"method": str(each), "facts": [seed / 8, 0.5, 0.25, 0.0]}


USERS: dict[str, type[JournalUser]] = {
    "coalitions": Coalitions,
    "shards": Shards,
    "needles": Needles,
    "tuning": Tuning,
    "study": Study,
}


def _told(said: list[str], arguments: list[str]) -> int:
    """The exit code of a command; what it says on stderr goes into the list."""
    with contextlib.redirect_stderr(io.StringIO()) as err, contextlib.redirect_stdout(io.StringIO()):
        code = main(arguments)
    said.append(err.getvalue())
    return code
