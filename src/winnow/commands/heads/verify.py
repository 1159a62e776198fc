"""`winnow heads verify`: a part of the estimation that a file of head scores comes from, done again."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.table import Table
from transformers import PreTrainedModel

from winnow.cache.layer_config import of_full_layers
from winnow.commands.console import messages, output
from winnow.commands.heads.needle_progress import prompts_bar
from winnow.commands.heads.verify_material import Request, needle_plan, validation_questions
from winnow.commands.inputs import InputError
from winnow.commands.loading import load, spec_of
from winnow.commands.model_names import model_name
from winnow.commands.options.heads.verify import VerifyOptions
from winnow.commands.progress import progress_bar, stage
from winnow.estimate.cokv.plan import Sampled
from winnow.estimate.cokv.recipe import CoalitionRecipe
from winnow.estimate.cokv.sampling import PlayerSplits
from winnow.estimate.cokv.settings import PAIRS, Terms
from winnow.estimate.errors import Inconsistent, NotVerifiable
from winnow.estimate.needle.effort import Effort
from winnow.estimate.shape import TableShape, table_shape
from winnow.estimate.verify.agreement import Agreement, Fresh, check_agreement
from winnow.estimate.verify.coalitions import Redrawn, expected_batches
from winnow.estimate.verify.needles import Rerun, choose, least_right, mean_and_error
from winnow.estimate.verify.settings import CokvSettings, NeedleSettings, settings_of
from winnow.heads import HeadScores, read_scores
from winnow.models import open_model

UNKNOWN = 2
INCONSISTENT = 3


def verify(options: VerifyOptions) -> None:
    """Estimates a part of the scores again, compares, and says in words and by the exit code if they agree."""
    if not 0 < options.share <= 1:
        raise typer.BadParameter(f"must be above 0 and at most 1, not {options.share:g}.", param_hint="--share")
    table = read_scores(options.file)
    try:
        agreement = _verify(table, options)
    except NotVerifiable as problem:
        messages().print(str(problem), style="yellow", soft_wrap=True, markup=False)
        raise typer.Exit(UNKNOWN) from None
    except Inconsistent as problem:
        _tell(f"{table}: Not consistent: {problem}", fits=False)
        raise typer.Exit(INCONSISTENT) from None
    _report(table, agreement)
    if agreement.failures:
        raise typer.Exit(INCONSISTENT)


def _verify(table: HeadScores, options: VerifyOptions) -> Agreement:
    # Before the model is opened: a table that does not say how it was made may be of any.
    settings = settings_of(table)
    request = Request(table, open_model(options.model), options)
    _check_model(request)
    return _again(request, settings) if isinstance(settings, NeedleSettings) else _redrawn(request, settings)


def _check_model(request: Request) -> None:
    told, given = (Path(name).name.lower() for name in (request.table.model, model_name(request.source)))
    if told and told != given:
        raise InputError(f"{request.table} holds scores of {request.table.model}, not of {given}: give its --model.")


def _again(request: Request, settings: NeedleSettings) -> Agreement:
    """Needle scores: some of the same runs."""
    table = request.table
    with stage("Cutting haystacks"):
        plan = needle_plan(request, settings)
    cells = choose(plan.cells, request.options.share, request.options.seed or 0)
    model = load(request.source, request.options)
    heads = _checked_shape(table, model).heads
    rerun, effort = Rerun(model, plan, cells, request.options.chunk_size), Effort.of(model)
    with prompts_bar("Needles again", rerun.places, effort) as bar:
        outcomes = list(rerun.outcomes(lambda place: bar.advance(place.tokens, effort(place.tokens))))
    right = sum(outcome.scores is not None for outcome in outcomes)
    told = f"{len(cells)} of {settings.runs} runs again, {right} right"
    output().print(f"{told}; of all runs the file counts {settings.right} as right.")
    if right < least_right(len(cells), settings.runs, settings.right):
        raise Inconsistent(f"{told}, where the file counts {settings.right} of {settings.runs} as right.")
    return check_agreement(table, mean_and_error(table, outcomes, heads), independent=False)


def _redrawn(request: Request, settings: CokvSettings) -> Agreement:
    """CoKV scores: other coalitions, answering the same questions."""
    _check_no_haystack(request.options)
    seed = settings.seed + 1 if request.options.seed is None else request.options.seed
    if seed == settings.seed:
        raise typer.BadParameter(
            f"{seed} is the seed of the file's own coalitions; give another one.", param_hint="--seed"
        )
    asked = validation_questions(request, settings)
    questions = tuple(each for number, each in enumerate(asked) if number not in settings.left_out)
    splits = PlayerSplits(settings.players, settings.sizes, seed)
    plan = Sampled(splits, splits.whole_cycles(PAIRS))
    batches = expected_batches(plan, request.options.share, settings.samples, settings.halves)
    model = load(request.source, request.options)
    players = _checked_shape(request.table, model)
    options = request.options
    tokens = options.max_new_tokens or settings.max_new_tokens
    terms = Terms(settings.window, tokens, options.chunk_size, settings.style, settings.metric)
    recipe = CoalitionRecipe(spec_of(request.source, options), players.heads, questions, terms, plan)
    redrawn = Redrawn(recipe.worker(model, request.source.tokenizer), plan, batches, len(questions), settings.halves)
    with progress_bar("Coalitions answering", redrawn.items) as bar:
        for _ in redrawn.evaluate():
            bar.advance()
    output().print(f"{batches * plan.pairs} new samples (seed {seed}); the file has {settings.samples}.")
    found = redrawn.fresh(settings.samples)
    shape = request.table.shape
    return check_agreement(
        request.table, Fresh(found.values.view(shape), found.errors.view(shape), found.freedom), independent=True
    )


def _check_no_haystack(options: VerifyOptions) -> None:
    for name, given in (("--haystack", options.haystack is not None), ("--repeat", options.repeat)):
        if given:
            raise typer.BadParameter(
                "it is for scores of winnow heads needle, and these are CoKV's; leave it out.", param_hint=name
            )


def _checked_shape(table: HeadScores, model: PreTrainedModel) -> TableShape:
    """The shape of a model's tables per KV head. Raises InputError where this table is of another model."""
    shape = table_shape(model)
    layers, kv = shape
    full = of_full_layers(model.config.get_text_config(decoder=True))
    heads = kv if table.heads == "kv" else full.num_attention_heads
    if table.shape != (layers, heads):
        raise InputError(
            f"{table} has {table.shape[0]} layers of {table.shape[1]} heads, the model {layers} of {heads}: give the "
            "scores of this model."
        )
    return shape


def _report(table: HeadScores, found: Agreement) -> None:
    console = output()
    shown = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("", "found", "expected of a true file"):
        shown.add_column(column)
    layer, head = found.place
    correlation, overlap, deviation, inside = found.correlation, found.overlap, found.deviation, found.inside
    shown.add_row("rank correlation", f"{correlation.found:.3f}", f"at least {correlation.limit:.3f}")
    shown.add_row("top 50% overlap", f"{100 * overlap.found:.0f}%", f"at least {100 * overlap.limit:.0f}%")
    shown.add_row(
        "largest deviation",
        f"{deviation.found:.1f} standard errors (layer {layer}, head {head})",
        f"at most {deviation.limit:.1f}",
    )
    least = f"at least {100 * inside.limit:.0f}%" if inside.limit else "about 95%, not judged: heads err together"
    shown.add_row("heads in their 95% interval", f"{100 * inside.found:.0f}%", least)
    console.print(shown)
    verdict = f"Not consistent: {', '.join(found.failures)}." if found.failures else "Consistent."
    _tell(f"{table}: {verdict}", fits=not found.failures)


def _tell(verdict: str, fits: bool) -> None:
    output().print(verdict, style=None if fits else "red", markup=False, soft_wrap=True)
