"""Answers to questions, for people and for programs."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from winnow.commands.batch_file import Asked
from winnow.commands.formats import (
    written_bytes,
    written_seconds,
    written_share,
    written_slots,
    written_speed,
)
from winnow.composition.method import Method
from winnow.evaluate import Answer
from winnow.evaluate.slots import mean_slots, slot_range
from winnow.tasks import exact_match


@dataclass(frozen=True)
class AnswerResult:
    """A question with its answer under one method."""

    asked: Asked
    answer: Answer

    @property
    def right(self) -> bool | None:
        """True if the answer is the known one, or None where none is known."""
        return None if self.asked.answer is None else exact_match(self.answer.text, self.asked.answer)


def as_json(result: AnswerResult, model: str) -> str:
    """One line with everything that is known of an answer."""
    answer, stats = result.answer, result.answer.stats
    least, most = slot_range(stats)
    entry: dict[str, Any] = {
        "question": result.asked.question,
        "answer": answer.text,
        "expected": result.asked.answer,
        "right": result.right,
        "method": answer.method.name,
        "budget": str(answer.method.budget),
        "model": model,
        "question_seen_at_compression": answer.question_seen,
        "prompt_tokens": answer.prompt_tokens,
        "new_tokens": answer.new_tokens,
        "slots_mean": mean_slots(stats),
        "slots_min": least,
        "slots_max": most,
        "slots": stats.slots,
        "held_bytes": stats.held_bytes,
        "full_bytes": stats.full_bytes,
        "prefill_seconds": answer.prefill_seconds,
        "compress_seconds": answer.compress_seconds,
        "decode_seconds": answer.decode_seconds,
        "decode_tokens_per_second": answer.decode_speed,
    }
    return json.dumps(entry, ensure_ascii=False)


def print_answer(console: Console, result: AnswerResult, with_method: bool) -> None:
    """The answer as text, with a tick or a cross where the right one is known."""
    print_start(console, result.answer.method if with_method else None)
    print_text(console, result.answer.text)
    print_end(console, result)


def print_start(console: Console, method: Method | None) -> None:
    """The beginning of an answer's line, with the method if there is one to name."""
    label = "" if method is None else f"[dim]{escape(str(method))}:[/dim] "
    console.print(f"  {label}", end="", soft_wrap=True)


def print_text(console: Console, text: str) -> None:
    """An answer or a part of it, in the line that is begun."""
    console.print(text, end="", style="bold", markup=False, soft_wrap=True)


def print_end(console: Console, result: AnswerResult) -> None:
    """The end of an answer's line, with a tick or a cross where the right one is known."""
    nothing = "" if result.answer.text else "[dim](nothing)[/dim]"
    mark = {True: " [green]✓[/green]", False: " [red]✗[/red]", None: ""}[result.right]
    if result.right is False:
        mark += f" [dim](expected: {escape(str(result.asked.answer))})[/dim]"
    console.print(f"{nothing}{mark}", soft_wrap=True)


def costs_table(results: Sequence[AnswerResult]) -> Table:
    """Memory and time of every method; means where it answered several questions."""
    groups: defaultdict[Method, list[AnswerResult]] = defaultdict(list)
    for result in results:
        groups[result.answer.method].append(result)
    scored = any(result.right is not None for result in results)
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("method")
    if scored:
        table.add_column("right", justify="right")
    for name in ("slots per head", "cache held", "of full", "prefill", "compressing", "decode"):
        table.add_column(name, justify="right")
    for method, group in groups.items():
        right = [_right(group)] if scored else []
        table.add_row(escape(str(method)), *right, *_costs(group))
    return table


def _right(results: list[AnswerResult]) -> str:
    known = [result.right for result in results if result.right is not None]
    return f"{sum(known)}/{len(known)}"


def _costs(results: list[AnswerResult]) -> tuple[str, ...]:
    answers = [result.answer for result in results]
    count = len(answers)
    held, full = (sum(getattr(a.stats, kind) for a in answers) for kind in ("held_bytes", "full_bytes"))
    prefill, compress = sum(a.prefill_seconds for a in answers), sum(a.compress_seconds for a in answers)
    steps, seconds = sum(a.decode_steps for a in answers), sum(a.decode_seconds for a in answers)
    slots = (
        written_slots(answers[0].stats) if count == 1 else f"{sum(mean_slots(a.stats) for a in answers) / count:,.0f}"
    )
    return (
        slots,
        written_bytes(held / count),
        written_share(held, full),
        written_seconds(prefill / count),
        written_share(compress, prefill),
        written_speed(steps / seconds if steps and seconds else None),
    )
