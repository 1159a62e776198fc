"""The mask of a causal sliding window, told by its sizes: its Q·N entries are not made while nobody looks at them."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from transformers.masking_utils import and_masks, causal_mask_function, sliding_window_overlay
from transformers.utils.import_utils import is_tracing

MaskSizes = tuple[int, int, int, int, int]
"""Rows R, queries Q, tokens N, and the positions of the first query and of the first token."""


class WindowMask(Tensor):
    """A boolean mask [R, 1, Q, N]: query i of the last Q tokens sees its own, the (N − Q + i)-th, and those before it.

    Of all these it sees `window`. The mask of the last queries, as models cut it, is one of these again. Every other
    operation, but for questions about sizes, works on the entries, and gives what it gives for an ordinary mask. The
    entries may be changed by it, so the mask stands for a window no longer.
    """

    _window: int
    _cut_from: WindowMask | None
    """The mask of more queries, whose entries these are."""
    _entries: Tensor | None

    # Subclasses otherwise make their own kind of what operations give.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, rows: int, queries: int, tokens: int, window: int, device: torch.device) -> WindowMask:
        """A mask of these sizes on a device."""
        sizes, strides = (rows, 1, queries, tokens), (0, queries * tokens, tokens, 1)
        made: WindowMask = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, sizes, strides=strides, dtype=torch.bool, device=device
        )
        made._window, made._cut_from, made._entries = window, None, None
        return made

    @property
    def window(self) -> int | None:
        """Tokens that a query sees at most; None once the entries were made."""
        made = self._entries is not None or (self._cut_from is not None and self._cut_from.window is None)
        return None if made else self._window

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """The result of an operation on the entries, or the mask of the last queries."""
        queries = _last_queries(*args) if func is torch.ops.aten.slice.Tensor else 0
        if func is torch.ops.aten.alias.default:  # a cut that leaves nothing out
            queries = args[0].shape[2]
        if queries:
            return args[0]._of_last(queries)
        return func(*tree_map(_ordinary, args), **tree_map(_ordinary, kwargs or {}))

    def __repr__(self, **options: Any) -> str:  # type: ignore[override]
        """The sizes."""
        return f"WindowMask({list(self.shape)}, window={self.window})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        """The entries, copied."""
        return self.entries().clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """The entries, as pickle takes them."""
        return self.entries().__reduce_ex__(protocol)

    def as_subclass(self, cls: Any) -> Any:
        """The entries as a tensor of another kind."""
        return self.entries().as_subclass(cls)

    def numpy(self, **options: Any) -> Any:
        """The entries for numpy."""
        return self.entries().numpy(**options)

    def tolist(self) -> Any:
        """The entries as lists."""
        return self.entries().tolist()

    def entries(self) -> Tensor:
        """The same as an ordinary mask; rows share the entries, as in transformers' masks."""
        if self._entries is None:
            rows, _, queries, tokens = self.shape
            if self._cut_from is not None:
                self._entries = self._cut_from.entries()[:, :, -queries:]
            else:
                self._entries = window_entries(queries, tokens, self.device, self._window).expand(rows, -1, -1, -1)
        return self._entries

    def _of_last(self, queries: int) -> WindowMask:
        cut = WindowMask(self.shape[0], queries, self.shape[3], self._window, self.device)
        cut._cut_from = self
        return cut


def window_entries(queries: int, tokens: int, device: torch.device, window: int | None = None) -> Tensor:
    """[1, 1, Q, N] bool: query i of the last Q tokens sees the first N − Q + i + 1, the last `window` of these."""
    seen = torch.ones(1, 1, queries, tokens, dtype=torch.bool, device=device).tril(tokens - queries)
    return seen if window is None else seen.triu(tokens - queries - window + 1)


def window_mask(
    sizes: MaskSizes, mask_function: Callable[..., Any], attention_mask: Tensor | None, options: dict[str, Any]
) -> WindowMask | None:
    """A mask that is nothing but a causal sliding window, of a prompt or chunk; None for any other.

    mask_function, attention_mask and options are those of transformers' mask functions. None, too, for a prompt that is
    shorter than its window, which transformers gives no mask at all, and while a graph is traced.
    """
    rows, queries, tokens, query_offset, token_offset = sizes
    window = options.get("local_size")
    if not 1 < queries <= tokens or not isinstance(window, int):
        return None
    if isinstance(query_offset, Tensor) or isinstance(token_offset, Tensor):
        return None  # places of a static cache, which nobody is to wait for
    is_whole = query_offset + queries == token_offset + tokens  # no empty slots of a static cache
    is_short = queries == tokens < window
    if not is_whole or is_short or not options.get("allow_is_causal_skip", True) or is_tracing(attention_mask):
        return None
    # Not by its values, which might differ in places that nobody looked at.
    if not _is_same(mask_function, and_masks(sliding_window_overlay(window), causal_mask_function)):
        return None
    if _hides_tokens(attention_mask, token_offset, tokens):
        return None
    return WindowMask(rows, queries, tokens, window, torch.device(options.get("device", "cpu")))


def _is_same(one: Any, other: Any) -> bool:
    """True for functions of the same code over the same whole numbers and functions."""
    if isinstance(one, FunctionType) and isinstance(other, FunctionType):
        return one.__code__ is other.__code__ and _is_same(_enclosed(one), _enclosed(other))
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return type(one) is type(other) is int and one == other


def _enclosed(function: FunctionType) -> tuple[Any, ...]:
    return tuple(cell.cell_contents for cell in function.__closure__ or ())


def _hides_tokens(attention_mask: Tensor | None, first: int, tokens: int) -> bool:
    """True if a mask [R, *] hides any of some tokens, as it does those behind its end."""
    if attention_mask is None:
        return False
    shown = attention_mask[:, first : first + tokens]
    return shown.shape[1] < tokens or not bool(shown.all())


def _last_queries(mask: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> int:
    """Queries of a slice that takes the last ones of a mask [R, 1, Q, N]; 0 for any other slice."""
    first, behind, _ = slice(start, end).indices(mask.shape[2])
    return behind - first if (dim, behind, step) == (2, mask.shape[2], 1) else 0


def _ordinary(argument: Any) -> Any:
    return argument.entries() if isinstance(argument, WindowMask) else argument
