"""Allocators: how many slots each layer and head gets. One published idea per file."""

from winnow.allocate.ada import Ada
from winnow.allocate.base import Allocator, HeadAllocator, Plan
from winnow.allocate.pyramid import Pyramid
from winnow.allocate.rounding import Rounding, round_exactly
from winnow.allocate.uniform import Uniform

__all__ = ["Ada", "Allocator", "HeadAllocator", "Plan", "Pyramid", "Rounding", "Uniform", "round_exactly"]
