"""`winnow demo`: a small model answers questions about a document under many methods and budgets."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import transformers
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import winnow
from winnow.bundled import DOCUMENT_PATH, MODEL_PATH, QUESTIONS_PATH
from winnow.commands.answers import Result, costs_table, print_answer
from winnow.commands.batch_file import Asked
from winnow.commands.console import messages, output
from winnow.commands.demo_pictures import Subject, draw_kept, draw_scores
from winnow.commands.demo_tables import accuracy_table, cost_table
from winnow.commands.inputs import prepare_folder
from winnow.evaluate import Score, Trial, evaluate, grid, score_trials
from winnow.evaluate.answering import finish, read_with_question
from winnow.evaluate.prompts import encode_prompt
from winnow.kernels import backend
from winnow.models import load_model, open_model
from winnow.tasks import Question, read_questions

ANSWER_TOKENS = 24
BATCH = 24


@dataclass(frozen=True)
class Plan:
    """How much the demo does."""

    methods: tuple[str, ...]
    budgets: tuple[int, ...]
    questions: int | None
    """None for all there are."""


EVERYTHING = Plan(
    methods=(
        "full", "headkv-er", "headkv-r2", "cokv", "kvec", "aperturekv", "adakv", "ada-pyramidkv", "snapkv", "pyramidkv",
        "h2o", "tova", "streamingllm", "keydiff", "random",
    ),
    budgets=(16, 32, 64, 128, 256, 512, 1024),
    questions=None,
)  # fmt: skip
QUICK = Plan(methods=("full", "headkv-er", "adakv", "snapkv", "random"), budgets=(32, 128), questions=12)

SHOWN_METHOD = "headkv-er"
SHOWN_BUDGET = 256


def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the pictures and demo.json.")] = Path(
        "demo-output"
    ),
    quick: Annotated[bool, typer.Option("--quick", help="A few methods and questions, in seconds.")] = False,
) -> None:
    """See what eviction does: accuracy, memory and pictures, in about two minutes."""
    prepare_folder(out)
    console = output()
    plan = QUICK if quick else EVERYTHING
    document = DOCUMENT_PATH.read_text(encoding="utf-8")
    questions = _spread(read_questions(QUESTIONS_PATH), plan.questions)
    source = open_model(MODEL_PATH)
    with _one_thread():
        model = load_model(source, "cpu", "float32")
        subject = Subject(model, source.tokenizer, document, questions)
        console.print(f"[dim]{_protocol_line()}[/dim]\n")
        _show_one(console, subject)
        trials = _answer_all(subject, plan)
        scores = score_trials(trials)
        _print_scores(console, scores, len(questions))
        pictures = [draw_scores(out, subject, scores), draw_kept(out, subject, trials)]
    results = _write_results(out / "demo.json", subject, scores)
    console.print("\nWritten:")
    for path in (*pictures, results):
        console.print(f"  {escape(str(path))}", soft_wrap=True)


def _spread(questions: list[Question], count: int | None) -> list[Question]:
    """About so many questions, evenly from the whole list, so that every kind is among them."""
    step = 1 if count is None else max(1, len(questions) // count)
    return questions[::step]


def _protocol_line() -> str:
    versions = _versions()
    return (
        f"winnow {versions['winnow']} · torch {versions['torch']} · "
        f"transformers {versions['transformers']} · kernels: {versions['kernels']} · float32, one thread\n"
        "Greedy answers, exact match; the question and the first words of its answer are visible at compression; "
        "seed of random: 0."
    )


def _versions() -> dict[str, str]:
    return {
        "winnow": winnow.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "kernels": backend(),
    }


def _show_one(console: Console, subject: Subject) -> None:
    """One question in full: what is read, what is asked, what is answered and what is held."""
    question = subject.questions[0]
    prompt = encode_prompt(subject.tokenizer, subject.document, question.text)
    size = f"{len(subject.document.split()):,} words, a prompt of {prompt.shape[1]:,} tokens"
    console.print(f"[bold]Document[/bold]  {DOCUMENT_PATH.name}: {size}")
    console.print(f"          [dim]{escape(subject.document[:150])} …[/dim]", soft_wrap=True)
    console.print(f"[bold]Question[/bold]  {escape(question.text)}", soft_wrap=True)
    asked = Asked(subject.document, question.text, question.answer)
    results = []
    for method in (winnow.method("full"), winnow.method(SHOWN_METHOD, SHOWN_BUDGET)):
        prefilled = read_with_question(subject.model, method, prompt)
        results.append(Result(asked, finish(subject.model, subject.tokenizer, prefilled, ANSWER_TOKENS)))
        print_answer(console, results[-1], with_method=True)
    console.print()
    console.print(costs_table(results))


def _answer_all(subject: Subject, plan: Plan) -> list[Trial]:
    methods = grid(plan.methods, plan.budgets)
    columns = (
        TextColumn("Asking {task.fields[count]} questions under {task.fields[method]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    trials: list[Trial] = []
    with Progress(*columns, console=messages(), transient=True) as progress:
        total = len(subject.questions) * len(methods)
        bar = progress.add_task("", total=total, count=len(subject.questions), method=str(methods[0]))
        for trial in evaluate(*subject, methods, ANSWER_TOKENS, BATCH):
            trials.append(trial)
            progress.update(bar, advance=1, method=str(trial.method))
    return trials


def _print_scores(console: Console, scores: Sequence[Score], questions: int) -> None:
    console.print(
        f"\n[bold]Answered right[/bold], of {questions} questions, by slots kept per KV head; "
        "compressing: its share of the prefill"
    )
    console.print(accuracy_table(scores))
    console.print(
        "\n[bold]Cost[/bold] of a sequence; held: all that is allocated, room for 64 new tokens included; "
        f"decode: {min(BATCH, questions)} sequences together"
    )
    console.print(cost_table(scores))


def _write_results(path: Path, subject: Subject, scores: Sequence[Score]) -> Path:
    results: dict[str, Any] = {
        "protocol": {
            "model": "bundled",
            "document": DOCUMENT_PATH.name,
            "questions": len(subject.questions),
            "question_seen_at_compression": True,
            "decoding": f"greedy, {ANSWER_TOKENS} tokens at most, {BATCH} sequences together",
            "match": "exact",
            "seed": 0,
            "device": "cpu",
            "dtype": "float32",
            "threads": 1,
            "versions": _versions(),
        },
        "scores": [asdict(score) for score in scores],
    }
    path.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return path


@contextmanager
def _one_thread() -> Iterator[None]:
    """The model is so small that threads cost more than they bring, above all when the machine is busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
