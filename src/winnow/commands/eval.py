"""`winnow eval`: a benchmark under methods and budgets, every result kept in a folder."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from transformers import PreTrainedModel

from winnow.cache.fingerprint import ModelFingerprint, written_dtype
from winnow.commands.console import messages, output
from winnow.commands.eval_table import as_records, print_table
from winnow.commands.eval_work import EvalWork, prepare
from winnow.commands.executors import crew
from winnow.commands.formats import written_bytes
from winnow.commands.model_names import model_name
from winnow.commands.options.eval import EvalOptions
from winnow.commands.progress import progress_bar, resumable, stage
from winnow.estimate.executors.base import Executor, Item
from winnow.estimate.executors.local import LocalExecutor
from winnow.estimate.journal import Journal, fingerprint
from winnow.estimate.shape import token_bytes
from winnow.evaluate.checking import check_modules
from winnow.evaluate.turns import templated
from winnow.files import make_folder, write_text
from winnow.models import available_memory, load_model
from winnow.runs.cells import CellSpace
from winnow.runs.environment import environment
from winnow.runs.evaluation import Evaluation
from winnow.runs.folder import ABOUT, VERSION, About, ModelFacts, going_on
from winnow.runs.full_row import beside_printed, published_row
from winnow.runs.rows import Row
from winnow.runs.summary import summaries
from winnow.runs.worker import RunRecipe


def eval(options: EvalOptions) -> None:
    """Evaluates all cells that are missing, then prints a table of the run."""
    work = prepare(options)
    make_folder(options.out)
    with stage("Loading the model"):
        loaded = load_model(work.source, options.device, options.dtype, options.device_map)
        check_modules(loaded, work.methods)
    about = going_on(options.out, _about(work, loaded))
    write_text(options.out / ABOUT, json.dumps(asdict(about), indent=2) + "\n")
    limit = work.protocol.prompt_limit(work.source.name)
    space = CellSpace(about.model.fingerprint, work.protocol, options.fold, limit)
    journal = Journal.open(_journal_path(options.out, work.shard), space.config())
    recipe = RunRecipe(work.source.name, options.device, options.dtype, space, work.groups, work.methods, options.batch)
    evaluation = Evaluation(recipe, journal)
    _tell(work, loaded, evaluation)
    if items := evaluation.missing(work.shard):
        executor = _executor(work, loaded, recipe)
        # Workers of their own load their own.
        del loaded
        _run(work, executor, evaluation, items, journal.path)
    _finish(evaluation, work)


def _executor(work: EvalWork, loaded: PreTrainedModel, recipe: RunRecipe) -> Executor[list[Row]]:
    if work.options.executor == "local":
        return LocalExecutor(recipe.worker(loaded, work.source.tokenizer))
    return crew(work.options, recipe)


def _run(
    work: EvalWork, executor: Executor[list[Row]], evaluation: Evaluation, items: Sequence[Item], journal: Path
) -> None:
    cells = sum(len(work.groups[item.example].examples) for item in items)
    total = sum(evaluation.work(item) for item in items)
    with (
        executor,
        resumable(journal, lambda: f"{evaluation.done:,} of {len(evaluation.cells):,} results"),
        progress_bar(f"{work.benchmark.name}, {work.protocol.name}", cells, work=total) as bar,
    ):
        evaluation.run(executor, items, lambda rows, part: bar.advance(len(rows), part), work.options.allow_zero)


def _tell(work: EvalWork, loaded: PreTrainedModel, evaluation: Evaluation) -> None:
    """Lines on what is to come: cells, and the memory that full caches take meanwhile."""
    longest = max(work.groups, key=lambda group: len(group.examples[0].context))
    tokens = len(work.source.tokenizer(longest.examples[0].context).input_ids)
    # Questions that are seen are prefilled each in a cache of its own.
    caches = len(longest.examples) if work.protocol.question_seen else 1
    held = caches * token_bytes(loaded) * tokens
    known = f", {evaluation.done:,} of them known" if evaluation.done else ""
    lines = [
        f"{len(evaluation.cells):,} results{known}: {sum(len(task.examples) for task in work.tasks):,} examples of "
        f"{len(work.tasks)} task{'s' if len(work.tasks) > 1 else ''}, {len(work.methods)} methods. The longest context "
        f"has about {tokens:,} tokens; while it is read, full caches take about {written_bytes(held)}."
    ]
    free = available_memory(loaded.device)
    if free is not None and held > free:
        lines.append(f"Only {written_bytes(free)} are free: use a smaller --batch, or shorter --lengths.")
    for line in lines:
        messages().print(line, markup=False, soft_wrap=True)


def _about(work: EvalWork, loaded: PreTrainedModel) -> About:
    found = ModelFingerprint.of(loaded)
    texts = [[task.name, [[e.context, e.question, e.answers] for e in task.examples]] for task in work.tasks]
    options = work.options
    return About(
        winnow_run=VERSION,
        model=ModelFacts(
            model_name(work.source),
            fingerprint([found.architecture, found.weights, found.dtype]),
            written_dtype(loaded.dtype),
            templated(work.source.tokenizer),
        ),
        benchmark=work.benchmark.name,
        protocol=json.loads(json.dumps(asdict(work.protocol))),
        request={
            "seed": options.seed,
            "examples": options.examples,
            "lengths": options.lengths,
            "tasks": options.tasks,
            "split": options.split,
            "fold": options.fold,
            "texts": fingerprint(texts),
        },
        measures={task.name: task.judging.metric for task in work.tasks},
        environment=environment(loaded.device),
        command=shlex.join(["winnow", *sys.argv[1:]]),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _journal_path(folder: Path, shard: tuple[int, int]) -> Path:
    index, count = shard
    return folder / ("cells.jsonl" if count == 1 else f"cells.{index + 1}-of-{count}.jsonl")


def _finish(evaluation: Evaluation, work: EvalWork) -> None:
    console, options = output(), work.options
    found = summaries(evaluation.rows)
    if options.as_json:
        print(json.dumps(as_records(found), indent=2))
        return
    console.print(
        f"{work.benchmark.name} · protocol {work.protocol.name} · {model_name(work.source)} · question seen at "
        f"compression: {'yes' if work.protocol.question_seen else 'no'}",
        style="dim",
        markup=False,
        soft_wrap=True,
    )
    print_table(console, found)
    _compare_with_paper(console, evaluation.rows, work)
    console.print(f"\n{escape(str(options.out))}  every answer; winnow report and winnow compare read it")


def _compare_with_paper(console: Console, rows: Sequence[Row], work: EvalWork) -> None:
    """Tells the tasks in which the full cache is far from the row that a paper prints for this model."""
    printed = published_row(work.protocol, work.source.name)
    if printed is None:
        return
    found = beside_printed(rows, printed)
    far = [each for each in found if each.apart]
    for each in far:
        console.print(
            f"{each.task}: the full cache has {each.found.mean:.1f} ({each.found.low:.1f}–{each.found.high:.1f}), the "
            f"paper prints {each.printed:.1f}. Texts, prompts or model differ from the paper's, so nothing here "
            "compares with its tables.",
            style="yellow",
            markup=False,
            soft_wrap=True,
        )
    if found and not far:
        console.print(
            f"The full cache is where the paper has it, in all of {len(found)} tasks ({work.protocol.source}).",
            style="dim",
            markup=False,
            soft_wrap=True,
        )
