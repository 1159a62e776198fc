"""The argument by which a forward pass takes its cache: `cache`, or `past_key_values` in older code.

transformers renamed it in 5.24, and takes the old name with a warning. Models with code of their own keep theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from inspect import signature
from typing import Any

from transformers import Cache, GenerationMixin, PreTrainedModel

from winnow.models.adapters import without_wrappers

CACHE_NAMES = ("cache", "past_key_values")
"""Names of the argument, the newest first."""


def with_cache(model: PreTrainedModel, cache: Cache) -> dict[str, Any]:
    """Arguments of a model's forward pass over a cache, which it fills."""
    forward = type(without_wrappers(model)).forward
    return {cache_name(forward) or generation_name(): cache, "use_cache": True}


def given_cache(named: Mapping[str, Any]) -> Any:
    """The cache among the named arguments of a forward pass, by whichever name; None where there is none."""
    return next((named[name] for name in CACHE_NAMES if named.get(name) is not None), None)


def generation_name() -> str:
    """The name that `model.generate` has for it, whatever the model's own code says."""
    return cache_name(GenerationMixin.prepare_inputs_for_generation) or CACHE_NAMES[-1]


@lru_cache
def cache_name(function: Callable[..., Any], names: tuple[str, ...] = CACHE_NAMES) -> str | None:
    """The first of the names that a function takes, seen through decorators; None where it takes none of them."""
    taken = signature(function).parameters
    return next((name for name in names if name in taken), None)
