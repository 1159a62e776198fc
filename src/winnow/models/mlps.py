"""MLPs of models a piece of a long prompt at a time, so that what they compute in between stays small."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from winnow.models.matrices import dtype_of
from winnow.models.quantized import QuantizedLinear
from winnow.models.recorded import is_recorded
from winnow.models.replacing import StandIn, is_watched, may_be_replaced, replace_alike

_BETWEEN = 10 << 20
"""Bytes of what an MLP computes in between for a piece: several of them are kept by glibc, and fit into a cache."""
_FEWEST = 512
"""Tokens that a piece may have however wide an MLP is: products of fewer take longer for reading the weight again."""
_ROWS = 64
"""Tokens of which all pieces but the last are multiples: products of others take longer."""
_TRIED = 6
"""Tokens that an MLP of a kind is tried with, whole and in two pieces."""


class PiecewiseMLP(StandIn):
    """An MLP that computes many tokens a piece at a time; few, and what gradients or a compiler follow, at once."""

    @staticmethod
    def fits(mlp: nn.Module) -> bool:
        """True for an MLP that may compute each token by itself: by its parts, not by what it computes."""
        if not type(mlp).__name__.endswith("MLP") or not may_be_replaced(mlp) or any(map(is_watched, mlp.modules())):
            return False
        linear = _linear_parts(mlp)
        held = sum(1 for part in linear for _ in part.parameters())
        return bool(linear) and held == sum(1 for _ in mlp.parameters()) and not [*mlp.buffers()]

    def forward(self, hidden_states: Tensor) -> Tensor:
        """hidden_states [..., T, W] -> [..., T, W]"""
        if _is_followed(hidden_states) or are_few(hidden_states) or self._has_watched_parts():
            return self.at_once(hidden_states)
        return self._in_pieces(hidden_states.reshape(1, -1, hidden_states.shape[-1])).view(hidden_states.shape)

    def at_once(self, hidden_states: Tensor) -> Tensor:
        """hidden_states [..., T, W] -> [..., T, W], of all tokens together."""
        return self.as_before(hidden_states)

    def _in_pieces(self, tokens: Tensor) -> Tensor:
        """[1, T, W] -> [1, T, W]"""
        size = self._piece_of(tokens.shape[1], tokens.element_size())
        outputs = tokens.new_empty(tokens.shape)
        for piece, output in zip(tokens.split(size, 1), outputs.split(size, 1), strict=True):
            output.copy_(self.at_once(piece))
        return outputs

    def _piece_of(self, tokens: int, element_size: int) -> int:
        """Tokens of a piece: pieces are about as long as each other."""
        widest = max(part.out_features for part in _linear_parts(self)) * element_size
        pieces = -(-tokens // max(_FEWEST, _BETWEEN // widest))
        return -(-tokens // pieces // _ROWS) * _ROWS

    def _has_watched_parts(self) -> bool:
        """True if parts have hooks or a forward of others, which expect all tokens at once."""
        return any(is_watched(part) for part in self.modules() if part is not self)


def are_few(hidden_states: Tensor) -> bool:
    """True for so few tokens [..., T, W] that one piece has them all."""
    return hidden_states.numel() <= _FEWEST * hidden_states.shape[-1]


def feed_in_pieces(model: nn.Module) -> None:
    """Has the MLPs of a model on the CPU compute long prompts a piece at a time, in place.

    What an MLP computes in between is several times as wide as hidden states. For a whole prompt the system has to
    find memory for it again and again; for a piece it does not, and the prompt's peak is lower. Parameters and their
    names stay, and so does what MLPs compute, the last bit aside. MLPs in which tokens see one another are left as
    they are: one of each kind is tried before it is replaced. So are those with hooks, which would see the trial.
    """
    replace_alike(model, _kind_of, lambda mlp: PiecewiseMLP if computes_each_token_alone(mlp) else None)


def _kind_of(mlp: nn.Module) -> tuple[object, ...] | None:
    """The same for MLPs that tell the same of their parts; None for what does not fit."""
    return (type(mlp), repr(mlp)) if PiecewiseMLP.fits(mlp) else None


@torch.no_grad()
def computes_each_token_alone(mlp: nn.Module) -> bool:
    """True if an MLP that `fits` gives for some tokens what it gives for those before and after them apart."""
    first = _linear_parts(mlp)[0]
    dtype = dtype_of(first)
    if not dtype.is_floating_point or any(each.device.type != "cpu" for each in mlp.parameters()):
        return False
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(1, _TRIED, first.in_features, generator=generator, device="cpu").to(dtype)
    whole = mlp(numbers)
    apart = torch.cat([mlp(piece) for piece in numbers.split(_TRIED // 2, 1)], 1)
    if whole.shape != numbers.shape or whole.dtype != dtype:
        return False
    return torch.allclose(apart.float(), whole.float(), rtol=0, atol=0.02 * float(whole.abs().max()))


def _is_followed(hidden_states: Tensor) -> bool:
    """True where pieces would be seen, by gradients or a compiler, and for tensors of another kind or elsewhere."""
    return is_recorded() or torch.is_grad_enabled() or type(hidden_states) is not Tensor or not hidden_states.is_cpu


def _linear_parts(mlp: nn.Module) -> list[nn.Linear | QuantizedLinear]:
    return [part for part in mlp.modules() if isinstance(part, nn.Linear | QuantizedLinear)]
