"""Answers to questions, for people and for programs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rich.console import Console
from rich.markup import escape

from winnow.commands.batch_file import Asked
from winnow.commands.formats import written_share
from winnow.composition.method import Method
from winnow.evaluate import Answer
from winnow.evaluate.process import peak_memory
from winnow.evaluate.slots import mean_slots, slot_range
from winnow.metrics import EXACT_MATCH, Metric, is_right


@dataclass(frozen=True)
class AnswerResult:
    """A question with its answer under one method."""

    asked: Asked
    answer: Answer
    prefill_shared: bool = False
    """True if the prompt was read once for several methods: its time is that of each."""
    metric: Metric = EXACT_MATCH

    @cached_property
    def score(self) -> float | None:
        """The worth of the answer by the metric, or None where no right one is known."""
        return None if self.asked.expected is None else self.metric.score(self.answer.text, self.asked.expected)

    @property
    def right(self) -> bool | None:
        """True if the answer is worth everything, or None where no right one is known."""
        return None if self.score is None else is_right(self.score)


def as_entry(result: AnswerResult, model: str) -> dict[str, Any]:
    """Everything that is known of an answer, by name, as JSON values."""
    answer, stats = result.answer, result.answer.stats
    least, most = slot_range(stats)
    return {
        "question": result.asked.question,
        "answer": answer.text,
        "expected": result.asked.expected and result.asked.expected.plain(),
        "right": result.right,
        "metric": result.metric.name,
        "score": result.score,
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
        "prefix_bytes": stats.prefix_bytes,
        "tail_bytes": stats.tail_bytes,
        "reserve_bytes": stats.reserve_bytes,
        "other_bytes": stats.other_bytes,
        "full_bytes": stats.full_bytes,
        "peak_process_bytes": peak_memory(),
        "prefill_seconds": answer.prefill_seconds,
        "prefill_shared": result.prefill_shared,
        "compress_seconds": answer.compress_seconds,
        "decode_seconds": answer.decode_seconds,
        "decode_tokens_per_second": answer.decode_speed,
    }


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
    """The end of an answer's line, with a tick, a cross or a share where the right one is known."""
    nothing = "" if result.answer.text else "[dim](nothing)[/dim]"
    console.print(f"{nothing}{_mark(result)}", soft_wrap=True)


def _mark(result: AnswerResult) -> str:
    expected, score = result.asked.expected, result.score
    if expected is None or score is None:
        return ""
    if is_right(score):
        return " [green]✓[/green]"
    worth = f"[yellow]{written_share(score, 1)}[/yellow]" if score else "[red]✗[/red]"
    return f" {worth} [dim](expected: {escape(' / '.join(expected.answers))})[/dim]"
