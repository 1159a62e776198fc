"""Tensors alive, whoever holds them."""

from __future__ import annotations

import gc

from torch import Tensor
from torch._subclasses.fake_tensor import is_fake


def alive() -> dict[int, int]:
    """Storage address -> bytes, of every tensor that Python can reach and that has memory."""
    gc.collect()
    # Tensors that torch.compile traces with have none. isinstance() takes several times as long.
    tensors = [each for each in gc.get_objects() if Tensor in type(each).__mro__ and not is_fake(each)]
    return {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}


def alive_since(before: dict[int, int]) -> dict[int, int]:
    """Those of `alive` that were not among those before."""
    return {where: size for where, size in alive().items() if where not in before}
