"""`winnow heads tune`: the knob of a method that follows head scores, chosen on validation questions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import typer
from transformers import PreTrainedModel

from winnow.bundled import is_bundled
from winnow.cache.fingerprint import ModelFingerprint
from winnow.cache.hybrid import heads_of
from winnow.commands.batch_file import read_answered
from winnow.commands.checks import check_apart, check_context, prepare_output
from winnow.commands.console import output
from winnow.commands.heads.prompts_file import PromptsFile, is_prompts, read_prompts, refuse_beside_prompts
from winnow.commands.heads.tune_report import draw, report
from winnow.commands.inputs import InputError
from winnow.commands.loading import load
from winnow.commands.model_names import dtype_name, model_name
from winnow.commands.options.heads.tune import BUDGETS, TuneOptions
from winnow.commands.progress import journal_path, progress_bar, resumable, stage
from winnow.commands.prompt_options import style_of
from winnow.composition.method import Method
from winnow.composition.names import NamedMethod
from winnow.composition.syntax import Value, format_call
from winnow.estimate.asking import asked_tokens
from winnow.estimate.journal import Journal
from winnow.estimate.tune.answering import Answering, AnswerProgress, Setting
from winnow.estimate.tune.choice import Verdict, best_point, curve
from winnow.estimate.tune.knobs import KNOBS, Knob, Number, Tunable
from winnow.estimate.tune.protocol import digest, tuning_record
from winnow.estimate.tune.questions import (
    PutDocument,
    QuestionSplit,
    count_documents,
    count_questions,
    divided,
    generated,
    pages_of,
    put_pages_of,
)
from winnow.estimate.tune.settings import DOCUMENTS, MAX_NEW_TOKENS, SHARE, SHARE_OF_VALIDATION
from winnow.files import write_text
from winnow.heads import HeadScores, read_scores
from winnow.heads.shipped import shipped_scores
from winnow.metrics import DEFAULT_METRIC, EXACT_MATCH, Metric, metric
from winnow.models import ModelSource, open_model
from winnow.report.style import check_drawable
from winnow.tasks.prompt_style import PromptStyle


@dataclass(frozen=True)
class TuningFiles:
    """The files to be written."""

    out: Path
    journal: Path
    picture: Path | None


@dataclass(frozen=True)
class TuningTask:
    """Everything that was asked for; nothing was answered yet."""

    method: Tunable
    scores: HeadScores
    given: bool
    """True if the user named the scores; else they are the model's own."""
    budgets: tuple[str, ...]
    split: QuestionSplit
    origin: str
    """The file of the questions, or "generated"."""
    seed: int
    max_new_tokens: int
    style: PromptStyle
    metric: Metric
    benchmark: dict[str, str] | None = None
    """The benchmark that the questions are of, with protocol and part, where they are put and judged as it does."""

    @property
    def knob(self) -> Knob:
        """The parameter that is tuned."""
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
        told: dict[str, Value] = {self.knob.parameter: value}
        if self.given:
            told["scores"] = str(self.scores.path)
        return format_call(str(self.method), told)

    def _method(self, value: Number, budget: str) -> Method:
        parameters: dict[str, Value] = {self.knob.parameter: value}
        if self.given:
            parameters["scores"] = self.scores
        return NamedMethod(str(self.method)).method(budget, parameters)


def tune(options: TuneOptions) -> None:
    """Answers the questions with every value, writes the choice and prints its worth."""
    check_apart(out=options.out, picture=options.picture, journal=options.journal)
    prepare_output(options.out, options.force, ".json")
    if options.picture is not None:
        check_drawable()
        prepare_output(options.picture, options.force, ".png")
    files = TuningFiles(options.out, options.journal or journal_path(options.out), options.picture)
    chosen = Tunable(options.method)
    tried = None if options.values is None else KNOBS[chosen].read(options.values)
    with stage("Reading the questions"):
        source = open_model(options.model)
        task = _task(source, chosen, options)
        _check_lengths(source, task)
    loaded = load(source, options)
    _tune(source, loaded, task, tried, files)


