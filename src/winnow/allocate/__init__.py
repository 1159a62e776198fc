"""Allocators: how many slots each layer and head gets. One published idea per file."""

from winnow.allocate.ada import Ada
from winnow.allocate.base import Allocation, Allocator, HeadAllocator, SlotPlan, layers_allocator
from winnow.allocate.cake import Cake
from winnow.allocate.cokv import CoKV
from winnow.allocate.duo import Duo
from winnow.allocate.headkv import HeadKV
from winnow.allocate.lukv import LUKV
from winnow.allocate.masking import Masking
from winnow.allocate.planned import PlannedAllocator
from winnow.allocate.pool import Global, pooled
from winnow.allocate.pyramid import Pyramid
from winnow.allocate.raba import RABA
from winnow.allocate.rounding import Rounding, full_tensor, round_exactly, shared_within
from winnow.allocate.spanning import Claim, SpanningAllocator, spanning_of
from winnow.allocate.table import TableAllocator
from winnow.allocate.uniform import Uniform
from winnow.allocate.union import HeadUnion, of_sharing_heads, union_of
from winnow.allocate.zigzag import ZigZag

__all__ = [
    "LUKV",
    "RABA",
    "Ada",
    "Allocation",
    "Allocator",
    "Cake",
    "Claim",
    "CoKV",
    "Duo",
    "Global",
    "HeadAllocator",
    "HeadKV",
    "HeadUnion",
    "Masking",
    "PlannedAllocator",
    "Pyramid",
    "Rounding",
    "SlotPlan",
    "SpanningAllocator",
    "TableAllocator",
    "Uniform",
    "ZigZag",
    "full_tensor",
    "layers_allocator",
    "of_sharing_heads",
    "pooled",
    "round_exactly",
    "shared_within",
    "spanning_of",
    "union_of",
]
