"""The making of a table, as far as the settings in its header tell."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, Any, NamedTuple

from winnow.errors import PromptError
from winnow.estimate.errors import NotVerifiable
from winnow.estimate.needle.settings import NeedleKind
from winnow.metrics.registry import DEFAULT_METRIC, METRICS
from winnow.strict_json import parse_object
from winnow.tasks.prompt_style import FACTS, PromptStyle

if TYPE_CHECKING:
    from winnow.heads.cokv_file import Halves
    from winnow.heads.scores import HeadScores


class Source(NamedTuple):
    """The examples or the haystack of a table, as far as it tells: files of earlier versions do not."""

    origin: str | None = None
    """"prose", "tasks" or "file"."""
    hash: str | None = None


class NeedleSettings(NamedTuple):
    """Settings of `winnow heads needle`."""

    kind: NeedleKind
    seed: int
    examples: int
    lengths: tuple[int, ...]
    depths: tuple[float, ...]
    max_new_tokens: int
    right: int
    """Runs that counted."""
    style: PromptStyle
    examples_source: Source
    haystack_source: Source

    @property
    def runs(self) -> int:
        """The number of runs, right or wrong."""
        return self.examples * len(self.lengths) * len(self.depths)


class CokvSettings(NamedTuple):
    """Settings of `winnow heads cokv`."""

    seed: int
    players: int
    sizes: tuple[int, ...]
    """Sizes of first parts."""
    samples: int
    questions: int
    tokens: int | None
    """Tokens of a generated question's prompt; None for questions of a file."""
    window: int
    max_new_tokens: int
    left_out: tuple[int, ...]
    """Questions that the whole cache answered wrong, from 0."""
    style: PromptStyle
    metric: str
    halves: Halves
    """Parts of a split that count."""
    examples_hash: str | None
    """None in files of earlier versions."""


def settings_of(table: HeadScores) -> NeedleSettings | CokvSettings:
    """Settings of scores, of whichever method. Raises NotVerifiable where they, or others of the method, cannot be."""
    if table.method in ("headkv-r", "headkv-er", "headkv-r2"):
        return needle_settings(table)
    if table.method == "cokv":
        return cokv_settings(table)
    raise NotVerifiable(
        f"{table} holds {table.method} scores; only those of needles (headkv-…) and coalitions (cokv) can be estimated "
        "again."
    )


def needle_settings(table: HeadScores) -> NeedleSettings:
    """Settings of needle scores. Raises NotVerifiable where the number of runs or the settings are missing."""
    asked = _Asked(table)
    return NeedleSettings(
        NeedleKind(table.method.removeprefix("headkv-")),
        asked.whole("seed"),
        asked.whole("examples", least=1),
        asked.wholes("lengths"),
        asked.shares("depths"),
        asked.whole("answer_tokens", least=1),
        _samples(table),
        asked.style(),
        asked.source("examples"),
        asked.source("haystack"),
    )


def cokv_settings(table: HeadScores) -> CokvSettings:
    """Settings of CoKV scores. Raises NotVerifiable where the number of samples or the settings are missing."""
    asked = _Asked(table)
    questions = asked.whole("examples", least=1)
    left_out = asked.wholes("left_out") if asked.says("left_out") else ()
    if not all(0 <= question < questions for question in left_out) or len(set(left_out)) == questions:
        raise _lacking(table, "left-out examples")
    sizes, players = asked.wholes("sizes"), table.values.numel()
    told, distinct = asked.whole("players"), len(set(sizes)) == len(sizes)
    if told != players or not distinct or min(sizes) < 1 or max(sizes) > players:
        raise NotVerifiable(
            f"The settings of {table} speak of coalitions of {', '.join(map(str, sizes))} of {told} heads, "
            f"which does not fit its {players} heads: nothing can be drawn again."
        )
    return CokvSettings(
        asked.whole("seed"),
        players,
        sizes,
        _samples(table),
        questions,
        asked.whole("question_tokens", least=1) if asked.says("question_tokens") else None,
        asked.whole("window", least=0),
        asked.whole("answer_tokens", least=1),
        left_out,
        asked.style(),
        asked.name("metric", METRICS) if asked.says("metric") else DEFAULT_METRIC,
        asked.halves(),
        asked.text("examples_hash"),
    )


class _Asked:
    """A table's settings, of which nothing is believed before it is looked at. All raise NotVerifiable."""

    def __init__(self, table: HeadScores) -> None:
        if not table.settings:
            raise _lacking(table, "settings")
        self._table = table
        self._values: dict[str, Any] = parse_object(table.settings)

    def says(self, name: str) -> bool:
        return self._values.get(name) is not None

    def whole(self, name: str, least: int | None = None) -> int:
        value = self._values.get(name)
        if type(value) is not int or (least is not None and value < least):
            raise self._no(name)
        return value

    def wholes(self, name: str) -> tuple[int, ...]:
        values = self._values.get(name)
        if not isinstance(values, list) or not values or any(type(value) is not int for value in values):
            raise self._no(name)
        return tuple(values)

    def shares(self, name: str) -> tuple[float, ...]:
        values = self._values.get(name)
        if not isinstance(values, list) or not values or not all(_is_share(value) for value in values):
            raise self._no(name)
        return tuple(values)

    def style(self) -> PromptStyle:
        """The usual one where the settings do not speak of any."""
        try:
            return PromptStyle.of_facts(self._values.get(FACTS, {}), str(self._table))
        except PromptError:
            raise self._no("prompt_style") from None

    def halves(self) -> Halves:
        """Both where the settings do not speak of them."""
        if not self.says("halves"):
            return "both"
        return "both" if self.name("halves", ("both", "first")) == "both" else "first"

    def source(self, what: str) -> Source:
        name = f"{what}_from"
        origin = self.name(name, ("prose", "tasks", "file")) if self.says(name) else None
        return Source(origin, self.text(f"{what}_hash"))

    def text(self, name: str) -> str | None:
        """None where the settings do not speak of it."""
        value = self._values.get(name)
        if value is not None and not isinstance(value, str):
            raise self._no(name)
        return value

    def name(self, name: str, known: Container[str]) -> str:
        value = self._values.get(name)
        if not isinstance(value, str) or value not in known:
            raise self._no(name)
        return value

    def _no(self, name: str) -> NotVerifiable:
        return _lacking(self._table, name.replace("_", " "))


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value <= 1


def _samples(table: HeadScores) -> int:
    if table.samples is None:
        raise _lacking(table, "number of samples")
    return table.samples


def _lacking(table: HeadScores, what: str) -> NotVerifiable:
    return NotVerifiable(
        f"{table} does not say its {what}, so its runs cannot be repeated: only files that winnow heads needle or "
        "winnow heads cokv wrote carry what verifying needs; published tables do not."
    )
