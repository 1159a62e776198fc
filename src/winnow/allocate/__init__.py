"""Allocators: how many slots each layer and head gets. One published idea per file."""

from winnow.allocate.ada import Ada
from winnow.allocate.base import Allocation, Allocator, HeadAllocator, SlotPlan
from winnow.allocate.cokv import CoKV
from winnow.allocate.duo import Duo
from winnow.allocate.headkv import HeadKV
from winnow.allocate.masking import Masking
from winnow.allocate.pyramid import Pyramid
from winnow.allocate.raba import RABA
from winnow.allocate.rounding import Rounding, full_tensor, round_exactly, shared_within
from winnow.allocate.table import TableAllocator
from winnow.allocate.uniform import Uniform
from winnow.allocate.union import HeadUnion, of_sharing_heads, union_of

__all__ = [
    "RABA",
    "Ada",
    "Allocation",
    "Allocator",
    "CoKV",
    "Duo",
    "HeadAllocator",
    "HeadKV",
    "HeadUnion",
    "Masking",
    "Pyramid",
    "Rounding",
    "SlotPlan",
    "TableAllocator",
    "Uniform",
    "full_tensor",
    "of_sharing_heads",
    "round_exactly",
    "shared_within",
    "union_of",
]
