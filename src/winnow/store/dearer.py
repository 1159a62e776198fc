"""A word, once, where the packed form of slots takes more bytes than the slots as they were."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from functools import cache

from winnow.kernels.formats import PackedBlock, Part
from winnow.parameters import differences
from winnow.store.channels import Channels

_ENOUGH = 32
"""Packed slots from which on a look at them says something: fewer are all beginnings of rows."""


def warn_if_dearer(channels: Channels, parts: Iterable[Part]) -> None:
    """Warns where slots of a part take more bytes than dense ones; what a head takes once is not counted."""
    packed = [part for part in parts if isinstance(part, PackedBlock) and part.slots >= _ENOUGH]
    if any(_slot_bytes(part) > _dense_bytes(part) for part in packed):
        _warn(_described(channels))


def _slot_bytes(part: PackedBlock) -> int:
    pruned = part.keys.pruned
    once = [part.offsets, part.keys.channels, None if pruned is None else pruned.inverse_norms]
    return sum(part.bytes().values()) - sum(tensor.nbytes for tensor in once if tensor is not None)


def _dense_bytes(part: PackedBlock) -> int:
    return part.slots * (part.key_dim + part.value_dim) * part.dtype.itemsize


def _described(channels: Channels) -> str:
    """The class with the parameters that are not as they come: "SparkP(saliency='linear')"."""
    changed = differences(type(channels)(), channels)
    return f"{type(channels).__name__}({', '.join(f'{name}={value!r}' for name, value in changed.items())})"


@cache
def _warn(described: str) -> None:
    """Once for all layers, prompts and caches."""
    warnings.warn(
        f"slots take more bytes under {described} than dense ones: masks, signs and statistics cost more than the few "
        "channels that are dropped. Drop more of them (a lower share, a higher ratio, saliency='squared'), or keep "
        "them in fewer bits (+bits(8)).",
        UserWarning,
        stacklevel=2,
    )
