"""Time of a token of answers that are written with candidates, looked up in prompt and answer, and without.

    python benchmarks/lookup.py MODEL                    # writes docs/results/lookup-VENDOR.*
    python benchmarks/lookup.py MODEL --weights int4 bfloat16

Answers to requests about this project's own texts and code, written by a pretrained model in both ways, which take
turns; medians of rounds. Prompts are read once.
"""

from __future__ import annotations

import argparse
import copy
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import geometric_mean, median

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import winnow
from reporting import RESULTS, machine, markdown_table, of_this_processor, write_results
from winnow.commands.model_names import model_name
from winnow.evaluate.decoding import decode, prefill, stop_tokens
from winnow.evaluate.lookup import PromptLookup
from winnow.models import load_model, open_model

ROOT = Path(__file__).resolve().parent.parent
METHOD = "adakv @ 25%"
MOST = 15
"""Candidates at a time, as the commands have it."""
CHARACTERS = 5000
"""The most of a text."""


@dataclass(frozen=True)
class Task:
    """A request about a file of this project, or about none."""

    name: str
    request: str
    file: str | None = None

    def text(self) -> str:
        """The whole request."""
        if self.file is None:
            return self.request
        text = (ROOT / self.file).read_text(encoding="utf-8")[:CHARACTERS]
        return f"Here is a file:\n\n```\n{text}\n```\n\n{self.request}"


CODE, PAGE = "src/winnow/evaluate/sampling.py", "docs/choosing.md"
TASKS = (
    Task("rename in code", "Rename every variable `token` to `symbol` in it, and give the whole file.", CODE),
    Task("leave out of code", "Remove all docstrings, and give the whole file.", CODE),
    Task("explain code", "Explain what it does, class by class.", CODE),
    Task("quote", "Quote five sentences of it, word for word.", PAGE),
    Task("list as JSON", "List all methods that it names as JSON objects with the keys name and advice.", PAGE),
    Task("answer", "Which method should I choose for a long document, and why? Answer in detail.", PAGE),
    Task("summarize", "Summarize it in ten sentences.", PAGE),
    Task("write a story", "Write a short story about a lighthouse keeper who learns to fly."),
    Task("write code", "Write a Python class for a priority queue with a heap, with docstrings and tests."),
)


@dataclass(frozen=True)
class Row:
    """Answers to one request."""

    weights: str
    task: str
    prompt: int
    """Tokens, as the answer's are."""
    tokens: int
    passes: int
    """Passes of the model for the answer with candidates."""
    alone: float
    """Milliseconds of a token without candidates."""
    tried: float
    same: int
    """Tokens of both answers that are the same before the first that is not."""

    @property
    def times(self) -> float:
        """Times as fast as without candidates."""
        return self.alone / self.tried


class Passes:
    """Counts the forward passes of a model."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.count = 0
        self._hook = model.register_forward_pre_hook(self._another)

    def _another(self, *_: object) -> None:
        self.count += 1

    def stop(self) -> int:
        """The number so far; no more are counted."""
        self._hook.remove()
        return self.count


def measure(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, weights: str, task: Task, count: int, rounds: int
) -> Row:
    """A task's answers in turns."""
    messages = [{"role": "user", "content": task.text()}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=False)
    read, stops = winnow.CompressedCache(model, METHOD), stop_tokens(model)
    logits = prefill(model, ids, read)
    answers: dict[int, list[int]] = {}
    times: dict[int, list[float]] = {0: [], MOST: []}
    passes = 0
    for number in range(2 * rounds):
        most = MOST * (number % 2)
        cache = copy.deepcopy(read)
        counted, begin = Passes(model), time.perf_counter()
        lookup = PromptLookup(ids[0].tolist(), most) if most else None
        answers[most] = list(decode(model, cache, logits, count, stops, lookup=lookup))
        times[most].append(1000 * (time.perf_counter() - begin) / len(answers[most]))
        passes = counted.stop()
    alike = [one == other for one, other in zip(answers[0], answers[MOST], strict=False)]
    same = alike.index(False) if False in alike else len(alike)
    alone, tried = median(times[0]), median(times[MOST])
    return Row(weights, task.name, ids.shape[1], len(answers[MOST]), passes, alone, tried, same)


def page(rows: list[Row], name: str, command: str) -> str:
    """The table, and how it came about."""
    head = ["weights", "request", "prompt", "answer", "same", "passes", "one by one", "with candidates", "as fast"]
    body = [
        [
            row.weights,
            row.task,
            f"{row.prompt:,}",
            str(row.tokens),
            str(row.same),
            str(row.passes),
            f"{row.alone:.1f} ms",
            f"{row.tried:.1f} ms",
            f"{row.times:.2f}x",
        ]
        for row in rows
    ]
    for weights in dict.fromkeys(row.weights for row in rows):
        mean = geometric_mean([row.times for row in rows if row.weights == weights])
        body.append([weights, "*all, geometric mean*", "", "", "", "", "", "", f"{mean:.2f}x"])
    return (
        f"# Candidates that are looked up\n\n`{command}`: answers of {name} over a cache of `{METHOD}`, a token at a "
        f"time by [graphs](../graphs.md), and with up to {MOST} [candidates](../command-line.md#candidates) a pass. "
        "Both took turns; medians, in milliseconds of a token. *Prompt* and *answer* are tokens, *same* those before "
        "the first in which both answers differ: products of several rows round otherwise, and another token that is "
        "as likely may be chosen. "
        f"{machine()}\n\n{markdown_table(head, body)}\n"
    )


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="directory, GGUF file or Hugging Face name of a model that follows instructions")
    parser.add_argument("--weights", nargs="+", default=["int4", "bfloat16"])
    parser.add_argument("--tokens", type=int, default=150, help="of an answer, at most")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    options = parser.parse_args()
    source, rows = open_model(options.model), []
    for weights in options.weights:
        kind = {"dtype": weights} if weights == "bfloat16" else {"weights": weights}
        model = load_model(source, "cpu", **kind)
        model.set_attn_implementation("winnow")
        for task in TASKS:
            rows.append(measure(model, source.tokenizer, weights, task, options.tokens, options.rounds))
            print(rows[-1], f"{rows[-1].times:.2f}x", flush=True)
    command = f"python benchmarks/lookup.py MODEL --weights {' '.join(options.weights)}"
    text = page(rows, model_name(source), command)
    print(text)
    write_results(options.out, of_this_processor("lookup"), text, [asdict(row) for row in rows])


if __name__ == "__main__":
    with torch.inference_mode():
        main()
