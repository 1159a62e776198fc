"""Budgets: tokens per head, a share of the prompt, or bytes."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from numbers import Integral
from typing import Literal

from winnow.errors import BudgetError

Unit = Literal["tokens", "percent", "bytes", "everything"]

_BYTES = {
    "GiB": 1 << 30,
    "MiB": 1 << 20,
    "KiB": 1 << 10,
    "GB": 10**9,
    "MB": 10**6,
    "kB": 10**3,
    "B": 1,
}
DEFAULT_BUDGET = "128"
"""For those who name a method and no budget."""

_SLACK = Fraction(1, 10**9)
"""Slots that are added before rounding down: a quotient, as 300 / 7, may be written a little below what was meant."""
_HUGE = 10**400
_EXAMPLES = '128 (tokens per KV head), "2%" (of the prompt) or "64MiB" (bytes of one sequence)'


@dataclass(frozen=True)
class Budget:
    """The number of slots to keep of one sequence. A slot is one token in one KV head of one layer.

    `Budget.parse` makes budgets, in one of four units:

    - tokens: mean slots per KV head, including those that are always kept (window, sinks). It must not be below their
      number. More than the prompt has means all of it.
    - percent: share of the prompt's slots, rounded down. If a prompt is so short that this is below the slots that are
      always kept (or below one per head), those are kept instead.
    - bytes: size of one sequence's prefix, with everything that is stored; with `fold_every`, of prefix, full tail and
      remembered queries together. It is never exceeded, except by the few slots that rounding="paper" may add. If not
      even the slots that are always kept (or one per head) fit, an error says how many bytes are needed.
    - everything: nothing is evicted.
    """

    unit: Unit
    amount: float = 0

    @classmethod
    def parse(cls, value: int | str | None) -> Budget:
        """Reads a budget: 128, "128", "2%", "64MiB", "1.5GB", or None for everything.

        Raises BudgetError for anything else, and for amounts that are not positive or are above 100%.
        """
        if value is None:
            return cls("everything")
        if isinstance(value, bool) or not isinstance(value, Integral | str):
            raise BudgetError(f"A budget is {_EXAMPLES}, not {value!r}{_meant(value)}.")
        text = _written(value)
        unit, amount = _read(text)
        if amount == math.inf:
            raise BudgetError(f"A budget of {text!r} is more than any prompt has; give {_EXAMPLES}.")
        if unit == "bytes" and amount > 0:
            amount = math.floor(amount)
        if amount <= 0:
            raise BudgetError(f"A budget must be positive, not {text!r}; give {_EXAMPLES}.")
        if unit == "percent" and amount > 100:
            raise BudgetError(f"A budget of {text!r} is more than the prompt has; give at most '100%'.")
        return cls(unit, amount if unit == "percent" else int(amount))

    def __str__(self) -> str:
        if self.unit == "everything":
            return "everything"
        if self.unit == "bytes":
            return _formatted_bytes(int(self.amount))
        # All digits, so that it is read back, and no exponent.
        return f"{Decimal(repr(self.amount)).normalize():f}%" if self.unit == "percent" else str(self.amount)

    def check(self, guaranteed: int, method: str) -> None:
        """Raises BudgetError if a budget in tokens is below what `method` always keeps in every head."""
        if self.unit == "tokens" and self.amount < guaranteed:
            raise BudgetError(
                f"A budget of {self} is below the {guaranteed} tokens that {method} always keeps in every "
                f"head (observation window and sinks): use at least {guaranteed}, or a smaller window."
            )

    def slots(self, length: int, heads: Sequence[int], guaranteed: int) -> int:
        """Slots over all layers and heads for a prompt of `length` tokens; for a budget in bytes see `ByteBudget`.

        heads: KV heads of every compressed layer; guaranteed: slots per head that are always kept.
        """
        all_heads = sum(heads)
        everything = all_heads * length
        least = all_heads * min(max(guaranteed, 1), length)
        if self.unit == "everything":
            return everything
        if self.unit == "tokens":
            return min(everything, max(least, int(self.amount) * all_heads))
        # As it is written, since decimal fractions are not exact in binary: 0.3% of 1000 is 3, not 2.
        return max(least, math.floor(everything * Fraction(repr(self.amount)) / 100 + _SLACK))


def _written(value: Integral | str) -> str:
    """Python writes no whole numbers of more than 4,300 digits, and none that large is kept apart."""
    return value if isinstance(value, str) else str(max(-_HUGE, min(int(value), _HUGE)))


def _read(text: str) -> tuple[Unit, float]:
    match = re.fullmatch(r"([+-]?\d+(?:[._]\d+)*)\s*(%|[A-Za-z]*)", text.strip())
    if match is None:
        raise BudgetError(f"A budget is {_EXAMPLES}, not {text!r}.")
    try:
        amount, unit = float(match[1]), match[2]
    except ValueError:
        raise BudgetError(f"A budget is {_EXAMPLES}, not {text!r}.") from None
    if unit == "%":
        return "percent", amount
    if unit == "" and (math.isinf(amount) or amount == int(amount)):
        return "tokens", amount
    sizes = {name.lower(): size for name, size in _BYTES.items()}
    if unit.lower() not in sizes:
        raise BudgetError(f"A budget is {_EXAMPLES}, not {text!r}{_meant(amount if not unit else None)}.")
    return "bytes", amount * sizes[unit.lower()]


def _meant(value: object) -> str:
    """A hint for fractions, which could be a share of the prompt."""
    if isinstance(value, float) and 0 < value <= 1:
        return f"; for a share of the prompt write '{value * 100:g}%'"
    return ""


def _formatted_bytes(amount: int) -> str:
    """Whole numbers of the largest unit: 1610612736 -> 1536MiB."""
    for name, size in _BYTES.items():
        if amount % size == 0:
            return f"{amount // size}{name}"
    raise AssertionError("every amount is a whole number of bytes")


def readable_bytes(amount: int) -> str:
    """Three digits or so in a handy unit, never less than the amount."""
    name, size = next(((n, s) for n, s in _BYTES.items() if n.endswith("iB") and amount >= s), ("B", 1))
    return f"{math.ceil(amount / size * 100) / 100:g}{name}"
