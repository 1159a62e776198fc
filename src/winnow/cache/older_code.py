"""Models with code of their own from before transformers renamed the cache, which generation gives by its new name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from inspect import signature
from typing import Any

from transformers import PreTrainedModel

from winnow.cache.while_used import Undo, WhileUsed
from winnow.models.adapters import without_wrappers
from winnow.models.cache_argument import cache_name, generation_name

_METHODS = ("forward", "prepare_inputs_for_generation")
"""Methods that generation gives the cache to."""


def taking_new_name(model: PreTrainedModel) -> AbstractContextManager[None]:
    """A context manager in which a model takes its cache by the name that generation has, too."""
    return _taking(model)


def _take(model: PreTrainedModel) -> Undo | None:
    model = without_wrappers(model)
    own, given = cache_name(type(model).forward), generation_name()
    if own is None or own == given:
        return None
    before = {name: vars(model).get(name) for name in _METHODS}
    for name in _METHODS:
        if cache_name(getattr(type(model), name)) == own:
            setattr(model, name, _renaming(getattr(model, name), given, own))

    def undo() -> None:
        for name, earlier in before.items():
            vars(model).pop(name, None)
            if earlier is not None:
                setattr(model, name, earlier)

    return undo


_taking = WhileUsed(_take)


def _renaming(function: Callable[..., Any], given: str, own: str) -> Callable[..., Any]:
    """A function with one of its parameters under another name."""

    @functools.wraps(function)
    def renaming(*args: Any, **kwargs: Any) -> Any:
        if given in kwargs:
            kwargs[own] = kwargs.pop(given)
        return function(*args, **kwargs)

    known = signature(function)
    parameters = [each.replace(name=given if each.name == own else each.name) for each in known.parameters.values()]
    renaming.__signature__ = known.replace(parameters=parameters)  # type: ignore[attr-defined]
    return renaming
