"""Budget curves: how much of every head goes, for every share of the whole cache that goes (LU-KV).

Tang et al. 2026, arXiv 2602.08585. Estimated once for a model and a scorer; used for every prompt.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from winnow.errors import FileError, HeadScoresError
from winnow.files import reading
from winnow.heads import storage
from winnow.heads.equality import EqualByContent, hash_of

GRID = 99
"""Shares of the cache that go: 1% … 99%."""
PUBLISHED = ".npy"
"""Ending of tables as the paper's authors publish them."""
_KIND = storage.TableKind("winnow_budget_curves", 1, "budget curves", "winnow heads curves", "estimate it again")
_TENSOR = "ratios"
_TEXTS = ("scorer", "model", "date", "license", "notes", "settings")


@dataclass(frozen=True, eq=False)
class BudgetCurves(EqualByContent):
    """The share of its slots that every head gives up, where 1%, 2% … 99% of all slots go.

    ratios: [99, L, H] in [0, 1], float64 on the CPU (any number type and device is converted, and copied). scorer: the
    method whose order of tokens they were estimated for. samples: questions behind them. settings: what the estimation
    was asked for, a JSON object as text. path: where the table was read from.

    Tables are equal when their values and what is said about them are; the path does not count. Raises HeadScoresError
    for a tensor of another shape, and for shares that are none.
    """

    ratios: Tensor
    scorer: str = ""
    model: str = ""
    samples: int | None = None
    date: str = ""
    license: str = ""
    notes: str = ""
    settings: str = ""
    path: Path | None = None

    def __post_init__(self) -> None:
        shape = list(self.ratios.shape)
        if len(shape) != 3 or shape[0] != GRID or 0 in shape:
            raise HeadScoresError(f"Budget curves are [{GRID}, layers, heads], not {shape}: give a table of that form.")
        ratios = self.ratios.detach().to("cpu", torch.float64).clone().contiguous()
        if not bool(((ratios >= 0) & (ratios <= 1)).all()):
            raise HeadScoresError(
                "Budget curves hold shares between 0 and 1; this table has others: estimate it again."
            )
        object.__setattr__(self, "ratios", ratios)

    @classmethod
    def load(cls, path: Path | str) -> BudgetCurves:
        """Reads a file that `save` wrote, or a published .npy table; never unpickles. Raises HeadScoresError."""
        path = Path(path).expanduser()
        ratios, facts = _read_published(path) if path.suffix.lower() == PUBLISHED else _read(path)
        try:
            return cls(ratios, **facts, path=path)
        except HeadScoresError as problem:
            raise HeadScoresError(f"{path}: {problem}") from None

    def save(self, path: Path | str) -> Path:
        """Writes a safetensors file, over an existing one if need be; returns its path. Raises HeadScoresError."""
        header = {"version": _KIND.version, "samples": self.samples, **self._texts()}
        return storage.write_tensors(
            Path(path).expanduser(), {_TENSOR: self.ratios}, _KIND.header, header, "Budget curves"
        )

    @property
    def shape(self) -> tuple[int, int]:
        """(layers, KV heads per layer)."""
        _, layers, heads = self.ratios.shape
        return layers, heads

    def _texts(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in _TEXTS}

    def _content(self) -> tuple[object, ...]:
        return (self.shape, hash_of(self.ratios), self.samples, *self._texts().values())

    def __str__(self) -> str:
        layers, heads = self.shape
        return str(self.path) if self.path is not None else f"<budget curves, {layers}x{heads}>"

    def __repr__(self) -> str:
        layers, heads = self.shape
        return f"BudgetCurves({str(self)!r}, {self.scorer or 'any scorer'}, {layers} layers x {heads} KV heads)"


def _read_published(path: Path) -> tuple[Tensor, dict[str, Any]]:
    try:
        with reading(path) as file:
            table = np.load(file, allow_pickle=False)
            if isinstance(table, np.ndarray) and table.dtype.kind not in "fiu":
                raise TypeError(f"it holds {table.dtype}, not numbers")
            return torch.from_numpy(np.asarray(table, dtype=np.float64)), {}
    except FileError as problem:
        raise HeadScoresError(str(problem)) from None
    except (OSError, ValueError, EOFError, TypeError, MemoryError) as problem:
        # Memory: a damaged header asks for any amount.
        raise HeadScoresError(f"{path} cannot be read as a published table of budget curves: {problem}.") from None


def _read(path: Path) -> tuple[Tensor, dict[str, Any]]:
    tensors, header = storage.read_tensors(path, _KIND)
    if _TENSOR not in tensors:
        raise HeadScoresError(f"{path} has no tensor {_TENSOR!r}: the file is damaged, {_KIND.again}.")
    texts = {name: header.get(name, "") for name in _TEXTS}
    samples = header.get("samples")
    if not all(isinstance(text, str) for text in texts.values()) or not isinstance(samples, int | None):
        raise HeadScoresError(f"{path} is damaged (its header has fields of other types): {_KIND.again}.")
    return tensors[_TENSOR], {**texts, "samples": samples}
