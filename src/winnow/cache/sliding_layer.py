"""A layer of sliding attention: transformers' own, whose window moves in place while single tokens come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.cache_utils import DynamicSlidingWindowLayer

from winnow.cache.window_ring import WindowRing
from winnow.errors import CacheError
from winnow.kernels.interface import AttentionSpec
from winnow.kernels.native import reads


class SlidingMark(NamedTuple):
    """A sliding layer before a forward pass, or what that pushed out of its window."""

    seen: int
    keys: Tensor
    values: Tensor
    rest: int | None = None
    """Tokens of the window that the layer still holds; None: keys and values are the whole window."""


class RingMark(NamedTuple):
    """A sliding layer before one more token of its ring."""

    seen: NDArray[np.int64]
    """[R]"""
    ring: WindowRing


class CompactSlidingLayer(DynamicSlidingWindowLayer):
    """A sliding layer that owns its window; the stock one keeps a view, and so the whole prompt, alive.

    Tokens lie in their order, or, once single ones come that the compiled library takes, in a ring. `keys` and `values`
    show them in their order either way.
    """

    _keys: Tensor | None
    _values: Tensor | None
    _seen: int
    ring: WindowRing | None = None
    """None: the window lies in its order."""
    _tried: tuple[Tensor, Tensor] | None = None
    _room = 0

    @property
    def cumulative_length(self) -> int:  # type: ignore[override]
        """Tokens that the layer has seen, of the row that saw most, and those on trial."""
        if self.ring is None:
            return self._seen
        return self.ring.longest + (0 if self._tried is None else self._tried[0].shape[2])

    @cumulative_length.setter
    def cumulative_length(self, seen: int) -> None:
        self.lay_in_order()
        self._seen = seen

    @property
    def keys(self) -> Tensor:  # type: ignore[override]
        """[R, H, N, D] of what the next token sees, in its order; of a ring a copy. None while the layer is empty."""
        return self._keys if self.ring is None else self.ring.in_order()[0]  # type: ignore[return-value]

    @keys.setter
    def keys(self, keys: Tensor) -> None:
        self.lay_in_order()
        self._keys = keys

    @property
    def values(self) -> Tensor:  # type: ignore[override]
        """[R, H, N, Dv] as `keys`."""
        return self._values if self.ring is None else self.ring.in_order()[1]  # type: ignore[return-value]

    @values.setter
    def values(self, values: Tensor) -> None:
        self.lay_in_order()
        self._values = values

    def update(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """As the stock layer."""
        returned: tuple[Tensor, Tensor] = super().update(*args, **kwargs)
        self._own()
        return returned

    def check_crop(self, tokens: int) -> None:
        """Raises CacheError where what `tokens` tokens pushed out of the window is gone, or rows differ in length."""
        self._check_even()
        if self.cumulative_length >= self.sliding_window and not self.record_past:
            raise CacheError(
                f"cannot crop {tokens} tokens: sliding layers forget what new tokens push out of their windows. Before "
                "you add tokens that may be removed, call cache.activate_past_recording() or fork the cache "
                "(copy.deepcopy)."
            )

    def crop(self, tokens_to_remove: int) -> None:
        """As the stock layer."""
        self.lay_in_order()
        super().crop(tokens_to_remove)
        if self.is_initialized:
            self._own()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Row i becomes what row beam_idx[i] was, with repeats or omissions."""
        if self.ring is None:
            super().reorder_cache(beam_idx)
        else:
            self.ring = self.ring.selected(beam_idx.cpu())

    def reset(self) -> None:
        """Empty again."""
        self.__dict__.update(ring=None, _keys=None, _values=None, _seen=0, _tried=None, is_initialized=False)
        super().reset()

    def tensors(self) -> list[Tensor]:
        """All that the layer holds."""
        if self.ring is not None:
            return self.ring.tensors()
        return [each for each in (self._keys, self._values) if each is not None]

    # --- single tokens -----------------------------------------------------------------------------------------

    def awaits(self, keys: Tensor, on_trial: bool) -> bool:
        """True if keys [R, H, n, D] may be left to an attention function, which adds them by `attend`.

        They are of one token, or of several on trial.
        """
        few = keys.shape[2] == 1 or (on_trial and self.ring is not None)
        return few and self.is_initialized and not self.record_past and reads(keys)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, spec: AttentionSpec) -> Tensor | None:
        """Takes keys [R, H, n, D] and values [R, H, n, Dv] of a token, or notes those on trial, and attends.

        query [R, Hq, n, D] -> output [R, n, Hq, Dv]. None, and nothing was done, for what the library does not take.
        """
        ring = self._as_ring()
        if keys.shape[2] > 1:
            keys, values = keys.detach().contiguous(), values.detach().contiguous()
            output = ring.attend_ahead(query, keys, values, spec)
            if output is not None:
                self._tried = keys, values
            return output
        output = ring.attend(query, keys, values, spec)
        if output is not None:
            # In one step, so that an interrupt finds all of it done or nothing.
            self.__dict__.update(ring=ring, _keys=None, _values=None)
        return output

    def attend_again(self, query: Tensor, spec: AttentionSpec) -> Tensor | None:
        """Attention of another layer over the same windows: [R, Hq, n, D] -> [R, n, Hq, Dv]; None as `attend`."""
        assert self.ring is not None
        return self.ring.over(query, spec) if self._tried is None else self.ring.attend_ahead(query, *self._tried, spec)

    def laid_with(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Keys [R, H, N + n, D] and values of the window and, behind it, of n new tokens, in their order.

        A ring takes those on trial with `end_trial`, so that its memory stays what graphs know.
        """
        if self.ring is None or keys.shape[2] == 1:
            return self.update(keys, values)
        self._tried = keys.detach().contiguous(), values.detach().contiguous()
        return self.all_in_order()

    def all_in_order(self) -> tuple[Tensor, Tensor]:
        """Keys [R, H, N, D] and values that the latest tokens saw, and those on trial, of a ring."""
        assert self.ring is not None
        if self._tried is None:
            return self.ring.all_in_order()
        pairs = zip(self.ring.in_order(), self._tried, strict=True)
        keys, values = (torch.cat(each, dim=2) for each in pairs)
        return keys, values

    def exchange_tried(self, tried: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor] | None:
        """Keys and values on trial from now on, in place of those that are returned; None: there are none."""
        before, self._tried = self._tried, tried
        return before

    def end_trial(self, wrong: int) -> None:
        """Takes all but the last `wrong` of the tokens that were on trial."""
        tried = self.exchange_tried(None)
        if tried is not None and self.ring is not None:
            self.ring.take(*tried, tried[0].shape[2] - wrong)

    def make_room(self, tokens: int) -> None:
        """Room for so many more tokens in a ring, at once or when it is made."""
        self._room = tokens
        if self.ring is not None:
            self.ring.make_room(tokens)

    def lay_in_order(self) -> None:
        """The window of a ring in its order, as it may be longer than that for a while.

        Raises CacheError where rows saw different numbers of tokens.
        """
        self._check_even()
        if self.ring is not None:
            keys, values = self.ring.in_order()
            self.__dict__.update(ring=None, _keys=keys, _values=values, _seen=self.ring.longest)

    def _check_even(self) -> None:
        if self.ring is not None and not self.ring.is_even:
            raise CacheError(
                "rows of different lengths take one token at a time where the model has sliding windows; take rows out "
                "first (cache.alone), or give each its own cache."
            )

    # --- rows --------------------------------------------------------------------------------------------------

    def is_joinable(self) -> bool:
        """True if rows of other caches may stand beside those of this one: they go by rings from then on."""
        return self.is_initialized and not self.record_past and reads(self.tensors()[0])

    def join(self, others: Sequence[CompactSlidingLayer]) -> None:
        """Adds the rows of other layers behind this one's."""
        ring = self._as_ring().joined([other._as_ring() for other in others])
        self.__dict__.update(ring=ring, _keys=None, _values=None)

    def leave_alone(self, row: int, seen: int) -> None:
        """Only one row is left, of so many tokens, as if there had never been others."""
        keys, values = self._as_ring().selected(torch.tensor([row], device="cpu")).in_order()
        self.__dict__.update(ring=None, _keys=keys, _values=values, _seen=seen)

    def _as_ring(self) -> WindowRing:
        if self.ring is not None:
            return self.ring
        return WindowRing.of(self.keys, self.values, self.sliding_window, self.cumulative_length, self._room)

    # --- tokens that are taken back ----------------------------------------------------------------------------

    def mark(self) -> SlidingMark | RingMark | None:
        """The layer before the next tokens come, of a ring before the next one; None while it is empty."""
        if self.ring is not None:
            return RingMark(self.ring.seen.copy(), self.ring)
        return SlidingMark(self.cumulative_length, self.keys, self.values) if self.is_initialized else None

    def came_since(self, mark: SlidingMark | RingMark | None) -> int:
        """Tokens that came since a mark."""
        if mark is None:
            return self.cumulative_length
        before = mark.seen if isinstance(mark, SlidingMark) else int(mark.seen.max(initial=0))
        return self.cumulative_length - before

    def shorten(self, mark: SlidingMark, new: int) -> SlidingMark:
        """A mark that holds only what `new` tokens pushed out, now that they came."""
        out = max(0, mark.keys.shape[-2] + new - self.keys.shape[-2])
        keys, values = mark.keys[..., :out, :].clone(), mark.values[..., :out, :].clone()
        return SlidingMark(mark.seen, keys, values, rest=max(0, mark.keys.shape[-2] - out))

    def take_back(self, mark: SlidingMark | RingMark | None) -> None:
        """Puts the layer back to a mark; None: it was reached, and nothing was done."""
        if isinstance(mark, RingMark):
            mark.ring.back_to(mark.seen)
            self.__dict__.update(ring=mark.ring, _keys=None, _values=None, _tried=None)
            return
        if mark is None or self.cumulative_length == mark.seen:
            return
        keys, values = mark.keys, mark.values
        if mark.rest is not None:
            keys = torch.cat([keys, self.keys[..., : mark.rest, :]], dim=-2)
            values = torch.cat([values, self.values[..., : mark.rest, :]], dim=-2)
        # In one step, so that an interrupt finds all of it done or nothing.
        self.__dict__.update(ring=None, _keys=keys, _values=values, _seen=mark.seen)

    def _own(self) -> None:
        if self.keys.untyped_storage().nbytes() > self.keys.nbytes:
            self.keys, self.values = self.keys.detach().clone(), self.values.detach().clone()
        elif self.keys.requires_grad or self.values.requires_grad:
            self.keys, self.values = self.keys.detach(), self.values.detach()
