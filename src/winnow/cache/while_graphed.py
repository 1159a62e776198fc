"""A model that takes single tokens by replaying graphs for a while, wherever a graph can hold them."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from winnow.cache.compressed import CompressedCache
from winnow.cache.graphed import GraphedDecoder, ordinary_forward
from winnow.cache.guards import text_config
from winnow.cache.step_tokens import StepTokens
from winnow.cache.while_used import Undo, WhileUsed
from winnow.errors import CacheError, GraphError
from winnow.kernels import native
from winnow.models.cache_argument import given_cache

OFF = "WINNOW_STEP_GRAPHS"
"""Variable of the environment: 0 turns graphs off."""
ROOM = 256
"""Tokens for which tails get room at a time, at most."""
FEWEST_HERE = 8
"""Tokens of an answer from which a CPU captures a step: that takes as long as a few replays save."""
_MORE = ("output_hidden_states", "output_attentions", "output_router_logits")
"""Fields of a configuration that ask every forward pass for more than logits."""
_SECOND = 2
"""The replay in which a number of the host that a graph should not hold is an old one."""
_SAME = 1e-3
"""Difference of logits of a replayed step and an ordinary one, at most, as a share of the largest."""
_fit: WeakKeyDictionary[PreTrainedModel, bool] = WeakKeyDictionary()
"""Models of which a replayed step was held against an ordinary one; True where they were the same."""
_fit_on_trial: WeakKeyDictionary[PreTrainedModel, bool] = WeakKeyDictionary()
"""The same of steps of several tokens on trial."""


def step_graphs(model: PreTrainedModel, tokens: int = ROOM) -> AbstractContextManager[None]:
    """A context manager in which a model decodes single tokens over a compressed prompt by graphs.

    `model.generate(ids, cache=cache)` and your own loops then take as long as their kernels run, not as long as it
    takes Python to ask for them. A graph is a CUDA graph on a GPU, and on a CPU a list of operators and calls of the
    compiled kernels. It holds one token of every row, from the third token after a prompt. All else runs as usual (see
    `GraphedDecoder`): prompts, several tokens at a time, folds, beams, gradients, several devices.
    Once for every model, a replayed step is repeated without a graph. If the logits differ, the model continues
    without graphs, and a warning says so.

    Inside the context, the model's `forward` is replaced. WINNOW_STEP_GRAPHS=0 in the environment turns this off. A
    replay calls no Python of the model: hooks of the model itself see every token. Hooks of modules inside it see only
    the first few on a GPU; on a CPU, a model that has any decodes without graphs.

    Args:
        model: a model whose attention implementation is "winnow".
        tokens: the most tokens of an answer. Tails get room for this many at a time, but at most 256. When it is used
            up, a graph is captured again. On a CPU, answers of less than 8 tokens are not worth a graph.
    """
    return _patched(model, tokens)


def _may_replay(model: PreTrainedModel, tokens: int) -> bool:
    """True for a language model which no compiler goes through as a whole; on a CPU with kernels and long answers."""
    if os.environ.get(OFF) == "0" or not isinstance(model, PreTrainedModel) or not _fit.get(model, True):
        return False
    if not model.can_generate() or _asks_for_more(model):
        return False
    worth = model.device.type != "cpu" or (tokens >= FEWEST_HERE and native.library() is not None)
    return worth and getattr(model, "_compiled_call_impl", None) is None


def _asks_for_more(model: PreTrainedModel) -> bool:
    """True if a model's configuration asks every forward pass for more than logits."""
    return any(getattr(config, field, False) for config in (model.config, text_config(model)) for field in _MORE)


def _patch(model: PreTrainedModel, tokens: int) -> Undo | None:
    """Puts a `forward` in the place of the model's own, which comes back if no other stands there then."""
    if not _may_replay(model, tokens):
        return None
    ordinary, before = model.forward, vars(model).get("forward")
    steps = _Steps(model, ordinary, max(1, min(tokens, ROOM)))

    @functools.wraps(ordinary)
    def replaying(*args: Any, **kwargs: Any) -> Any:
        return steps.run(*args, **kwargs)

    def undo() -> None:
        del ordinary_forward[model]
        if vars(model).get("forward") is replaying:
            del model.forward
            if before is not None:
                model.forward = before

    model.forward, ordinary_forward[model] = replaying, ordinary
    return undo


_patched = WhileUsed(_patch)


