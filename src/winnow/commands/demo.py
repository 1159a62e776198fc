"""`winnow demo`: a small model answers questions about a document under many methods and budgets."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.markup import escape

from winnow.bundled import DOCUMENT_PATH, MODEL_PATH, QUESTIONS_PATH
from winnow.commands.answer_costs import costs_table
from winnow.commands.answers import AnswerResult, print_answer
from winnow.commands.batch_file import Asked
from winnow.commands.checks import prepare_folder
from winnow.commands.console import messages, output
from winnow.commands.demo_pictures import KEPT_PICTURE, SCORES_PICTURE, Subject, draw_kept, draw_scores
from winnow.commands.demo_tables import accuracy_table, cost_table
from winnow.commands.options.demo import DemoOptions
from winnow.commands.progress import progress_bar
from winnow.commands.whole_table import print_whole
from winnow.composition.names import method
from winnow.evaluate import Score, Trial, evaluate, grid, score_trials
from winnow.evaluate.answering import finish, read_with_question
from winnow.evaluate.prompts import encode_prompt
from winnow.files import write_text
from winnow.kernels import backend
from winnow.models import load_model, open_model
from winnow.report.style import MissingPackage, check_drawable
from winnow.tasks import Question, read_questions
from winnow.version import __version__

RESULTS = "demo.json"
MAX_NEW_TOKENS = 24
BATCH = 24


@dataclass(frozen=True)
class DemoSize:
    """The work that the demo does."""

    methods: tuple[str, ...]
    budgets: tuple[int, ...]
    questions: int | None
    """None for all there are."""


EVERYTHING = DemoSize(
    methods=(
        "full", "headkv-er", "headkv-r2", "cokv", "kvec", "aperturekv", "adakv", "ada-pyramidkv", "snapkv", "pyramidkv",
        "h2o", "tova", "streamingllm", "keydiff", "random",
    ),
    budgets=(16, 32, 64, 128, 256, 512, 1024),
    questions=None,
)  # fmt: skip
QUICK = DemoSize(methods=("full", "headkv-er", "adakv", "snapkv", "random"), budgets=(32, 128), questions=12)

SHOWN_METHOD = "headkv-er"
SHOWN_BUDGET = 256


def demo(options: DemoOptions) -> None:
    """Answers, measures and draws."""
    out = options.out
    prepare_folder(out, (SCORES_PICTURE, KEPT_PICTURE, RESULTS), options.force)
    drawable = _is_drawable()
    console = output()
    size = QUICK if options.quick else EVERYTHING
    document = DOCUMENT_PATH.read_text(encoding="utf-8")
    questions = _spread(read_questions(QUESTIONS_PATH), size.questions)
    source = open_model(MODEL_PATH)
    with _one_thread():
        model = load_model(source, "cpu", "float32")
        subject = Subject(model, source.tokenizer, document, questions)
        console.print(f"[dim]{_protocol_line()}[/dim]\n")
        _show_one(console, subject)
        trials = _answer_all(subject, size)
        scores = score_trials(trials)
        _print_scores(console, scores, len(questions))
        pictures = [draw_scores(out, subject, scores), draw_kept(out, subject, trials)] if drawable else []
    results = _write_results(out / RESULTS, subject, scores)
    console.print("\nWritten:")
    for path in (*pictures, results):
        console.print(f"  {escape(str(path))}", soft_wrap=True)


def _is_drawable() -> bool:
    """False, with a word before three minutes of work, where pictures are left out."""
    try:
        check_drawable()
    except MissingPackage as problem:
        messages().print(f"No pictures will be drawn. {problem}", markup=False, soft_wrap=True)
        return False
    return True


def _spread(questions: list[Question], count: int | None) -> list[Question]:
    """About so many questions, evenly from the whole list, so that every kind is among them."""
    step = 1 if count is None else max(1, len(questions) // count)
    return questions[::step]


def _protocol_line() -> str:
    versions = _versions()
    return (
        f"winnow {versions['winnow']} · torch {versions['torch']} · "
        f"transformers {versions['transformers']} · kernels: {versions['kernels']} · float32, one thread\n"
        "Greedy answers, exact match; the question and the first words of its answer are visible at compression.\n"
        "Seed of random: 0."
    )


def _versions() -> dict[str, str]:
    return {
        "winnow": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "kernels": backend(),
    }


def _show_one(console: Console, subject: Subject) -> None:
    """One question in full: the document, the question, the answers and the memory."""
    question = subject.questions[0]
    prompt = encode_prompt(subject.tokenizer, subject.document, question.text)
    size = f"{len(subject.document.split()):,} words, a prompt of {prompt.shape[1]:,} tokens"
    console.print(f"[bold]Document[/bold]  {DOCUMENT_PATH.name}: {size}")
    console.print(f"          [dim]{escape(subject.document[:150])} …[/dim]", soft_wrap=True)
    console.print(f"[bold]Question[/bold]  {escape(question.text)}", soft_wrap=True)
    asked = Asked(subject.document, question.text, question.expected)
    results = []
    for chosen in (method("full"), method(SHOWN_METHOD, SHOWN_BUDGET)):
        prefilled = read_with_question(subject.model, chosen, prompt)
        results.append(AnswerResult(asked, finish(subject.model, subject.tokenizer, prefilled, MAX_NEW_TOKENS)))
        print_answer(console, results[-1], with_method=True)
    console.print()
    print_whole(console, costs_table(results))


def _answer_all(subject: Subject, size: DemoSize) -> list[Trial]:
    methods = grid(size.methods, size.budgets)
    count = len(subject.questions)
    trials: list[Trial] = []
    with progress_bar(f"Asking {count} questions under {methods[0]}", count * len(methods)) as bar:
        for trial in evaluate(*subject, methods, MAX_NEW_TOKENS, BATCH):
            trials.append(trial)
            bar.advance()
            bar.show(f"Asking {count} questions under {trial.method}")
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
        "written_by": f"winnow {__version__}",
        "protocol": {
            "model": "bundled",
            "document": DOCUMENT_PATH.name,
            "questions": len(subject.questions),
            "question_seen_at_compression": True,
            "decoding": f"greedy, {MAX_NEW_TOKENS} tokens at most, {BATCH} sequences together",
            "match": "exact",
            "seed": 0,
            "device": "cpu",
            "dtype": "float32",
            "threads": 1,
            "versions": _versions(),
        },
        "scores": [asdict(score) for score in scores],
    }
    write_text(path, json.dumps(results, indent=2) + "\n")
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
