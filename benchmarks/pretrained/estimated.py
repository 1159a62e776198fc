"""Head scores of a model, and the knobs of methods that follow them, as the studies on pretrained models estimate them.

Nothing is estimated again that the study's folder holds.
"""

from __future__ import annotations

import json

from evaluated import Study, run_command
from scope import COALITIONS, KINDS, KNOBS, NEEDLES, QUESTIONS, TUNING
from winnow.files import write_text
from winnow.models import open_model
from winnow.tasks.benchmark import Request
from winnow.tasks.registry import benchmark

Knobs = dict[str, int | float]
"""By method, the values that stand in braces in the methods of `scope.py`."""


def estimate(study: Study) -> Knobs:
    """Estimates HeadKV's and CoKV's scores; returns the knobs chosen for them."""
    _write_inputs(study)
    for kind in KINDS:
        needle_scores(study, kind)
    cokv = study.folder / "cokv.safetensors"
    if not cokv.exists():
        examples = str(study.folder / "questions.jsonl")
        run_command("heads", "cokv", "--model", study.model, "--examples", examples, *COALITIONS, "--out", str(cokv))
    return {method: _tuned(study, method) for method in (*(f"headkv-{kind}" for kind in KINDS), "cokv")}


def needle_scores(study: Study, kind: str) -> None:
    """Estimates HeadKV's scores by one kind of needle."""
    scores = study.folder / f"headkv-{kind}.safetensors"
    if not scores.exists():
        run_command("heads", "needle", "--kind", kind, "--model", study.model, *NEEDLES, "--out", str(scores))


def _tuned(study: Study, method: str) -> int | float:
    """The value of a method's knob, chosen on questions about documents of their own; α is a whole number."""
    chosen = study.folder / f"tuned-{method}.json"
    if not chosen.exists():
        scores, examples = str(study.folder / f"{method}.safetensors"), str(study.folder / "tuning.jsonl")
        given = ["--method", method, "--scores", scores, "--examples", examples]
        run_command("heads", "tune", "--model", study.model, *given, *KNOBS, "--out", str(chosen))
    value: int | float = json.loads(chosen.read_text())["value"]
    return value


def _write_inputs(study: Study) -> None:
    """Questions for CoKV and for the choice of knobs."""
    source = open_model(study.model)
    for file, (name, seed, count) in (("questions", QUESTIONS), ("tuning", TUNING)):
        (task,) = benchmark(name).load(Request(source.count_tokens, examples=count, seed=seed))
        asked = [
            {"context": each.context.strip(), "question": each.question, "answer": each.answers[0]}
            for each in task.examples
        ]
        write_text(study.folder / f"{file}.jsonl", "".join(f"{json.dumps(each)}\n" for each in asked))
