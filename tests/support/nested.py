"""Arguments and results of operators, in lists, tuples and dicts: as torch's pytrees have them, in a fifth of the time.

Named tuples, sizes and other containers are no containers here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def leaves(nested: Any) -> Iterator[Any]:
    """Everything that is no container, in order."""
    kind = type(nested)
    if kind is tuple or kind is list:
        for each in nested:
            yield from leaves(each)
    elif kind is dict:
        for each in nested.values():
            yield from leaves(each)
    else:
        yield nested


def mapped(change: Callable[[Any], Any], nested: Any) -> Any:
    """The same containers with everything else changed."""
    kind = type(nested)
    if kind is tuple:
        return tuple([mapped(change, each) for each in nested])
    if kind is list:
        return [mapped(change, each) for each in nested]
    if kind is dict:
        return {name: mapped(change, each) for name, each in nested.items()}
    return change(nested)
