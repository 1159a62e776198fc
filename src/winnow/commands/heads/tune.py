"""`winnow heads tune`: the knob of a method that follows head scores, chosen on validation questions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import PreTrainedModel

import winnow
from winnow import HeadScores, Method
from winnow.bundled import is_bundled
from winnow.cache.fingerprint import ModelFingerprint
from winnow.cache.hybrid import heads_of
from winnow.commands.batch_file import read_batch
from winnow.commands.console import messages, output
from winnow.commands.heads.tune_report import draw, report
from winnow.commands.inputs import InputError
from winnow.commands.model_names import model_name
from winnow.commands.options import (
    BUNDLED_MODEL,
    AnswerTokensOption,
    Device,
    DeviceOption,
    Dtype,
    DtypeOption,
    ModelOption,
)
from winnow.composition.syntax import Value
from winnow.estimate.journal import Journal
from winnow.estimate.tune.answering import Answering, AnswerProgress, Setting
from winnow.estimate.tune.choice import Verdict, best_point, curve
from winnow.estimate.tune.knobs import KNOBS, Knob, Number, Tunable
from winnow.estimate.tune.protocol import digest, tuning_record
from winnow.estimate.tune.questions import QuestionSplit, count_questions, divided, generated, pages_of
from winnow.estimate.tune.settings import DOCUMENTS, MAX_NEW_TOKENS, SHARE
from winnow.evaluate.prompts import encode_prompt
from winnow.heads import read_scores
from winnow.heads.shipped import shipped_scores
from winnow.models import ModelSource, load_model, open_model

BUDGETS = "32,64,128,256"


@dataclass(frozen=True)
class Target:
    """What is written, and where."""

    out: Path
    journal: Path
    picture: Path | None


@dataclass(frozen=True)
class Task:
    """Everything that was asked for; nothing was answered yet."""

    method: Tunable
    scores: HeadScores
    given: bool
    """Whether the user named the scores; else they are the model's own."""
    budgets: tuple[str, ...]
    split: QuestionSplit
    origin: str
    """Where the questions are from."""
    seed: int
    max_new_tokens: int

    @property
    def knob(self) -> Knob:
        """What is tuned."""
        return KNOBS[self.method]

    def methods(self, values: tuple[Number, ...], heads: tuple[int, ...], model: str) -> dict[Setting, Method]:
        """Every value at every budget. Raises MethodError or BudgetError where one cannot be.

        heads: KV heads of every compressed layer of the model.
        """
        found = {Setting(value, budget): self._method(value, budget) for value in values for budget in self.budgets}
        for chosen in found.values():
            chosen.for_model(model, heads)
        return found

    def name(self, value: Number) -> str:
        """The method with a value, as it is written for `winnow run`."""
        told = f"{self.knob.parameter}={value}" + (f", scores={self.scores.path}" if self.given else "")
        return f"{self.method}({told})"

    def _method(self, value: Number, budget: str) -> Method:
        parameters: dict[str, Value] = {self.knob.parameter: value}
        if self.given:
            parameters["scores"] = self.scores
        return winnow.method(str(self.method), budget, **parameters)