def _task(source: ModelSource, chosen: Tunable, options: TuneOptions) -> TuningTask:
    path = options.examples
    prompts = None if path is None or not is_prompts(path) else _prompts(source, path, options)
    return TuningTask(
        chosen,
        _scores(source, chosen, options.scores),
        options.scores is not None,
        _budgets(options.budgets),
        _split(source, options) if prompts is None else _split_prompts(prompts, options),
        "generated" if path is None else Path(path).name,
        options.seed,
        options.max_new_tokens if prompts is None else prompts.most_new_tokens,
        style_of(options),
        metric(options.metric),
        None if prompts is None else prompts.origin.facts(),
    )


def _prompts(source: ModelSource, path: str, options: TuneOptions) -> PromptsFile:
    other_length = options.max_new_tokens != MAX_NEW_TOKENS
    refuse_beside_prompts(path, options, metric=options.metric != DEFAULT_METRIC, max_new_tokens=other_length)
    return read_prompts(path, source)


def _split_prompts(prompts: PromptsFile, options: TuneOptions) -> QuestionSplit:
    # Of what is held out already, a small share would choose by next to nothing.
    usual = SHARE_OF_VALIDATION if prompts.origin.split == "validation" else SHARE
    read = zip(prompts.examples, prompts.documents, strict=True)
    pages = put_pages_of((*each[:3], each.put, document) for each, document in read if each.put is not None)
    share = usual if options.share is None else options.share
    return divided(pages, share, options.seed, options.documents)


def _tune(
    source: ModelSource, model: PreTrainedModel, task: TuningTask, tried: tuple[Number, ...] | None, files: TuningFiles
) -> None:
    heads = tuple(heads_of(model, model.config.get_text_config(decoder=True)))
    values = task.knob.values(sum(heads)) if tried is None else tried
    task.knob.check(values, sum(heads))
    methods = task.methods(values, heads, source.name)
    kept = Journal.open(files.journal, _config(source, model, task))
    answering = Answering(model, source.tokenizer, task.split, kept, task.max_new_tokens, task.style, task.metric)
    with _progress(kept, task, methods) as watch:
        points = curve(answering.tally("validation", methods, watch))
        chosen = best_point(points, task.knob.default)
        # The default is no candidate here: it only shows what choosing has gained on questions that did not choose.
        unseen = task.methods(tuple(dict.fromkeys([chosen.value, task.knob.default])), heads, source.name)
        tested = curve(answering.tally("test", unseen, watch))
    verdict = Verdict(tested[0], tested[-1])
    found = tuning_record(task.method, task.name(chosen.value), points, chosen, verdict, _protocol(source, model, task))
    write_text(files.out, json.dumps(found, indent=1) + "\n")
    if files.picture is not None:
        draw(files.picture, task.knob, points, chosen, str(task.method), model_name(source))
    report(output(), task.knob, points, chosen, verdict)
    _tell_files(source, task, chosen.value, files)


