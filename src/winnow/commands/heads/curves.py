"""`winnow heads curves`: budget curves of a model and a scorer, from questions answered with the whole cache."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

import typer
from rich.markup import escape
from torch import Tensor
from transformers import PreTrainedModel

from winnow.allocate import Uniform
from winnow.bundled import is_bundled
from winnow.cache.attending import attending
from winnow.cache.fingerprint import ModelFingerprint
from winnow.commands.batch_file import read_batch
from winnow.commands.checks import check_apart, check_context, prepare_output
from winnow.commands.console import output
from winnow.commands.heads.prompts_file import is_prompts, read_prompts, refuse_beside_prompts
from winnow.commands.inputs import InputError
from winnow.commands.loading import load
from winnow.commands.model_names import dtype_name, model_name
from winnow.commands.options.heads.curves import LENGTH, MAX_NEW_TOKENS, QUESTIONS, CurvesOptions
from winnow.commands.progress import journal_path, progress_bar, resumable
from winnow.commands.prompt_options import style_of
from winnow.composition.names import method
from winnow.composition.objects import canonical_name
from winnow.estimate.asking import asked_tokens
from winnow.estimate.cokv.examples import generated_examples
from winnow.estimate.curves.run import Asked, CurvePlan, run_curves
from winnow.estimate.journal import Journal, fingerprint
from winnow.estimate.shape import TableShape, table_shape
from winnow.heads.curves import BudgetCurves
from winnow.heads.storage import SUFFIX
from winnow.models import ModelSource, open_model
from winnow.runs.parts import unsaid_of
from winnow.score import Scorer
from winnow.store import Dense
from winnow.tasks.benchmark import Request
from winnow.tasks.facts import FACTS

_APART = 1000
"""Seeds of generated texts begin there, so that no benchmark of a lower seed is made of them."""


def curves(options: CurvesOptions) -> None:
    """Profiles every question, writes their mean and prints how far heads differ."""
    check_apart(out=options.out, journal=options.journal)
    prepare_output(options.out, options.force, SUFFIX)
    # Any budget: only the scores count.
    scorer = method(options.method, "100%").scorer
    source = open_model(options.model)
    asked, benchmark = _asked(options, source)
    plan = CurvePlan(scorer, asked, options.max_new_tokens, style_of(options), options.across, benchmark)
    _check_lengths(source, plan)
    model = load(source, options)
    shape = table_shape(model)
    path = options.journal or journal_path(options.out)
    journal = Journal.open(path, _config(source, model, plan, shape))
    with attending(model):
        ratios = _run(model, source, plan, journal, shape)
    _write(options, source, plan, ratios)
    output().print(f"  {escape(str(path))}  every question, to resume from or to delete", soft_wrap=True)


def _run(model: PreTrainedModel, source: ModelSource, plan: CurvePlan, journal: Journal, shape: TableShape) -> Tensor:
    total = len(plan.asked)
    with (
        progress_bar("Measuring what slots are worth", total) as bar,
        resumable(journal.path, lambda: f"{len(journal.records())} of {total} questions"),
    ):

        def done(known: bool) -> None:
            (bar.skip if known else bar.advance)(1)

        return run_curves(model, source.tokenizer, plan, journal, shape, done)


def _asked(options: CurvesOptions, source: ModelSource) -> tuple[tuple[Asked, ...], dict[str, str] | None]:
    """The questions of a file, or generated ones that the model reads; with the benchmark that a file is of."""
    path = options.examples
    if path is not None:
        _check_not_generated(options)
    if path is None or not is_prompts(path):
        return _questions(options, source), None
    refuse_beside_prompts(path, options, max_new_tokens=options.max_new_tokens != MAX_NEW_TOKENS)
    # Their contexts are ranked before anything behind them is read, whatever the protocol.
    found = read_prompts(path, source, seen=False)
    asked = tuple(Asked(each.document, each.question, each.put) for each in found.examples)
    return asked, found.origin.facts()


def _check_not_generated(options: CurvesOptions) -> None:
    for name, value in (("--questions", options.questions), ("--length", options.length)):
        if value is not None:
            raise typer.BadParameter(
                "it is for generated questions, but --examples has its own; leave one of them out.", param_hint=name
            )


def _questions(options: CurvesOptions, source: ModelSource) -> tuple[Asked, ...]:
    if options.examples is not None:
        found = tuple(Asked(each.document, each.question) for each in read_batch(options.examples, None))
        if not found:
            raise InputError(f"{options.examples} has no questions: write one JSON object per line.")
        return found
    count, length = options.questions or QUESTIONS, options.length or LENGTH
    if is_bundled(options.model):
        if options.seed:
            raise typer.BadParameter(
                "the bundled model has fixed questions; leave --seed out, or use another model.", param_hint="--seed"
            )
        return tuple(Asked(each.document, each.question) for each in generated_examples(count, length))
    request = Request(source.count_tokens, examples=count, lengths=(length,), seed=_APART + options.seed)
    (task,) = FACTS.load(request)
    return tuple(Asked(example.context.rstrip(), example.question) for example in task.examples)


def _check_lengths(source: ModelSource, plan: CurvePlan) -> None:
    """Tokens of every prompt, looked at before any weight is read."""
    for number, (context, question, put) in enumerate(plan.asked, start=1):
        length = asked_tokens(source.tokenizer, context, question, plan.style, put).shape[1]
        most = plan.max_new_tokens if put is None else put.judging.max_new_tokens
        check_context(source, length, f"The prompt of question {number}", most, f"an answer of {most:,}")


def _config(source: ModelSource, model: PreTrainedModel, plan: CurvePlan, shape: TableShape) -> dict[str, Any]:
    """Everything that a profile depends on."""
    return {
        "task": "curves",
        "model": model_name(source),
        "weights": ModelFingerprint.of(model).weights,
        "dtype": dtype_name(model),
        "layers": shape.layers,
        "heads": shape.heads,
        **_settings(plan),
    }


def _settings(plan: CurvePlan) -> dict[str, Any]:
    # Journals of scorers that their names say all of stay as they were.
    unsaid = list(unsaid_of(plan.scorer))
    return {
        "scorer": _named(plan.scorer),
        **({"parts": unsaid} if unsaid else {}),
        "questions": len(plan.asked),
        "questions_hash": fingerprint([[part for part in each if part is not None] for each in plan.asked]),
        **({"max_new_tokens": plan.max_new_tokens} if plan.benchmark is None else {"benchmark": plan.benchmark}),
        "style": fingerprint(plan.style.facts()),
        "across": plan.across,
    }


def _named(scorer: Scorer) -> str:
    return canonical_name(scorer, Uniform(), Dense())


def _write(options: CurvesOptions, source: ModelSource, plan: CurvePlan, ratios: Tensor) -> None:
    table = BudgetCurves(
        ratios,
        scorer=_named(plan.scorer),
        model=model_name(source),
        samples=len(plan.asked),
        date=date.today().isoformat(),
        license=options.license or ("Apache-2.0" if is_bundled(source.name) else ""),
        notes=options.notes,
        settings=json.dumps(_settings(plan)),
    )
    table.save(options.out)
    console = output()
    layers, heads = table.shape
    console.print(
        f"  {escape(str(options.out))}  {_named(plan.scorer)}, {layers} layers of {heads} KV heads, "
        f"{len(plan.asked)} questions",
        soft_wrap=True,
    )
    for gone in (50, 80, 95):
        kept = 100 * (1 - table.ratios[gone - 1])
        console.print(
            f"  where {100 - gone}% stay, heads keep {float(kept.min()):.1f}% to {float(kept.max()):.1f}%",
            soft_wrap=True,
        )