def tune(
    method: Annotated[Tunable, typer.Option(help="The method whose beta (HeadKV) or alpha (CoKV) is chosen.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The .json file to write.")],
    scores: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Head scores of the model.", show_default="those shipped with it"),
    ] = None,
    model: ModelOption = BUNDLED_MODEL,
    budgets: Annotated[
        str, typer.Option(metavar="N,N,…", help="Budgets over whose mean accuracy a value is chosen.")
    ] = BUDGETS,
    values: Annotated[
        str | None, typer.Option(metavar="X,X,…", help="Values to try.", show_default="those of the paper")
    ] = None,
    examples: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help='Questions: JSONL with "question", "answer" and "document" (a path) or "context" (a text).',
            show_default="generated ones, for the bundled model",
        ),
    ] = None,
    documents: Annotated[
        int | None,
        typer.Option(
            min=1, help="Generated documents to choose by, and as many to confirm; or of --examples, at most so many."
        ),
    ] = None,
    share: Annotated[
        float | None,
        typer.Option(
            "--split",
            help="Share of the documents of --examples to choose by; the others confirm.",
            show_default="0.15",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Divides the documents, or generates them.")] = 0,
    max_new_tokens: AnswerTokensOption = MAX_NEW_TOKENS,
    picture: Annotated[Path | None, typer.Option(metavar="PNG", help="Draw accuracy against values.")] = None,
    journal: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where answers are kept.", show_default="beside --out")
    ] = None,
    device: DeviceOption = Device.AUTO,
    dtype: DtypeOption = Dtype.AUTO,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
) -> None:
    """Choose beta or alpha on validation questions, and confirm the choice on questions about other documents.

    Answers are kept in a journal, document by document; the same command goes on where an interrupted one ended.
    """
    target = Target(out, journal or out.with_suffix(".journal.jsonl"), picture)
    _check_free(out, ".json", force)
    if picture is not None:
        _check_free(picture, ".png", force)
    tried = None if values is None else KNOBS[method].read(values)
    with messages().status("Reading the questions"):
        source = open_model(model)
        task = Task(
            method,
            _scores(source, method, scores),
            scores is not None,
            _budgets(budgets),
            _split(source, examples, documents, share, seed),
            "generated" if examples is None else Path(examples).name,
            seed,
            max_new_tokens,
        )
        _check_context(source, task)
    with messages().status("Loading the model"):
        loaded = load_model(source, device, dtype)
    _tune(source, loaded, task, tried, target)


def _tune(
    source: ModelSource, model: PreTrainedModel, task: Task, tried: tuple[Number, ...] | None, target: Target
) -> None:
    heads = tuple(heads_of(model, model.config.get_text_config(decoder=True)))
    values = task.knob.values(sum(heads)) if tried is None else tried
    task.knob.check(values, sum(heads))
    methods = task.methods(values, heads, source.name)
    kept = Journal.open(target.journal, _config(source, model, task))
    answering = Answering(model, source.tokenizer, kept, task.max_new_tokens)
    with _progress(kept, task, methods) as watch:
        points = curve(answering.tally("validation", task.split.validation, methods, watch))
        chosen = best_point(points, task.knob.default)
        # The default is no candidate here: it only shows what choosing has gained on questions that did not choose.
        unseen = task.methods(tuple(dict.fromkeys([chosen.value, task.knob.default])), heads, source.name)
        tested = curve(answering.tally("test", task.split.test, unseen, watch))
    verdict = Verdict(tested[0], tested[-1])
    found = tuning_record(task.method, task.name(chosen.value), points, chosen, verdict, _protocol(source, model, task))
    _write(target.out, found)
    if target.picture is not None:
        draw(target.picture, task.knob, points, chosen, str(task.method), model_name(source))
    report(output(), task.knob, points, chosen, verdict)
    _tell_files(source, task, chosen.value, target)


def _check_free(path: Path, suffix: str, force: bool) -> None:
    if path.suffix != suffix:
        raise InputError(f"{path} is not a name for a {suffix} file: call it {path.with_suffix(suffix).name}.")
    if path.is_dir():
        raise InputError(f"{path} is a directory; name a file in it.")
    if path.exists() and not force:
        raise InputError(f"{path} exists; give another name, or --force to replace it.")


