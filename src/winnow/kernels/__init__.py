"""Decode attention straight from the stored form: one interface, native C++ and plain torch behind it."""

from winnow.kernels.interface import (
    AttentionSpec,
    Block,
    DecodePlan,
    PackedBlock,
    Parts,
    PrefixBlock,
    TailSegments,
    attend,
    backend,
)

__all__ = [
    "AttentionSpec",
    "Block",
    "DecodePlan",
    "PackedBlock",
    "Parts",
    "PrefixBlock",
    "TailSegments",
    "attend",
    "backend",
]
