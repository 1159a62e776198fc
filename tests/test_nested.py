"""Arguments in containers: what is found in them, and changed, is what torch's pytrees find."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

from support.nested import leaves, mapped

NESTED = [
    *(3, None, (), [], {}, slice(1, 2)),
    *((1, [2, (3, None)], {"a": 4, "b": [torch.float16]}), [[[1]], ()], {"x": {"y": (1, 2)}, "z": torch.device("cpu")}),
]


@pytest.mark.parametrize("nested", NESTED, ids=str)
def test_containers_are_those_of_pytrees(nested: Any) -> None:
    assert list(leaves(nested)) == tree_leaves(nested)
    found = mapped(str, nested)
    assert found == tree_map(str, nested)
    assert type(found) is type(tree_map(str, nested))