def _budgets(text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not found:
        raise typer.BadParameter(f"{text!r} has no budget, as in {BUDGETS}.", param_hint="--budgets")
    return found


def _scores(source: ModelSource, method: Tunable, path: Path | None) -> HeadScores:
    found = shipped_scores(source.name, str(method)) if path is None else read_scores(path)
    if found is None:
        raise InputError(f"No {method} scores are shipped with {source.name}: give --scores FILE.")
    return found


def _split(
    source: ModelSource, path: str | None, documents: int | None, share: float | None, seed: int
) -> QuestionSplit:
    if path is None:
        if not is_bundled(source.name):
            raise InputError("The generated questions are for the bundled model: give --examples for another one.")
        if share is not None:
            raise typer.BadParameter("divides the documents of --examples.", param_hint="--split")
        return generated(DOCUMENTS if documents is None else documents, seed)
    asked = read_batch(path, None)
    missing = next((each for each in asked if each.answer is None), None)
    if missing is not None:
        raise InputError(f'{missing.origin}: no answer, so nothing tells whether a value is right; add "answer".')
    pages = pages_of((each.document, each.question, each.answer or "") for each in asked)
    return divided(pages, SHARE if share is None else share, seed, documents)


def _check_context(source: ModelSource, task: Task) -> None:
    if source.context is None:
        return
    for page in (*task.split.validation, *task.split.test):
        for question in page.questions:
            tokens = encode_prompt(source.tokenizer, page.text, question.text).shape[1]
            if tokens >= source.context:
                raise InputError(
                    f"The prompt of {question.text!r} has {tokens:,} tokens and needs room for an answer; the model "
                    f"reads {source.context:,} at most. Leave such documents out."
                )


def _config(source: ModelSource, model: PreTrainedModel, task: Task) -> dict[str, Any]:
    """What an answer depends on besides value and budget, so that more of these can be added later."""
    return {
        "task": "tune",
        "method": str(task.method),
        "model": model_name(source),
        "weights": ModelFingerprint.of(model).weights,
        "dtype": str(model.dtype),
        "scores": _digest(task.scores),
        "answer_tokens": task.max_new_tokens,
        "examples": task.origin,
        "seed": task.seed,
        "documents": {name: len(pages) for name, pages in task.split._asdict().items()},
        **task.split.config(),
    }


def _digest(scores: HeadScores) -> str:
    # Both shipped scores and those of a file know where they were read from.
    assert scores.path is not None
    return digest(scores.path)


def _protocol(source: ModelSource, model: PreTrainedModel, task: Task) -> dict[str, Any]:
    return {
        "model": model_name(source),
        "dtype": str(model.dtype).removeprefix("torch."),
        "scores": str(task.scores.path) if task.given else f"shipped with the model: {task.method}",
        "scores_sha256": _digest(task.scores),
        "examples": task.origin,
        "seed": task.seed,
        "documents": {name: len(pages) for name, pages in task.split._asdict().items()},
        "questions": {name: count_questions(pages) for name, pages in task.split._asdict().items()},
        "answer_tokens": task.max_new_tokens,
        "date": date.today().isoformat(),
    }


@contextmanager
def _progress(journal: Journal, task: Task, methods: Mapping[Setting, Method]) -> Iterator[AnswerProgress]:
    columns = (TextColumn("Answers ({task.fields[method]})"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # At most two values are tested; when the default is chosen it is one, and the bar ends early.
    total = len(methods) * count_questions(task.split.validation)
    total += 2 * len(task.budgets) * count_questions(task.split.test)
    try:
        with Progress(*columns, console=messages(), transient=True) as progress:
            bar = progress.add_task("", total=total, method=task.method)
            yield lambda more: progress.advance(bar, more)
    except KeyboardInterrupt:
        messages().print(
            f"Answers about {_documents(journal)} are kept in {journal.path}; the same command goes on from there.",
            markup=False,
            soft_wrap=True,
        )
        raise


def _documents(journal: Journal) -> str:
    count = len(journal.records())
    return f"{count} document{'' if count == 1 else 's'}"


def _write(path: Path, found: Mapping[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=1) + "\n")
    except OSError as problem:
        raise InputError(f"Cannot write {path}: {problem.strerror}.") from None


def _tell_files(source: ModelSource, task: Task, value: Number, target: Target) -> None:
    console = output()
    console.print("Written:")
    console.print(f"  {target.out}  the choice with its curve", markup=False, soft_wrap=True)
    if target.picture is not None:
        console.print(f"  {target.picture}", markup=False, soft_wrap=True)
    console.print(f"  {target.journal}  every answer, to resume from or to delete", markup=False, soft_wrap=True)
    named = "" if is_bundled(source.name) else f' --model "{source.name}"'
    console.print(f'\nwinnow run --method "{task.name(value)}"{named}', markup=False, soft_wrap=True)
