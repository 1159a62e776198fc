"""Decode attention straight from the stored form: one interface, native C++ and plain torch behind it."""

from winnow.kernels.formats import Block, DenseBlock, PackedBlock, Part, Parts, parts_of
from winnow.kernels.interface import AttentionSpec, DecodePlan, TailSegments, attend, backend

__all__ = [
    "AttentionSpec",
    "Block",
    "DecodePlan",
    "DenseBlock",
    "PackedBlock",
    "Part",
    "Parts",
    "TailSegments",
    "attend",
    "backend",
    "parts_of",
]
