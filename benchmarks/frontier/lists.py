"""Scope of the frontier: lists of methods, each evaluated on the same questions and texts."""

from __future__ import annotations

from typing import NamedTuple

from evaluated import REFERENCE, Part

_FACTS = ("facts", "--lengths", "1400", "--examples", "{questions}", "--protocol")
_TEXT = (
    *("text", "--lengths", "1024", "--examples", "{texts}", "--protocol", "plain"),
    *("--data", f"{{folder}}/{REFERENCE}"),
)
CURVES = "curves.safetensors"
"""Budget curves of the model: a file of this name in the folder of a study, estimated before the first use."""
ESTIMATED = ("--method", "snapkv", "--questions", "8")
"""Arguments of `winnow heads curves`."""
_PLAIN = "rotate=false, center=false, smooth=false"
_SEEN, _UNSEEN, _AHEAD = "question seen", "question not seen", "real text"


class Section(NamedTuple):
    """Methods that are compared with each other."""

    name: str
    title: str
    methods: tuple[str, ...]
    budgets: str
    """Budgets of methods that name none and keep a part only."""
    parts: dict[str, tuple[str, ...]]
    """Arguments of `winnow eval`, but for model, methods, budgets and folder, by what is asked."""

    @property
    def follows_curves(self) -> bool:
        """True if a method needs budget curves."""
        return any(CURVES in method for method in self.methods)

    def runs(self, questions: int, texts: int) -> tuple[Part, ...]:
        """A run of `winnow eval` for everything that is asked."""
        return tuple(
            Part(
                f"{self.name}-{number}",
                asked,
                tuple(each.replace("{questions}", str(questions)).replace("{texts}", str(texts)) for each in arguments),
                self.methods,
                self.budgets,
            )
            for number, (asked, arguments) in enumerate(self.parts.items())
        )


SECTIONS = (
    Section(
        "bits",
        "Bits: everything is kept, in fewer of them",
        (
            "full+bits(8)",
            "full+bits(6)",
            "full+bits(k=8, v=4)",
            "full+bits(4)",
            "full+bits(4, round=queries)",
            "full+bits(4, round=queries, dense_first=1)",
            "full+bits(4, group=64, round=queries, dense_first=1)",
            "full+bits(4, group=32)",
            "full+bits(3)",
            f"full+bits(8, {_PLAIN})",
            f"full+bits(k=8, v=4, {_PLAIN})",
            f"full+bits(4, {_PLAIN})",
            f"full+bits(4, group=32, {_PLAIN})",
            "full+bits(4, rotate=true, center=false, smooth=false)",
            "full+kivi(4)",
            "full+kivi(4, rotate=values)",
            "full+kivi(2)",
        ),
        "100%",
        {_SEEN: (*_FACTS, "plain"), _AHEAD: _TEXT},
    ),
    Section(
        "agnostic",
        "The question is not known at compression",
        (
            "snapkv",
            "knorm",
            "keydiff",
            "expectedattention",
            "expectedattention(epsilon=0.01)+ada",
            "kvzip",
            "kvzip-plus",
        ),
        "10%,25%,50%",
        {_UNSEEN: (*_FACTS, "plain-agnostic"), _AHEAD: _TEXT},
    ),
    Section(
        "budgets",
        "The same scores, other budgets",
        (
            "snapkv",
            "pyramidkv",
            "adakv",
            "snapkv+global",
            "snapkv+cake",
            "snapkv+zigzag",
            f"snapkv+lukv(curves={{folder}}/{CURVES})",
            "criticalkv",
            "defensivekv",
        ),
        "3%,5%,10%",
        {_SEEN: (*_FACTS, "plain"), _AHEAD: _TEXT},
    ),
    Section(
        "stacked",
        "Eviction and bits together",
        (
            "adakv",
            "adakv+bits(8)",
            "adakv+kivi(4)",
            "adakv+bits(4)",
            "snapkv+global+bits(4)",
            "kvzip+bits(4)",
        ),
        "10%,20%,40%",
        {_SEEN: (*_FACTS, "plain")},
    ),
)
