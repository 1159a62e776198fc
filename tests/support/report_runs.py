"""Folders of runs as `winnow eval` writes them, large enough for a report to have all its parts."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from support.runs import ABOUT, ROW
from winnow.estimate.journal import fingerprint, record_hash
from winnow.runs.folder import About, ModelFacts
from winnow.runs.rows import Row

STRENGTH = {"headkv-er": 1.0, "adakv": 0.8, "aperturekv": 0.75, "snapkv": 0.65, "h2o": 0.35, "streamingllm": 0.1}
"""Invented methods' worth, from which invented answers are drawn."""
SHARES = (2, 5, 10, 25)
METHODS = ("full", *(f"{name} @ {share}%" for name in STRENGTH for share in SHARES), "full+bits(8)")
CITIES = ("Lisbon", "Oslo", "Quito", "Hanoi", "Turin", "Perth")
SEEN = replace(
    ABOUT,
    model=ModelFacts("Qwen/Qwen2.5-Coder-0.5B-Instruct", "9c1f04ab77e2d310", "float32", template=True),
    protocol={
        "name": "ruler-kvpress",
        "summary": "the question is seen",
        "chat_template": True,
        "question_seen": True,
        "max_prompt_tokens": None,
        "full_rows": {},
    },
    request={"seed": 0, "examples": 12, "lengths": [1024, 2048], "texts": "5b1c"},
    measures={
        "niah_single_1": "contains_all",
        "niah_multikey_1": "contains_all",
        "vt": "contains_all",
        "qa_1": "token_f1",
    },
    environment={"processor": "Intel Xeon Platinum 8259CL", "threads": "2", "device": "cpu", "winnow": "0.1.0"},
    command="winnow eval ruler --model Qwen/Qwen2.5-Coder-0.5B-Instruct --methods all --budgets 2%,5%,10%,25%",
)

HIDDEN = replace(SEEN, protocol={**SEEN.protocol, "name": "ruler-agnostic", "question_seen": False})
TEXT = replace(
    SEEN, benchmark="text", measures={"continuation": "nll"}, protocol={"name": "fidelity", "question_seen": False}
)


def write_run(folder: Path, about: About, rows: Iterable[Row]) -> Path:
    """A folder with a run; returns it. Its journal is written in one go, which a journal itself does not do."""
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(asdict(about)), encoding="utf-8")
    header = {"winnow_journal": 2, "hash": fingerprint({}), "config": {}}
    plain = (json.loads(json.dumps(asdict(row))) for row in rows)
    lines = ({**row, "hash": record_hash(header, row)} for row in plain)
    (folder / "cells.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in (header, *lines)), encoding="utf-8")
    return folder


def ruler_rows(seen: bool = True, examples: int = 12, methods: Sequence[str] = METHODS) -> Iterator[Row]:
    """Rows of four tasks at two lengths, one of them at several depths."""
    for task in SEEN.measures:
        for length in (1024, 2048):
            for number in range(examples):
                facts = {"length": length} | ({"depth": 25 * (number % 5)} if task == "niah_single_1" else {})
                for method in methods:
                    yield _row(task, f"{length}-{number}", method, facts, 1.0 if seen else 0.6)


def text_rows(methods: Sequence[str] = METHODS, examples: int = 8) -> Iterator[Row]:
    """Rows of a task of continuations."""
    for method in methods:
        for number in range(examples):
            loss = 0.6 * _lost(method, 1.0)
            row = _row("continuation", str(number), method, {}, 1.0)
            wobble = random.Random(f"{method}{number}").uniform(0.8, 1.2)
            scores = {
                "nll": 2.1 + loss * wobble + 0.02 * number,
                "kl": 0.4 * loss * wobble,
                "agreement": 1 - loss * wobble / 2,
            }
            yield replace(row, benchmark="text", scores=scores, prediction="", answers=[], new_tokens=0)


def _row(task: str, example: str, method: str, facts: dict[str, object], reach: float) -> Row:
    length = int(str(facts.get("length", 1500)))
    share, right = _share(method), 1 - _lost(method, reach)
    drawn = random.Random(f"{task} {example}")
    gold, other = drawn.sample(CITIES, 2)
    hard = {"vt": 0.12, "qa_1": 0.2}.get(task, 0.02)
    difficulty = drawn.random() * (1 + hard) * (1 if "depth" not in facts else 1.1 - 0.001 * int(str(facts["depth"])))
    score = 1.0 if difficulty < right else (0.4 if task == "qa_1" and difficulty < right + 0.15 else 0.0)
    prediction = gold if score == 1 else f"{gold} or {other}" if score else other
    return replace(
        ROW,
        cell=hashlib.sha256(f"{task}/{example}/{method}/{reach}".encode()).hexdigest()[:16],
        task=task,
        example=example,
        content=f"{task}/{example}",
        context=f"{task}/{example}",
        method=method,
        scores={SEEN.measures.get(task, "nll"): score},
        prediction=f"The answer is {prediction}.",
        answers=[gold],
        facts=facts,
        prompt_tokens=length,
        held_bytes=int(12_288 * length * share) + 4096,
        full_bytes=12_288 * length,
        slots=length * (share if method != "full+bits(8)" else 1),
        prefill_seconds=length / 400 * (1 + 0.1 * drawn.random()),
        compress_seconds=0.0 if method == "full" else 0.02 * length / 1024,
        decode_steps=12,
        decode_seconds=12 * (0.02 + 0.03 * share) * (0.9 + 0.2 * drawn.random()),
        kept=[[length * step // 10 for step in range(layer, layer + 8)] for layer in range(4)],
        question=f"Which city does {example} name?",
    )


def _share(method: str) -> float:
    if method.startswith("full"):
        return 0.27 if "bits" in method else 1.0
    return int(method.partition(" @ ")[2].rstrip("%")) / 100


def _lost(method: str, reach: float) -> float:
    """Share of the examples that a method gets wrong."""
    if method.startswith("full"):
        return 0.03
    strength = reach * STRENGTH[method.partition(" @ ")[0]]
    return 1 - 0.97 * (1 - math.exp(-30 * strength * _share(method)))