class _Steps:
    """Forward passes of a model, of which those that graphs can hold are replayed."""

    def __init__(self, model: PreTrainedModel, forward: Callable[..., Any], room: int) -> None:
        self._model = model
        self._forward = forward
        self._room = room
        # Held by the pass that is replayed: what it asks the model for, and other threads, go the ordinary way.
        self._lock = Lock()
        self._latest: ref[CompressedCache] | None = None
        self._refused: ref[CompressedCache] | None = None
        self._decoder: GraphedDecoder | None = None

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """A forward pass."""
        if not self._lock.acquire(blocking=False):
            return self._forward(*args, **kwargs)
        try:
            self._let_go(given_cache(kwargs))
            logits = self._logits(args, kwargs)
        finally:
            self._lock.release()
        if logits is None:
            return self._forward(*args, **kwargs)
        # By their places: transformers renamed the last one in 5.24.
        return CausalLMOutputWithPast(None, logits, given_cache(kwargs))

    def _let_go(self, cache: Any) -> None:
        """Gives back the memory of the graph of another cache than this one, before a prompt takes its own."""
        if isinstance(cache, CompressedCache) and not _is(self._latest, cache):
            self._decoder = None

    def _logits(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """Logits [R, n, V] of a step that was replayed, or prepared; None where the pass is still to be done."""
        model = self._model
        token = StepTokens.of(model, args, kwargs)
        if token is None or not _fit.get(model, True) or _is(self._refused, token.cache):
            return None
        if token.on_trial:
            return self._attempted(token, lambda: self._forward(*args, **kwargs).logits)
        if not _is(self._latest, token.cache):
            self._latest, self._decoder = ref(token.cache), None
            if not token.first:
                # A second token shows that more will come; caches that take turns are never worth a graph.
                return None
        seen = token.cache.get_seq_length()
        try:
            if self._decoder is None:
                self._decoder = GraphedDecoder(model, token.cache, self._room)
            checks = self._decoder.replays == _SECOND - 1 and model not in _fit
            states = self._decoder.states() if checks else []
            logits = self._decoder.step(token.tokens, token.positions)
        except (GraphError, torch.OutOfMemoryError):
            self._refused, self._decoder = ref(token.cache), None
            if not _still_holds(token.cache, seen):
                raise
            return None
        if self._decoder.replays != _SECOND or model in _fit:
            return logits[:, None]
        self._decoder.take_back(states)
        expected = self._forward(*args, **kwargs).logits[:, -1:]
        self._note(_fit, logits[:, None], expected)
        return expected

    def _attempted(self, tokens: StepTokens, ordinary: Callable[[], Tensor]) -> Tensor | None:
        """The same of several tokens on trial, once a single one came."""
        model, decoder, seen = self._model, self._decoder, tokens.cache.get_seq_length()
        if decoder is None or not _is(self._latest, tokens.cache) or not _fit_on_trial.get(model, True):
            return None
        count = tokens.tokens.shape[1]
        checks = decoder.attempts(count) == _SECOND - 1 and model not in _fit_on_trial
        try:
            states = decoder.states() if checks else []
            logits = decoder.attempt(tokens.tokens, tokens.positions)
        except (GraphError, torch.OutOfMemoryError):
            _fit_on_trial[model] = False
            if not _still_holds(tokens.cache, seen):
                raise
            return None
        if logits is None or not checks or decoder.attempts(count) != _SECOND:
            return logits
        fits = decoder.take_back_trial(count, states)
        expected = ordinary()
        if fits:
            self._note(_fit_on_trial, logits, expected)
        else:
            _fit_on_trial[model], tokens.cache.compression.state_calls = False, None
        return expected

    def _note(self, fit: WeakKeyDictionary[PreTrainedModel, bool], logits: Tensor, expected: Tensor) -> None:
        """Notes whether logits [R, n, V] of a replayed step are those of the ordinary one."""
        model = self._model
        fit[model] = _same(logits.float(), expected.float())
        if not fit[model]:
            self._decoder = None
            warnings.warn(
                f"a step of {type(model).__name__} that a graph replayed gave other logits than the ordinary one, so "
                "the model decodes without such graphs, which is slower and correct.",
                stacklevel=2,
            )


def _same(logits: Tensor, expected: Tensor) -> bool:
    """True if logits [R, n, V] are as expected but for rounding; those that are no finite numbers stand in both."""
    finite = expected[expected.isfinite()].abs()
    tolerance = _SAME * float(finite.max()) if len(finite) else 0.0
    return torch.allclose(logits, expected, rtol=0.0, atol=tolerance, equal_nan=True)


def _still_holds(cache: CompressedCache, seen: int) -> bool:
    """True if a cache holds so many tokens, and no pass over it was begun and not finished."""
    try:
        return cache.get_seq_length() == seen
    except CacheError:
        return False


def _is(held: ref[CompressedCache] | None, cache: CompressedCache) -> bool:
    return held is not None and held() is cache
