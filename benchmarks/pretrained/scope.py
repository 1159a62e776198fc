"""Scope of the study on pretrained models: the commands that it runs, and the methods that it compares."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from evaluated import REFERENCE, Part
from winnow.runs.rows import Row

EVICTIONS = (
    "snapkv",
    "adakv",
    "kvec",
    "aperturekv",
    "h2o",
    "expectedattention(epsilon=0.01)+ada",
    "keydiff",
    "snapkv+global",
)
KINDS = ("er", "r", "r2")
"""Needles by which heads are scored."""
_BY_NEEDLES = {
    kind: f"headkv-{kind}(scores={{folder}}/headkv-{kind}.safetensors, beta={{headkv-{kind}}})" for kind in KINDS
}
SCORED = (_BY_NEEDLES["er"], "cokv(scores={folder}/cokv.safetensors, alpha={cokv})")
"""Methods with head scores of the model, which the study estimates first, and the knobs that it chooses."""
OTHER_NEEDLES = (_BY_NEEDLES["r"], _BY_NEEDLES["r2"])
"""The same for other needles."""
STORES = (
    "full+bits(8)",
    "full+bits(k=8, v=4)",
    "full+kivi(4)",
    "full+bits(4)",
    "full+bits(4, rotate=false, center=false, smooth=false)",
)
COMBINED = ("adakv+kivi(4)",)

_OTHER_TASKS = ("snapkv", "adakv", "aperturekv", "kvec", "h2o", "keydiff")
_SEEN_RULER = (*_OTHER_TASKS, "snapkv+cake", *SCORED, *STORES, *COMBINED)
SEEN, UNSEEN = "question seen", "question not seen"


def _ruler(tokens: int, examples: int, protocol: str) -> tuple[str, ...]:
    """Six tasks of RULER."""
    tasks = "niah_multikey_1,niah_multivalue,vt,fwe,qa_1,qa_2"
    asked = ("--lengths", str(tokens), "--examples", str(examples), "--protocol", protocol)
    return ("ruler", "--tasks", tasks, *asked)


PARTS = (
    Part(
        "facts-seen",
        f"Facts in generated prose, {SEEN} at compression",
        ("facts", "--lengths", "1400", "--examples", "36", "--protocol", "plain"),
        (*EVICTIONS, *SCORED, *OTHER_NEEDLES, *STORES, *COMBINED),
        "2%,5%,10%,25%",
    ),
    Part(
        "facts-unseen",
        f"Facts in generated prose, {UNSEEN} at compression",
        ("facts", "--lengths", "1400", "--examples", "36", "--protocol", "plain-agnostic"),
        ("kvzip", *EVICTIONS, *SCORED, *STORES, *COMBINED),
        "10%,25%",
    ),
    Part(
        "ruler-2k",
        f"RULER, prompts of 2,048 tokens, {SEEN} at compression",
        _ruler(2048, 8, "ruler"),
        (*_SEEN_RULER, *OTHER_NEEDLES),
        "2%,5%,10%,25%",
    ),
    Part(
        "ruler-4k",
        f"RULER, prompts of 4,096 tokens, {SEEN} at compression",
        _ruler(4096, 4, "ruler"),
        _SEEN_RULER,
        "1%,2%,5%,10%",
    ),
    Part(
        "ruler-unseen",
        f"RULER, prompts of 2,048 tokens, {UNSEEN} at compression",
        _ruler(2048, 4, "ruler-kvpress"),
        ("kvzip", "expectedattention(epsilon=0.01)+ada", *_OTHER_TASKS, *SCORED, *STORES),
        "10%,25%,50%",
    ),
    Part(
        "niah",
        f"Needles in a haystack of 1,024 to 4,096 tokens, {SEEN} at compression",
        ("niah", "--tasks", "single,multi", "--lengths", "1024,2048,4096", "--examples", "5", "--protocol", "plain"),
        (*_OTHER_TASKS, *SCORED, *STORES),
        "1%,2%,5%",
    ),
    Part(
        "text",
        "Real text: the next 128 tokens behind 1,024 tokens of Python's reference",
        ("text", "--lengths", "1024", "--examples", "8", "--protocol", "plain", "--data", f"{{folder}}/{REFERENCE}"),
        ("snapkv", "adakv", "keydiff", "streamingllm", *STORES),
        "10%,25%,50%",
    ),
)


class Division(NamedTuple):
    """A closer look at a part: columns by what the examples differ in, under one budget."""

    budget: str
    title: str
    column: Callable[[Row], str]


def by_task(row: Row) -> str:
    """The column of a row's task."""
    return f"`{row.task}`"


def _length(row: Row) -> str:
    return f"{row.task}, {row.facts['length']:,}"


DIVISIONS = {
    "ruler-2k": Division("5%", "by task", by_task),
    "ruler-4k": Division("5%", "by task", by_task),
    "ruler-unseen": Division("25%", "by task", by_task),
    "niah": Division("2%", "by needle and length", _length),
}
"""By the name of the part."""

QUESTIONS = ("facts", 7, 12)
"""Benchmark, seed and number of the validation questions behind CoKV's scores."""
TUNING = ("facts", 8, 24)
"""The same of the questions by which knobs are chosen: half of them choose, half confirm."""
NEEDLES = ("--lengths", "256,512", "--depths", "3")
KNOBS = ("--budgets", "28,70", "--split", "0.5", "--metric", "contains_any", "--max-new-tokens", "14")
COALITIONS = ("--balanced", "--samples", "96", "--metric", "contains_any", "--max-new-tokens", "14")
