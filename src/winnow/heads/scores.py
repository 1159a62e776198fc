"""The importance of every head of a model: a table that is estimated once and used for every prompt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor

from winnow.errors import HeadScoresError, JsonError
from winnow.heads import storage
from winnow.heads.equality import EqualByContent, hash_of
from winnow.strict_json import parse_object

Heads = Literal["kv", "query"]
T = TypeVar("T")


def _with_earlier_names(table: type[T]) -> type[T]:
    """The class, which also understands `licence=`, as `license` was called before."""
    current = table.__init__

    @wraps(current)
    def initialize(self: T, *values: Any, licence: str | None = None, **facts: Any) -> None:
        current(self, *values, **facts if licence is None else facts | {"license": licence})

    table.__init__ = initialize  # type: ignore[assignment]
    return table


@_with_earlier_names
@dataclass(frozen=True, eq=False)
class HeadScores(EqualByContent):
    """A table of head scores: the importance of every head of a model, and how it was estimated.

    Two tables are equal if their values and all facts but the path are equal.

    Args:
        values: [L, H] float64 on the CPU; other number types and devices are converted, and the values are copied.
            A higher score means a more important head.
        method: the estimation: "headkv-r", "headkv-er", "headkv-r2", "cokv", "duoattention", "random" or another.
        heads: "kv" or "query", the kind of heads that H counts.
        model: name of the model, or empty.
        seed: seed of the estimation, or None.
        samples: number of runs or evaluations behind every score, or None.
        date: ISO date of the estimation, or empty.
        license: license of the scores, or empty.
        notes: any text.
        settings: settings of the estimation, a JSON object as text, or empty if they are unknown.
        path: file that the table was read from, or None.

    Raises:
        HeadScoresError: values that no budget can follow (not two-dimensional, empty, not finite, all zeros), or a fact
            of the wrong type.
    """

    values: Tensor
    method: str
    heads: Heads = "kv"
    model: str = ""
    seed: int | None = None
    samples: int | None = None
    date: str = ""
    license: str = ""
    notes: str = ""
    settings: str = ""
    path: Path | None = None

    def __post_init__(self) -> None:
        _check_facts(self)
        _check_values(self.values)
        # A copy of its own, so that the identity stays true; + 0.0 makes -0.0 and 0.0 the same bytes.
        values = self.values.detach().to("cpu", torch.float64).clone().contiguous() + 0.0
        object.__setattr__(self, "values", values)

    @classmethod
    def load(cls, path: Path | str) -> HeadScores:
        """Reads a file that `save` wrote; `winnow.heads.read_scores` also reads published formats.

        Raises HeadScoresError.
        """
        path = Path(path).expanduser()
        values, facts = storage.read_scores_file(path)
        try:
            return cls(values=values, path=path, **facts)
        except HeadScoresError as problem:
            raise HeadScoresError(f"{path}: {problem}") from None

    def save(self, path: Path | str) -> Path:
        """Writes a safetensors file, replaces an existing one, and returns its path. Raises HeadScoresError."""
        return storage.write_scores(Path(path).expanduser(), self.values, self.facts())

    def facts(self) -> dict[str, str | int | None]:
        """All fields but the values and the path, under their names in the file."""
        return {name: getattr(self, field) for name, field in storage.FIELDS.items()}

    @property
    def licence(self) -> str:
        """`license`, by its earlier name."""
        return self.license

    @property
    def shape(self) -> tuple[int, int]:
        """(layers, heads per layer)."""
        layers, heads = self.values.shape
        return layers, heads

    def grouped(self, kv_heads: int) -> HeadScores:
        """The table per KV head: a KV head's score is the mean over its group of query heads.

        A table that already has `kv_heads` KV heads is returned unchanged. Raises HeadScoresError if the number of
        heads does not fit.
        """
        layers, count = self.shape
        if self.heads == "kv":
            if count == kv_heads:
                return self
            raise HeadScoresError(
                f"{self} has scores of {count} KV heads per layer, not {kv_heads}: take a table of this model."
            )
        if kv_heads < 1 or count % kv_heads:
            raise HeadScoresError(
                f"{self} has {count} query heads per layer, which is not a multiple of {kv_heads} KV heads: take a "
                "table of this model, or give the number of its KV heads (num_key_value_heads in its config.json)."
            )
        values = self.values.reshape(layers, kv_heads, count // kv_heads).mean(dim=-1)
        return replace(self, values=values, heads="kv", path=None)

    def normalized(self) -> HeadScores:
        """The table divided by its sum over all layers and heads, so that the scores add up to 1.

        The result has no settings, because the estimation would not give these values again. Raises HeadScoresError if
        a score is negative: signed scores (CoKV) have meaningful ranks and differences, but are not shares of a sum.
        """
        least = self.values.min().item()
        if least < 0:
            raise HeadScoresError(
                f"{self} has negative scores (the lowest is {least:.4g} at {_place(int(self.values.argmin()), self)}), "
                "so they cannot be normalized: use them as they are (ranks, differences), or subtract a threshold and "
                "clip at zero first."
            )
        return replace(self, values=self.values / self.values.sum(), settings="", path=None)

    normalised = normalized
    """`normalized`, by its earlier name."""

    @staticmethod
    def mean(tables: Sequence[HeadScores]) -> HeadScores:
        """The mean of several tables, for example of those of a benchmark's tasks.

        Raises HeadScoresError if there are no tables, or if they differ in shape, model, method or kind of heads.
        """
        if not tables:
            raise HeadScoresError("There are no tables to average: give at least one.")
        first = tables[0]
        for fact in ("shape", "heads", "model", "method"):
            for table in tables[1:]:
                if getattr(table, fact) != getattr(first, fact):
                    raise HeadScoresError(
                        f"Only tables of one model and method have a mean: {first} has {fact} "
                        f"{getattr(first, fact)!r}, {table} has {getattr(table, fact)!r}."
                    )
        if len(tables) == 1:
            return first
        samples = [table.samples for table in tables if table.samples is not None]
        return replace(
            first,
            values=torch.stack([table.values for table in tables]).mean(dim=0),
            seed=first.seed if len({table.seed for table in tables}) == 1 else None,
            samples=sum(samples) if len(samples) == len(tables) else None,
            date=max(table.date for table in tables),
            license="; ".join(dict.fromkeys(table.license for table in tables if table.license)),
            notes="; ".join([f"mean of {len(tables)} tables", *_different_notes(tables)]),
            settings=first.settings if len({table.settings for table in tables}) == 1 else "",
            path=None,
        )

    def _content(self) -> tuple[object, ...]:
        return (self.shape, hash_of(self.values), *self.facts().values())

    def __str__(self) -> str:
        if self.path is not None:
            return str(self.path)
        layers, heads = self.shape
        return f"<{self.method} scores, {layers}x{heads}>"

    def __repr__(self) -> str:
        layers, heads = self.shape
        return f"HeadScores({str(self)!r}, {self.method}, {layers} layers x {heads} {self.heads} heads)"


def _check_facts(table: HeadScores) -> None:
    for name in ("method", "heads", "model", "date", "license", "notes", "settings"):
        value = getattr(table, name)
        if not isinstance(value, str):
            raise HeadScoresError(f"{name} must be text, not {value!r}.")
    if not table.method.strip():
        raise HeadScoresError('method is empty: say how the scores were estimated, for example "headkv-r2".')
    if table.heads not in get_args(Heads):
        raise HeadScoresError(f'heads must be "kv" or "query" (what a column of the table is), not {table.heads!r}.')
    for name, least in (("seed", None), ("samples", 1)):
        value = getattr(table, name)
        whole = isinstance(value, int) and not isinstance(value, bool)
        if value is not None and (not whole or (least is not None and value < least)):
            allowed = "a whole number" if least is None else f"a whole number of at least {least}"
            raise HeadScoresError(f"{name} must be {allowed} or None, not {value!r}.")
    if table.date and not _is_date(table.date):
        raise HeadScoresError(f"date must be an ISO date such as 2025-01-31, or empty, not {table.date!r}.")
    if table.settings and not _is_object(table.settings):
        raise HeadScoresError(f"settings must be a JSON object as text, or empty, not {table.settings[:60]!r}.")


def _is_date(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _is_object(text: str) -> bool:
    try:
        parse_object(text)
    except JsonError:
        return False
    return True


def _check_values(values: Tensor) -> None:
    if not isinstance(values, Tensor) or values.is_complex():
        kind = str(values.dtype) if isinstance(values, Tensor) else type(values).__name__
        raise HeadScoresError(f"Head scores must be a tensor of real numbers [layers, heads], not {kind}.")
    if values.dim() != 2:
        shape = "x".join(map(str, values.shape)) or "a single number"
        raise HeadScoresError(f"Head scores must be a table [layers, heads], not {shape}: reshape it layer by layer.")
    if not values.numel():
        raise HeadScoresError(f"The table of head scores is empty ({values.shape[0]}x{values.shape[1]}).")
    values = values.detach().to("cpu", torch.float64)
    broken = (~torch.isfinite(values)).nonzero()
    if len(broken):
        layer, head = broken[0].tolist()
        raise HeadScoresError(
            f"The score of layer {layer}, head {head} is {values[layer, head].item()}"
            + (f", and {len(broken) - 1} more are NaN or infinite" if len(broken) > 1 else "")
            + ": a score must be a finite number. Estimate the table again."
        )
    if not math.isfinite(values.abs().sum().item()):
        raise HeadScoresError(
            f"Head scores as large as {values.abs().max().item():.4g} have no finite sum, so none is a share of it: "
            "divide all of them by the largest."
        )
    if not values.any():
        raise HeadScoresError(
            "All head scores are zero, so heads cannot be told apart: no run of the estimation was counted. Estimate "
            "the table again."
        )


def _different_notes(tables: Sequence[HeadScores]) -> list[str]:
    """The tables' notes, the same words once."""
    parts = (part for table in tables for part in table.notes.split("; ") if part)
    return list(dict.fromkeys(parts))


def _place(index: int, table: HeadScores) -> str:
    layer, head = divmod(index, table.shape[1])
    return f"{layer}-{head}"
