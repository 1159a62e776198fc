"""The rotary position embedding of a layer, read from the model and tried out on it.

Families differ in which numbers of a query form a pair, how many of them turn, which way, by which angles, and whether
a layer is rotated at all. A table of families would be wrong for the next one without anybody noticing. So the angles
come from the model's own embedding module, and the layout is the one that explains what the attention module does: the
keys that it makes of one and the same token at several positions are equal once the right rotation is undone.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from winnow.errors import ModelError
from winnow.models.cache_argument import CACHE_NAMES, cache_name
from winnow.view import Rotation

_AT_ONCE = 1 << 14
"""Positions whose rotations are there together."""
_TRIED = (0, 1, 3, 7, 20, 50, 150, 400)
"""Positions at which the attention module shows what it does."""
_CACHE_NAMES = (*CACHE_NAMES, "layer_past", "past_key_value")
_REMEDY = "Use a method that does not look at queries before their rotation, such as snapkv."


class _Layout(Rotation, Protocol):
    """A rotation that can be tried at any positions."""

    def inverse_at(self, states: Tensor, positions: Tensor) -> Tensor:
        """States [H, n, D] at positions [n] as they were before their rotation, in fp32."""


@dataclass(frozen=True, eq=False)
class Unrotated:
    """No rotation: layers without positions, with learned ones, or with ones that enter elsewhere."""

    dim: int

    def inverse(self, queries: Tensor, first: int) -> Tensor:
        """[Hq, n, D] in fp32."""
        return queries.float()

    def mean(self, first: int, count: int) -> Tensor:
        """The identity [D, D]."""
        return torch.eye(self.dim, dtype=torch.float32, device="cpu")

    def pair_sizes(self, states: Tensor) -> Tensor:
        """|x| [..., D] in fp32: every channel stands alone."""
        return states.float().abs()

    def inverse_at(self, states: Tensor, positions: Tensor) -> Tensor:
        """[H, n, D] in fp32."""
        return states.float()


class Angles(NamedTuple):
    """Turn and stretch of every pair at some positions: a·cos φ and a·sin φ, both [n, r/2]."""

    cos: Tensor
    sin: Tensor

    def inverse(self) -> Angles:
        """The inverse turns."""
        squared = self.cos**2 + self.sin**2
        return Angles(self.cos / squared, -self.sin / squared)


@dataclass(frozen=True, eq=False)
class Embedding:
    """The model's module of cosines and sines, for the layers of one type."""

    module: nn.Module
    layer_type: str | None

    def __call__(self, positions: Tensor, dtype: torch.dtype) -> Any:
        """The angles that the model hands to its attention modules for positions [n]: (cos, sin) [1, n, r], or complex.

        Scalings whose angles depend on the length seen so far (dynamic, longrope) are asked for the angles in force
        now: the module's own forward would change them, and with them what the model computes next.
        """
        like = torch.zeros(1, 1, 1, dtype=dtype, device=positions.device)
        types = () if self.layer_type is None else (self.layer_type,)
        return inspect.unwrap(type(self.module).forward)(self.module, like, positions[None], *types)

    def turns(self, positions: Tensor) -> Angles:
        """The same in fp32, with as many columns as the model gives."""
        given = self(positions.to(self.device), torch.float32)
        cos, sin = given if isinstance(given, tuple) else (given.real, given.imag)
        return Angles(cos[0], sin[0])

    @property
    def device(self) -> torch.device:
        """Device of the angles."""
        return next(self.module.buffers(), torch.empty(0, device="cpu")).device


