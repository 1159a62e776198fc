"""`winnow eval`: a benchmark under methods and budgets, every result kept in a folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from transformers import PreTrainedModel

from winnow.commands.eval_about import about_of
from winnow.commands.eval_lines import tell_results, tell_work
from winnow.commands.eval_prompts import write_prompts
from winnow.commands.eval_time import tell_time
from winnow.commands.eval_work import EvalWork, prepare
from winnow.commands.executors import crew, workers_of_a_device
from winnow.commands.loading import load, spec_of
from winnow.commands.options.eval import EvalOptions
from winnow.commands.progress import progress_bar, resumable
from winnow.estimate.executors.base import Executor, Item
from winnow.estimate.executors.local import LocalExecutor
from winnow.estimate.journal import Journal
from winnow.evaluate.checking import check_modules
from winnow.files import make_folder, write_text
from winnow.runs.cells import CellSpace
from winnow.runs.evaluation import Evaluation
from winnow.runs.folder import ABOUT, going_on, rows_beside
from winnow.runs.room import room_for
from winnow.runs.rows import Row
from winnow.runs.worker import RunRecipe


def eval(options: EvalOptions) -> None:
    """Evaluates all cells that are missing, then prints a table of the run; or writes its prompts."""
    if options.write is not None:
        write_prompts(options.write, options)
        return
    folder = options.folder
    work = prepare(options)
    make_folder(folder)
    loaded = load(work.source, options)
    check_modules(loaded, work.methods)
    about = going_on(folder, about_of(work, loaded))
    limit = work.protocol.prompt_limit(work.source.name)
    space = CellSpace(about.model.fingerprint, work.protocol, options.fold, limit)
    journal = Journal.open(_journal_path(folder, work.shard), space.config())
    room = room_for(loaded, work.largest, workers_of_a_device(options, options.device))
    batch = options.batch or room.questions
    recipe = RunRecipe(spec_of(work.source, options), space, work.groups(batch), work.methods, batch)
    evaluation = Evaluation(recipe, journal, options.together, rows_beside(journal), work.shard)
    about = about.with_plan(evaluation.planned)
    # Behind the journal: a command that is refused there is none of this run's.
    _write_about(folder / ABOUT, json.dumps(asdict(about), indent=2) + "\n")
    tell_work(work, evaluation, room)
    if items := evaluation.missing():
        tell_time(work, evaluation.recipe, loaded, items)
        executor = _executor(work, loaded, evaluation.recipe)
        # Workers of their own load their own.
        del loaded
        _run(work, executor, evaluation, items, journal.path)
    tell_results(evaluation, work)


def _write_about(path: Path, text: str) -> None:
    """Only where it says something new: a finished run on a full disk still shows its table."""
    if not path.is_file() or path.read_bytes() != text.encode():
        write_text(path, text)


def _executor(work: EvalWork, loaded: PreTrainedModel, recipe: RunRecipe) -> Executor[list[Row]]:
    if work.options.executor == "local":
        return LocalExecutor(recipe.worker(loaded, work.source.tokenizer))
    return crew(work.options, recipe)


def _run(
    work: EvalWork, executor: Executor[list[Row]], evaluation: Evaluation, items: Sequence[Item], journal: Path
) -> None:
    cells = sum(evaluation.results(item) for item in items)
    total = sum(evaluation.work(item) for item in items)
    with (
        executor,
        resumable(journal, lambda: f"{evaluation.done:,} of {len(evaluation.cells):,} results"),
        progress_bar(f"{work.benchmark.name}, {work.protocol.name}", cells, work=total) as bar,
    ):
        evaluation.run(executor, items, lambda rows, part: bar.advance(len(rows), part), work.options.allow_zero)


def _journal_path(folder: Path, shard: tuple[int, int]) -> Path:
    index, count = shard
    return folder / ("cells.jsonl" if count == 1 else f"cells.{index + 1}-of-{count}.jsonl")
