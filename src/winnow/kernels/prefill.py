"""Causal attention over a dense prompt with the compiled kernels, and what every token was paid in the same pass."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from winnow.kernels import native
from winnow.kernels.native_args import DTYPES, PrefillArgs, address
from winnow.kernels.recording import refuse_recording
from winnow.kernels.segments import AttentionSpec

_MOST_TOKENS = 1 << 24
"""Numbers of tokens that fp32 tells apart."""
_MANY_QUERIES = 1024
"""Queries of a KV head that read its keys and values so often that a copy of them side by side is worth its time."""


class Prompt(NamedTuple):
    """Queries, keys and values of one sequence; strides are free but for numbers of a head, which lie side by side."""

    queries: Tensor
    """[Hq, Q, D] of the last Q tokens."""
    keys: Tensor
    """[H, N, D]"""
    values: Tensor
    """[H, N, Dv]"""


class Attention(NamedTuple):
    """Attention over a prompt, and its sums over the queries."""

    output: Tensor
    """[Q, Hq, Dv] in the dtype of the prompt."""
    paid: Tensor
    """[H, N] fp32: the attention that all queries together paid every token, the mean over the query group."""


def supports(queries: Tensor, keys: Tensor) -> bool:
    """True if the compiled kernels can attend with queries [..., Q, D] over keys [..., N, D]."""
    known = native.reads(keys) and queries.is_cpu and queries.dtype == keys.dtype
    return known and 0 < queries.shape[-2] <= keys.shape[-2] < _MOST_TOKENS


def lays_rows(queries: Tensor, keys: Tensor, window: int | None = None) -> bool:
    """True if attention of supported queries [Hq, Q, D] over keys [H, N, D], with its output, lays these anew first.

    So it does where products of what is laid outrun sdpa's: in tiles of bfloat16 (AMX) if there is no window, and in
    panels (AVX2 alone, or Intel's AVX-512). Of prompts in bfloat16, tiles round numerators of the softmax to bfloat16,
    in the output, as sdpa does, and in what was paid; panels round them to 14 bits of the largest of 64 tokens beside
    each other, and values to 13, in the output alone.
    """
    asked = _queries_of_a_head(queries, keys), _window_over(keys, window)
    return bool(native.loaded_library().winnow_prefill_lays(DTYPES[keys.dtype], *asked))


def outruns_sdpa() -> bool:
    """True on processors where attention of any supported prompt takes less time than torch's sdpa.

    These are AMD's with AVX-512: a fifth to two fifths of sdpa's time in every dtype (docs/kernels.md).
    """
    return native.is_zen()


def attend(prompt: Prompt, spec: AttentionSpec, window: int | None = None) -> Attention:
    """Causal attention of the last Q tokens over all N, and what they paid; the prompt must be supported.

    window: the tokens that a query sees, its own and those before it; None: all. Raises ValueError for shapes that do
    not fit together, and for a window of no tokens.
    """
    output, paid = _output(prompt), _paid(prompt.keys)
    _run(prompt, spec, output, paid, window)
    return Attention(output, paid)


def attended(prompt: Prompt, spec: AttentionSpec, window: int | None = None) -> Tensor:
    """The output of `attend` alone."""
    output = _output(prompt)
    _run(prompt, spec, output, None, window)
    return output


def paid(queries: Tensor, keys: Tensor, spec: AttentionSpec) -> Tensor:
    """Attention paid by queries [Hq, Q, D] of the last tokens to keys [H, N, D], as of `attend`, without its output."""
    found = _paid(keys)
    _run(Prompt(queries, keys, keys[..., :0]), spec, None, found, None)
    return found


def _output(prompt: Prompt) -> Tensor:
    heads, queries, _ = prompt.queries.shape
    return prompt.values.new_empty(queries, heads, prompt.values.shape[-1])


def _paid(keys: Tensor) -> Tensor:
    return torch.empty(keys.shape[:2], dtype=torch.float32, device="cpu")


def _run(prompt: Prompt, spec: AttentionSpec, output: Tensor | None, paid: Tensor | None, window: int | None) -> None:
    queries, keys, values = (each if each.stride(-1) == 1 else each.contiguous() for each in prompt)
    _check(queries, keys, values, spec)
    if window is not None and window < 1:
        raise ValueError(f"a window of {window} tokens shows a query nothing, not even its own token")
    laid = output is not None and lays_rows(queries, keys, window)  # side by side
    reading = queries[:, :window]  # so many see a token
    if not laid and _queries_of_a_head(reading, keys) >= _MANY_QUERIES:
        keys, values = _side_by_side(keys), _side_by_side(values)
    sinks = None if spec.sinks is None else spec.sinks.detach().to(torch.float32).contiguous()
    args = PrefillArgs(
        heads=keys.shape[0],
        group_size=queries.shape[0] // keys.shape[0],
        queries=queries.shape[1],
        tokens=keys.shape[1],
        window=_window_over(keys, window),
        key_dim=keys.shape[2],
        value_dim=values.shape[2],
        query=queries.data_ptr(),
        keys=keys.data_ptr(),
        values=values.data_ptr(),
        query_head_stride=queries.stride(0),
        query_token_stride=queries.stride(1),
        key_head_stride=keys.stride(0),
        key_token_stride=keys.stride(1),
        value_head_stride=values.stride(0),
        value_token_stride=values.stride(1),
        sinks=address(sinks),
        output=address(output),
        paid=address(paid),
        scaling=spec.scaling,
        softcap=spec.softcap or 0.0,
        dtype=DTYPES[keys.dtype],
        threads=torch.get_num_threads(),
    )
    refuse_recording("attention over a prompt")
    if native.loaded_library().winnow_prefill(ctypes.byref(args)):
        raise MemoryError("no memory for the scratch of attention over a prompt; prefill it in smaller chunks")


def _window_over(keys: Tensor, window: int | None) -> int:
    """A window as the kernels take it, over keys [H, N, D]: 0 where it hides nothing."""
    return 0 if window is None or window >= keys.shape[-2] else window


def _queries_of_a_head(queries: Tensor, keys: Tensor) -> int:
    return queries.shape[0] // keys.shape[0] * queries.shape[1]


def _side_by_side(rows: Tensor) -> Tensor:
    """Rows [H, N, D], those of a head one after another.

    Models leave the heads of a token beside each other, so that rows of one head can lie in pages of their own.
    """
    return rows if rows.stride(1) == rows.shape[2] else rows.contiguous()


def _check(queries: Tensor, keys: Tensor, values: Tensor, spec: AttentionSpec) -> None:
    """Raises ValueError where the kernels would read or write what is not there."""
    heads, tokens, dim = keys.shape
    fits = supports(queries, keys) and heads > 0 and queries.shape[0] % heads == 0 and queries.shape[2] == dim
    fits = fits and values.shape[:2] == (heads, tokens) and values.dtype == keys.dtype and values.is_cpu
    if not fits or (spec.sinks is not None and spec.sinks.shape != queries.shape[:1]):
        raise ValueError(
            f"queries {list(queries.shape)} of {queries.dtype}, keys {list(keys.shape)} of {keys.dtype} and values "
            f"{list(values.shape)} of {values.dtype} do not fit together"
        )
