"""Weights that a GGUF file has in 4, 5 or 6 bits, which stay as they are there."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from winnow.errors import ModelError
from winnow.models.gguf_rows import FileRows
from winnow.models.roundable import fewest_bits, holds_experts, weights_to_round
from winnow.models.rounding import RoundedWeights, Rounding


class LevelsKept:
    """Puts `RoundedWeights` in place of weights that a file has at few levels, when transformers reads them."""

    def __init__(self, rounding: Rounding) -> None:
        self._rounding = rounding
        self._kept: dict[str, _Kept] | None = None
        self._few = False

    def __call__(self, model: PreTrainedModel, found: dict[str, Tensor | FileRows]) -> dict[str, Any]:
        """Parameters of a model that is about to be loaded, and what transformers reads in their place."""
        head = model.get_output_embeddings()
        self._kept = {}
        self._few = any(isinstance(each, FileRows) and each.have_few_bits for each in found.values())
        for path, layer, name in weights_to_round(model):
            rows = found.get(f"{path}.{name}")
            may_be_few = layer is not head and fewest_bits(path.rpartition(".")[2]) == 4
            if may_be_few and isinstance(rows, FileRows) and self._stays(layer, rows):
                self._kept[f"{path}.{name}"] = _Kept(rows, layer.get_parameter(name), self._rounding)
        return {**found, **self._kept}

    def check(self, model: PreTrainedModel) -> None:
        """Raises ModelError if a model that was loaded has others."""
        for name, kept in (self._kept or {}).items():
            if model.get_parameter(name) is not kept.made:
                raise ModelError(f"This transformers changes {name} while it loads it: leave --weights out.")

    def check_bits(self, name: str) -> None:
        """Raises ModelError if nothing is known of the bits that weights have in the file of a name, or all have 16."""
        if self._kept is None:
            raise ModelError(
                f"Winnow cannot tell the bits of weights in {name}, which transformers reads in a way of its own: use "
                "--weights int8 or int4."
            )
        if not self._few:
            raise ModelError(
                f"The weights of {name} are not in few bits: leave --weights gguf out, or use int8 or int4."
            )

    def _stays(self, layer: nn.Module, rows: FileRows) -> bool:
        transposed = holds_experts(layer) and layer.is_transposed
        return not transposed and self._rounding.keeps(rows)


class _Kept:
    """A weight of few bits, in place of its tensor where transformers loads weights."""

    def __init__(self, rows: FileRows, parameter: nn.Parameter, rounding: Rounding) -> None:
        self.shape = rows.shape
        self.made: RoundedWeights | None = None
        self._rows, self._parameter, self._rounding = rows, parameter, rounding

    def __getitem__(self, _: object) -> RoundedWeights:
        """All of it, as `FileRows` gives it."""
        self.made = RoundedWeights.instead_of(self._parameter, self._rounding.from_levels(self._rows))
        return self.made

    def get_dtype(self) -> str:
        """As of `FileRows`."""
        return self._rows.get_dtype()
