"""Formats of kept slots, one a file: definition, encoding, decoding and checks side by side.

What attention takes the slots of a block for is what its `recover` gives; the compiled kernels are held to that.
"""

from winnow.kernels.formats.dense import DenseBlock
from winnow.kernels.formats.packed import PackedBlock
from winnow.kernels.formats.parts import Block, Part, Parts, parts_of

__all__ = ["Block", "DenseBlock", "PackedBlock", "Part", "Parts", "parts_of"]
