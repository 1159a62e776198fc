"""Lines of `winnow eval`: what is to come, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from winnow.commands.console import messages, output
from winnow.commands.eval_table import as_records, print_table
from winnow.commands.eval_work import EvalWork
from winnow.commands.formats import written_bytes
from winnow.commands.model_names import model_name
from winnow.models import ModelSource
from winnow.runs.evaluation import Evaluation
from winnow.runs.full_row import Beside, beside_printed, published_row
from winnow.runs.room import Room
from winnow.runs.rows import Row
from winnow.runs.summary import summaries
from winnow.tasks.protocol import Protocol


def tell_work(work: EvalWork, evaluation: Evaluation, room: Room) -> None:
    """Lines on what is to come: cells, questions that go side by side, and memory that they take meanwhile."""
    known = f", {evaluation.done:,} of them known" if evaluation.done else ""
    index, shards = work.shard
    shard = f" of shard {index + 1}/{shards}" if shards > 1 else ""
    examples = sum(len(group.examples) for group in evaluation.groups)
    tasks = len({group.task for group in evaluation.groups})
    lines = [
        f"{len(evaluation.cells):,} results{shard}{known}: {_counted(examples, 'example')} of "
        f"{_counted(tasks, 'task')}, {_counted(len(work.methods), 'method')}. The longest prompt "
        f"has about {work.largest.tokens:,} tokens."
    ]
    read = sum(len(task.examples) for task in work.tasks)
    lines += repeats_lines(read, sum(len(group.examples) for group in evaluation.recipe.groups))
    if work.protocol.model_limits:
        lines.append(limit_line(work.protocol, work.source))
    lines += _on_memory(room, min(evaluation.recipe.batch, work.most_questions), work)
    for line in lines:
        messages().print(line, markup=False, soft_wrap=True)


def repeats_lines(read: int, left: int) -> list[str]:
    """A line on examples that have the same texts as others of their tasks, where any do. left: those that count."""
    repeats = read - left
    if not repeats:
        return []
    told = "repeats another and counts once with it" if repeats == 1 else "repeat others and count once with them"
    return [f"{repeats:,} of {_counted(read, 'example')} {told}."]


def _on_memory(room: Room, number: int, work: EvalWork) -> list[str]:
    """A line on how many questions go side by side; a second one where they want more memory than there is."""
    needed, most = room.needed(number), min(room.most, work.most_questions)
    which = f"Up to {number:,} questions about one context go side by side" if number > 1 else "Prompts go one by one"
    short = not work.options.batch and number < most and room.free is not None
    why = f" of the {written_bytes(room.free or 0)} that are free: more have no room" if short else ""
    lines = [f"{which}, which takes about {written_bytes(needed)}{why}."]
    if room.free is not None and needed > room.free:
        smaller = "a smaller --batch, or " if number > 1 else ""
        lines.append(f"Only {written_bytes(room.free)} are free: use {smaller}shorter --lengths.")
    return lines


def limit_line(rules: Protocol, source: ModelSource) -> str:
    """A line on where prompts are cut, which goes by a part of the model's name."""
    limit = rules.prompt_limit(source.name)
    if limit is not None:
        return f"{rules.name} cuts the prompts of this model at {limit:,} tokens."
    return (
        f"{rules.name} has no limit for a model of this name, so its prompts are as long as the model reads; there are "
        f"limits for {', '.join(name for name, most in rules.model_limits.items() if most is not None)}."
    )


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def tell_results(evaluation: Evaluation, work: EvalWork) -> None:
    """The table of a run, or its records where JSON is asked for."""
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
    _tell_zeros(console, evaluation.zeros)
    _compare_with_paper(console, evaluation.rows, work)
    console.print(f"\n{escape(str(options.folder))}  every answer; winnow report and winnow compare read it")


def _tell_zeros(console: Console, tasks: Sequence[str]) -> None:
    if tasks:
        console.print(
            f"The full cache scores 0 in all examples of {', '.join(tasks)}: no method can be told from another there. "
            "Look at the protocol (a chat template or none?), the model and the metric.",
            style="yellow",
            markup=False,
            soft_wrap=True,
        )


def _compare_with_paper(console: Console, rows: Sequence[Row], work: EvalWork) -> None:
    """Tells the tasks in which the full cache is far from the row that a paper prints for this model."""
    printed = published_row(work.protocol, work.source.name)
    # The paper's are of the protocol's test.
    if printed is None or work.options.split != "test":
        return
    found = beside_printed(rows, printed, generated=bool(work.benchmark.lengths))
    far = [each for each in found if each.apart]
    if found:
        console.print(_beside_line(found, far, work), style="yellow" if far else "dim", markup=False, soft_wrap=True)


def _beside_line(found: Sequence[Beside], far: Sequence[Beside], work: EvalWork) -> str:
    """A line on the full cache and the paper's, which names the tasks that are apart."""
    if not far:
        return f"The full cache is where the paper has it, in all of {len(found)} tasks ({work.protocol.source})."
    told = "; ".join(
        f"{each.task} has {each.found.mean:.1f} ({each.found.low:.1f}–{each.found.high:.1f}), the paper prints "
        f"{each.printed:.1f}"
        for each in far
    )
    return (
        f"The full cache lies outside of what chance explains in {len(far)} of {_counted(len(found), 'task')}: {told}. "
        "Texts, prompts or model may differ from the paper's; look before you compare with its tables."
    )
