"""A model that attends with winnow for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from weakref import WeakKeyDictionary

from transformers import PreTrainedConfig, PreTrainedModel

from winnow.cache.attention import IMPLEMENTATION
from winnow.cache.guards import text_config


@contextmanager
def attending(model: PreTrainedModel) -> Iterator[None]:
    """Sets the attention implementation "winnow" where the model has another, and puts that back afterwards.

    Of several threads the last one to leave puts it back.
    """
    with _lock:
        use = _uses.get(model)
        if use is None and text_config(model)._attn_implementation != IMPLEMENTATION:
            before = _implementations(model.config)
            model.set_attn_implementation(IMPLEMENTATION)
            use = _uses[model] = _Use(before)
        if use is not None:
            use.users += 1
    try:
        yield
    finally:
        if use is not None:
            _leave(model, use)


@dataclass
class _Use:
    """The attention of a model before its users came, and their number."""

    before: dict[str, str]
    users: int = 0


_uses: WeakKeyDictionary[PreTrainedModel, _Use] = WeakKeyDictionary()
_lock = Lock()


def _leave(model: PreTrainedModel, use: _Use) -> None:
    with _lock:
        use.users -= 1
        if not use.users:
            del _uses[model]
            model.set_attn_implementation(use.before)


def _implementations(config: PreTrainedConfig) -> dict[str, str]:
    """Attention implementations of a model and of the models inside it, by their names in its configuration."""
    parts = {name: getattr(config, name, None) for name in config.sub_configs}
    inside = {name: part._attn_implementation for name, part in parts.items() if part is not None}
    return {"": config._attn_implementation, **inside}
