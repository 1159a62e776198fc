"""Methods that have a knob, and the values of it that are tried."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from winnow.estimate.errors import TuneError

Number = int | float


class Tunable(StrEnum):
    """Methods that follow head scores."""

    R = "headkv-r"
    ER = "headkv-er"
    R2 = "headkv-r2"
    COKV = "cokv"


@dataclass(frozen=True)
class Knob:
    """A parameter of a method with the values that its paper tried."""

    parameter: str
    default: Number
    published: tuple[Number, ...]
    for_few_heads: tuple[Number, ...] = ()
    """Values in between, for models with no more heads than the largest published value."""
    counts_heads: bool = False
    """True if a value is a whole number below the number of heads."""

    def values(self, heads: int) -> tuple[Number, ...]:
        """The values for a model of so many KV heads, ascending."""
        if not self.counts_heads:
            return self.published
        tried = self.published if heads > max(self.published) else (*self.published, *self.for_few_heads)
        return tuple(sorted(value for value in set(tried) if value < heads))

    def read(self, text: str) -> tuple[Number, ...]:
        """Values written with commas, in their order. Raises TuneError for what is no value."""
        return tuple(dict.fromkeys(self._number(part.strip()) for part in text.split(",")))

    def check(self, values: Iterable[Number], heads: int) -> None:
        """Raises TuneError for a value that leaves no head."""
        for value in values:
            if self.counts_heads and value >= heads:
                raise TuneError(
                    f"{self.parameter} = {value} leaves no head: the model has {heads}; give values below that."
                )

    def _number(self, text: str) -> Number:
        kinds: tuple[type[int] | type[float], ...] = (int,) if self.counts_heads else (int, float)
        for kind in kinds:
            try:
                return kind(text)
            except ValueError:
                continue
        wanted = "whole number" if self.counts_heads else "number"
        known = ",".join(map(str, self.published))
        raise TuneError(
            f"{text!r} is not a list of values of {self.parameter}: give {wanted}s with commas, such as {known}."
        )


# The values of the papers: HeadKV (appendix), CoKV (appendix E). The defaults are those of the methods, written out
# here so that this module needs no torch.
_BETA = Knob("beta", 1.2, (1.005, 1.01, 1.1, 1.2, 1.5, 2, 5, 10))
_ALPHA = Knob("alpha", 1, (1, 5, 10, 15, 20, 30, 40), for_few_heads=(2, 3, 4, 6, 8), counts_heads=True)

KNOBS: dict[Tunable, Knob] = {Tunable.R: _BETA, Tunable.ER: _BETA, Tunable.R2: _BETA, Tunable.COKV: _ALPHA}