def _budgets(text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not found:
        raise typer.BadParameter(f"{text!r} has no budget; give some, as in {BUDGETS}.", param_hint="--budgets")
    return found


def _scores(source: ModelSource, method: Tunable, path: Path | None) -> HeadScores:
    found = shipped_scores(source.name, str(method)) if path is None else read_scores(path)
    if found is None:
        raise InputError(f"No {method} scores are shipped with {source.name}: give --scores FILE.")
    return found


def _split(source: ModelSource, options: TuneOptions) -> QuestionSplit:
    if options.examples is None:
        if not is_bundled(source.name):
            raise InputError("The generated questions are for the bundled model: give --examples for another model.")
        if options.share is not None:
            raise typer.BadParameter(
                "it divides the documents of --examples; give them, or leave --split out.", param_hint="--split"
            )
        return generated(DOCUMENTS if options.documents is None else options.documents, options.seed)
    pages = pages_of(read_answered(options.examples, options.metric))
    return divided(pages, SHARE if options.share is None else options.share, options.seed, options.documents)


def _check_lengths(source: ModelSource, task: TuningTask) -> None:
    """Before any weight is read."""
    for page in (*task.split.validation, *task.split.test):
        puts = page.puts if isinstance(page, PutDocument) else (None,) * len(page.questions)
        for question, put in zip(page.questions, puts, strict=True):
            tokens = asked_tokens(source.tokenizer, page.text, question.text, task.style, put).shape[1]
            check_context(source, tokens, f"The prompt of {question.text!r}")


def _config(source: ModelSource, model: PreTrainedModel, task: TuningTask) -> dict[str, Any]:
    """Everything that an answer depends on besides value and budget, so that more of these can be added later."""
    return {
        "task": "tune",
        "method": str(task.method),
        "model": model_name(source),
        "weights": ModelFingerprint.of(model).weights,
        "dtype": str(model.dtype),
        "scores": _digest(task.scores),
        "answer_tokens": task.max_new_tokens,
        **_judged(task),
        "examples": task.origin,
        "seed": task.seed,
        "documents": {name: len(pages) for name, pages in task.split._asdict().items()},
        **task.split.config(),
        **task.style.named_facts(),
    }


def _judged(task: TuningTask) -> dict[str, Any]:
    """The metric, where it is not the only one that files of earlier versions know; the benchmark that has its own."""
    if task.benchmark is not None:
        return {"benchmark": task.benchmark}
    return {} if task.metric == EXACT_MATCH else {"metric": task.metric.name}


def _digest(scores: HeadScores) -> str:
    # Both shipped scores and those of a file know where they were read from.
    assert scores.path is not None
    return digest(scores.path)


def _protocol(source: ModelSource, model: PreTrainedModel, task: TuningTask) -> dict[str, Any]:
    return {
        "model": model_name(source),
        "dtype": dtype_name(model),
        "scores": str(task.scores.path) if task.given else f"shipped with the model: {task.method}",
        "scores_sha256": _digest(task.scores),
        "examples": task.origin,
        "seed": task.seed,
        "documents": {name: count_documents(pages) for name, pages in task.split._asdict().items()},
        "questions": {name: count_questions(pages) for name, pages in task.split._asdict().items()},
        "answer_tokens": task.max_new_tokens,
        **task.style.named_facts(),
        **_judged(task),
        "date": date.today().isoformat(),
    }


@contextmanager
def _progress(journal: Journal, task: TuningTask, methods: Mapping[Setting, Method]) -> Iterator[AnswerProgress]:
    # At most two values are tested; when the default is chosen it is one, and the bar ends early.
    total = len(methods) * count_questions(task.split.validation)
    total += 2 * len(task.budgets) * count_questions(task.split.test)
    with (
        resumable(journal.path, lambda: f"Answers about {_documents(journal)}"),
        progress_bar(f"Answers ({task.method})", total) as bar,
    ):

        def watch(answers: int, known: bool) -> None:
            (bar.skip if known else bar.advance)(answers)

        yield watch


def _documents(journal: Journal) -> str:
    count = len(journal.records())
    return f"{count} document{'' if count == 1 else 's'}"


def _tell_files(source: ModelSource, task: TuningTask, value: Number, files: TuningFiles) -> None:
    console = output()
    console.print("Written:")
    console.print(f"  {files.out}  the choice with its curve", markup=False, soft_wrap=True)
    if files.picture is not None:
        console.print(f"  {files.picture}", markup=False, soft_wrap=True)
    console.print(f"  {files.journal}  every answer, to resume from or to delete", markup=False, soft_wrap=True)
    named = "" if is_bundled(source.name) else f" --model {_quoted(source.name)}"
    console.print(f"\nwinnow run --method {_quoted(task.name(value))}{named}", markup=False, soft_wrap=True)


def _quoted(text: str) -> str:
    """A text for a shell, between double quotes, because methods have single ones in them."""
    return '"' + re.sub(r'(["\\$`])', r"\\\1", text) + '"'