@dataclass(frozen=True, eq=False)
class Rotary:
    """R(p) turns pair j of a query by the angle of pair j at position p, and scales it where the model does."""

    embedding: Embedding
    dim: int
    columns: slice
    """Those cosines and sines that are there once for every pair."""
    neighbors: bool
    """Pairs are (0, 1), (2, 3), … instead of (0, r/2), (1, r/2 + 1), …"""
    clockwise: bool

    def inverse(self, queries: Tensor, first: int) -> Tensor:
        """R(p)⁻¹·q of queries [Hq, n, D] at positions p = first … first + n - 1, in fp32."""
        return self.inverse_at(queries, torch.arange(first, first + queries.shape[1], device="cpu"))

    def mean(self, first: int, count: int) -> Tensor:
        """[D, D] fp32: the mean of R(p) over `count` positions from `first` on."""
        parts = [self._sums(first + start, min(_AT_ONCE, count - start)) for start in range(0, count, _AT_ONCE)]
        cos, sin = (sum(each) / count for each in zip(*parts, strict=True))
        # The rows of this are R·e_j, so the columns of R.
        return self._turned(torch.eye(self.dim, dtype=torch.float32, device=cos.device), Angles(cos, sin)).t()

    def _sums(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        cos, sin = self._turns(torch.arange(first, first + count, device="cpu"))
        return cos.sum(dim=0), sin.sum(dim=0)

    def pair_sizes(self, states: Tensor) -> Tensor:
        """[..., r/2 + D - r] in fp32: lengths of the r/2 pairs of states [..., D], sizes of the other channels."""
        states = states.float()
        first, second = self._pairs(self._width)
        lengths = torch.hypot(states[..., first], states[..., second])
        return torch.cat([lengths, states[..., 2 * self._width :].abs()], dim=-1)

    def inverse_at(self, states: Tensor, positions: Tensor) -> Tensor:
        """R(p)⁻¹·x of states x [H, n, D] at positions [n], in fp32."""
        back = self._turns(positions).inverse()
        return self._turned(states.float(), Angles(*(part.to(states.device) for part in back)))

    def _turns(self, positions: Tensor) -> Angles:
        cos, sin = (part[:, self.columns] for part in self.embedding.turns(positions))
        return Angles(cos, -sin if self.clockwise else sin)

    def _turned(self, states: Tensor, turns: Angles) -> Tensor:
        """States [..., D] in fp32 with their pairs turned by [..., r/2]; the rest stays."""
        pairs = turns.cos.shape[-1]
        first, second = self._pairs(pairs)
        x, y = states[..., first], states[..., second]
        turned = torch.empty_like(states)
        turned[..., 2 * pairs :] = states[..., 2 * pairs :]
        torch.mul(x, turns.cos, out=turned[..., first]).addcmul_(y, turns.sin, value=-1)
        torch.mul(x, turns.sin, out=turned[..., second]).addcmul_(y, turns.cos)
        return turned

    @property
    def _width(self) -> int:
        """r/2, the number of pairs."""
        return self._turns(torch.zeros(1, dtype=torch.int64, device="cpu")).cos.shape[-1]

    def _pairs(self, pairs: int) -> tuple[slice, slice]:
        """The first and the second channels of r/2 = `pairs` pairs."""
        if self.neighbors:
            return slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
        return slice(0, pairs), slice(pairs, 2 * pairs)


_known: WeakKeyDictionary[nn.Module, tuple[nn.Module | None, Rotation]] = WeakKeyDictionary()
"""Rotations found for attention modules so far, with the embedding that each was found with."""


def rotation_of(model: PreTrainedModel, attention: nn.Module) -> Rotation:
    """The rotation that an attention module of the model applies to queries and keys.

    Raises:
        ModelError: the module rotates in a way that is not understood, or by positions of several axes.
    """
    if attention not in _known:
        check_rotation(model, attention)
    return _known[attention][1]


def check_rotation(model: PreTrainedModel, attention: nn.Module) -> None:
    """Finds out the rotation by running the module on a made-up token, again where the model has a new embedding.

    Raises:
        ModelError: as `rotation_of`.
    """
    source = _embedding_module(model, attention)
    if attention not in _known or _known[attention][0] is not source:
        _known[attention] = (source, _found_out(attention, source))


def _embedding_module(model: nn.Module, attention: nn.Module) -> nn.Module | None:
    """The rotary embedding nearest to an attention module: in it, or in what encloses it."""
    name = next((name for name, module in model.named_modules() if module is attention), "")
    while True:
        found = [m for m in model.get_submodule(name).modules() if "rotary" in type(m).__name__.lower()]
        if len(found) > 1:
            kinds = ", ".join(sorted({type(module).__name__ for module in found}))
            raise _not_understood(attention, f"several embeddings could serve it ({kinds})")
        if found or not name:
            return found[0] if found else None
        name = name.rpartition(".")[0]


def _found_out(attention: nn.Module, source: nn.Module | None) -> Rotation:
    embedding = None if source is None else Embedding(source, _layer_type(attention, source))
    positions = torch.tensor(_TRIED, device="cpu")
    try:
        with torch.no_grad():
            keys = _keys_at(attention, embedding, positions)
            tried = [(layout, _spread(layout.inverse_at(keys, positions))) for layout in _layouts(keys, embedding)]
    except ModelError:
        raise
    except Exception as problem:
        # Modeling code may fail in any way on arguments that it does not expect.
        raise _not_understood(attention, f"running it failed ({type(problem).__name__}: {problem})") from problem
    rotation, left = min(tried, key=lambda each: each[1])
    if not left <= max(1e-3, 4 * torch.finfo(keys.dtype).eps):
        raise _not_understood(attention, "no known layout explains how its keys depend on their position")
    return rotation


def _layer_type(attention: nn.Module, source: nn.Module) -> str | None:
    """The layer type that an embedding asks for, where layers of different types have angles of their own."""
    if _sections(source) is not None:
        raise ModelError(
            f"{type(attention).__name__} rotates queries by positions on several axes (multimodal RoPE), which "
            f"winnow cannot undo. {_REMEDY}"
        )
    if "layer_type" not in inspect.signature(inspect.unwrap(type(source).forward)).parameters:
        return None
    config: Any = attention.config
    kind: str = config.layer_types[attention.layer_idx]
    return kind


def _sections(source: nn.Module) -> object:
    config = getattr(source, "config", None)
    parameters = getattr(config, "rope_parameters", None) or {}
    return getattr(source, "mrope_section", None) or parameters.get("mrope_section")


def _keys_at(attention: nn.Module, embedding: Embedding | None, positions: Tensor) -> Tensor:
    """[H, n, D]: the keys that the module makes of one made-up token at positions [n]."""
    config: Any = attention.config
    device, dtype = _computes_in(attention)
    generator = torch.Generator().manual_seed(0)
    token = torch.randn(config.hidden_size, generator=generator, dtype=torch.float32, device="cpu")
    accepted = inspect.signature(type(attention).forward).parameters
    arguments: dict[str, Any] = {"attention_mask": None}
    if "shared_kv_states" in accepted:
        arguments["shared_kv_states"] = {}  # Gemma 4 hands keys and values from layer to layer
    if "position_ids" in accepted:
        arguments["position_ids"] = positions[None].to(device)
    if "position_embeddings" in accepted:
        given = None if embedding is None else embedding(positions.to(embedding.device), dtype)
        arguments["position_embeddings"] = _moved(given, device)
    name = cache_name(type(attention).forward, _CACHE_NAMES)
    if name is None:
        raise _not_understood(attention, "it takes no cache")
    arguments[name] = _Listener()
    hidden = token.to(device, dtype).expand(1, len(positions), -1)
    try:
        # `forward` and not a call: hooks that someone put on the module are not meant for this.
        attention.forward(hidden_states=hidden, **arguments)
    except _Heard as heard:
        return heard.keys[0]
    raise _not_understood(attention, "it gives its keys to no cache")


def _computes_in(attention: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Device on which a module computes, and the dtype of what goes in."""
    parameters = list(attention.parameters())
    # Of a quantized module there may be none in floating point.
    weight = next((each for each in parameters if each.is_floating_point()), parameters[0])
    config: Any = attention.config
    dtype = weight.dtype if weight.is_floating_point() else getattr(config, "dtype", None) or torch.get_default_dtype()
    return torch.device("cpu") if weight.is_meta else weight.device, dtype


def _moved(given: Any, device: torch.device) -> Any:
    if given is None:
        return None
    return tuple(part.to(device) for part in given) if isinstance(given, tuple) else given.to(device)


class _Heard(Exception):
    """Ends a module's forward as soon as its keys are known."""

    def __init__(self, keys: Tensor) -> None:
        super().__init__()
        self.keys = keys


class _Listener:
    """Takes the place of an empty cache."""

    def get_seq_length(self, *args: object) -> int:
        return 0

    def update(self, keys: Tensor, *args: object, **kwargs: object) -> None:
        raise _Heard(keys)


def _layouts(keys: Tensor, embedding: Embedding | None) -> Iterator[_Layout]:
    """All ways to rotate keys [H, n, D] that are in use, by the angles of an embedding; first of all none."""
    dim = keys.shape[-1]
    yield Unrotated(dim)
    if embedding is None:
        return
    columns, pairs = _once_per_pair(embedding)
    if 2 * pairs > dim:
        return
    for neighbors, clockwise in product((False, True), repeat=2):
        yield Rotary(embedding, dim, columns, neighbors, clockwise)


def _once_per_pair(embedding: Embedding) -> tuple[slice, int]:
    """The columns of the embedding without repetitions, and how many that are."""
    angles = torch.stack(embedding.turns(torch.tensor(_TRIED, device="cpu")))
    width = angles.shape[-1]
    if torch.equal(angles[..., : width // 2], angles[..., width // 2 :]):
        return slice(0, width // 2), width // 2
    if torch.equal(angles[..., ::2], angles[..., 1::2]):
        return slice(0, width, 2), width // 2
    return slice(0, width), width


def _spread(keys: Tensor) -> float:
    """Distance of keys [H, n, D] of one token from being the same at every position; 0 to about 1."""
    return float((keys - keys[:, :1]).norm() / keys.norm().clamp(min=1e-12))


def _not_understood(attention: nn.Module, what: str) -> ModelError:
    return ModelError(f"winnow cannot tell how {type(attention).__name__} rotates its queries: {what}. {_REMEDY}")
