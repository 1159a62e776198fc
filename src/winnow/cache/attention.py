"""The attention function that transformers calls, and the mask function beside it.

Registered under the name "winnow"; nothing of transformers or of a model is patched. Calls whose keys do not come
from a compressed layer (sliding layers, vision towers, other caches, no cache) get ordinary attention, but for single
tokens of sliding layers, which rings take.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import causal_mask_function, sdpa_mask

from winnow.cache.another_prompt import check_shown
from winnow.cache.dense import dense_attention, padded_attention
from winnow.cache.gradients import check_no_gradients
from winnow.cache.handle import Handle, Phase, handle_of
from winnow.cache.length import LogicalLength
from winnow.cache.opaque import opaque
from winnow.cache.padding import on_host, places_of
from winnow.cache.paid import paid_attention
from winnow.cache.sliding_step import over_window
from winnow.cache.window_mask import WindowMask, window_mask
from winnow.errors import OWN_CACHE, CacheError
from winnow.kernels.interface import AttentionSpec
from winnow.kernels.recording import this_thread
from winnow.models.carrier import plain

IMPLEMENTATION = "winnow"

UNSUPPORTED = ("position_bias", "alibi", "head_mask", "layer_head_mask")
"""Attention arguments that change the result and that the compressed form does not know."""
CHOSEN = ("indices", "block_indices", "sinks")
"""Arguments by which sparse models tell the tokens, and the sinks, of a query; eager and sdpa get a mask instead."""
OF_TORCH = ("position_bias", "cache")
"""Arguments of models in other caches, or without one, that transformers' function for sdpa acts on."""
HIDDEN = -1e3
"""Additive mask from which on a key is not seen: e^-1000 is 0 in every dtype; the mildest such masks have -1e4."""
_Asked = tuple[Tensor, Tensor, Tensor, Tensor | None]
"""Queries, keys, values and mask."""
_REFUSED = frozenset(("output_attentions", *UNSUPPORTED, *CHOSEN))


@opaque
def winnow_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,  # the sixth, as transformers' own functions have it: others wrap them by place
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of query [R, Hq, Q, D] over what key [R, H, *, D] and value [R, H, *, Dv] stand for.

    Returns ([R, Q, Hq, Dv], None): there are no attention weights to return.
    """
    handle = handle_of(key)
    is_usual = _REFUSED.isdisjoint(kwargs)
    if handle is not None and is_usual and attention_mask is None and (handle.values is value or handle.is_expanded):
        attended = handle.layer.attend_token(handle, module, query, key, value, scaling, softcap, s_aux)
        if attended is not None:
            return attended, None
    spec = AttentionSpec(query.shape[-1] ** -0.5 if scaling is None else scaling, softcap, s_aux)
    if handle is None:

        def over(keys: Tensor, values: Tensor) -> Tensor:
            return _ordinary(module, query, keys, values, attention_mask, spec, dropout, is_causal, kwargs)

        return over_window(query, key, value, spec, attention_mask, is_usual and not dropout, over), None
    handle.values = None
    key, value = plain(key), plain(value)
    if attention_mask is not None:
        attention_mask = _flat(attention_mask)
    # A second layer that shares these keys and values finds them already stored.
    first, handle.taken = not handle.taken, True
    _check(handle, module, query, attention_mask, spec, kwargs, first)
    if handle.phase is Phase.TAIL:
        output = _over_tail(handle, query, key, value, attention_mask, spec)
        if first and attention_mask is None:
            handle.layer.attended_over(query)
    else:
        prompt, behind = _divided(handle, query, key, value, attention_mask)
        output = _over_prompt(handle, module, prompt, spec, dropout, first)
        if behind is not None:
            if first:
                handle.layer.settle()
            output = torch.cat([output, _over_tail(handle, *behind, spec)], dim=1)
    if first:
        handle.layer.finish()
    return output, None


@opaque
def winnow_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    **kwargs: Any,
) -> Tensor | None:
    """No mask where nothing is padding; the 2-D validity [R, N] of a padded prompt; [R, Q] of a padded chunk.

    For models that leave queries out of masks, that validity in four dimensions, which `_flat` undoes.
    Masks for other caches, and prompts with a pattern of their own (bidirectional image tokens), are transformers'
    boolean 4-D masks. Those of sliding windows without padding are a `WindowMask`, which has entries when asked.
    """
    if not isinstance(kv_length, LogicalLength):
        if this_thread.recording is not None:
            return None  # a ring keeps its window by itself, and a mask would have to be larger every time
        sizes = (batch_size, q_length, kv_length, q_offset, kv_offset)
        windowed = window_mask(sizes, mask_function, attention_mask, kwargs)
        if windowed is not None:
            return windowed
        if 1 < q_length != kv_length:
            # Without a mask, `_ordinary` takes fewer queries for the last ones; an empty static cache's are the first.
            kwargs["allow_is_causal_skip"] = False
        mask = sdpa_mask(*sizes, mask_function, attention_mask, **kwargs)
        return None if q_length == 1 and _hides_nothing(mask) else mask
    # Here, as nothing was changed yet: sliding and linear layers would fail in the middle of the pass.
    kv_length.holder.check_rows(batch_size)
    pattern, config = None, kwargs.get("config")
    if mask_function is not causal_mask_function and q_length > 1:
        sizes = (batch_size, q_length, int(kv_length), q_offset, kv_offset)
        pattern = _own_pattern(sizes, mask_function, attention_mask, kwargs)
    if kv_length.compressed:
        _check_causal(pattern)
        return _sliceable(_chunk_validity(attention_mask, q_length, kv_length), config, queries=True)
    if pattern is not None:
        return pattern
    if attention_mask is None:
        return None
    valid = attention_mask[:, :kv_length].bool()
    if bool(on_host(valid).all()):
        return None
    if attention_mask.shape[-1] < kv_length:
        raise CacheError(
            f"the attention mask covers {attention_mask.shape[-1]} tokens, but the prompt has {int(kv_length)}; pass "
            "the mask of the whole prompt."
        )
    return _sliceable(valid, config, queries=False)


def _hides_nothing(mask: Tensor | None) -> bool:
    """True for a mask of full windows on the CPU, which kernels do without; others would have to wait for a device."""
    return mask is not None and mask.device.type == "cpu" and mask.dtype == torch.bool and bool(mask.all())


def register() -> None:
    """Makes `model.set_attn_implementation("winnow")` known to transformers."""
    AttentionInterface.register(IMPLEMENTATION, winnow_attention)
    AttentionMaskInterface.register(IMPLEMENTATION, winnow_mask)


def _check(
    handle: Handle,
    module: nn.Module,
    query: Tensor,
    mask: Tensor | None,
    spec: AttentionSpec,
    kwargs: dict[str, Any],
    first: bool,
) -> None:
    """Raises CacheError for a call that would go wrong; its tokens are then as if they had never come."""
    try:
        if first:
            handle.layer.attended_by(module, spec)
        _refuse_arguments(kwargs)
        if handle.earlier or handle.behind:
            check_no_gradients(query)
        if handle.phase is Phase.TAIL and mask is not None and mask.dim() != 2:
            raise CacheError(
                "a 4-D attention mask cannot be applied to a compressed prompt; pass a 2-D mask, or none, after the "
                "prompt."
            )
        if mask is not None and mask.dtype != torch.bool and not mask.is_floating_point():
            raise CacheError(
                f"a 4-D attention mask of {mask.dtype} is not supported; make it boolean (True for tokens that are "
                "seen), or floating-point (0 for these, the lowest number for others), or pass a 2-D mask."
            )
        if first and handle.new_tokens > 1 and (handle.phase is Phase.TAIL or handle.earlier):
            handle.layer.check_positions(kwargs.get("position_ids"), mask)
    except CacheError:
        if first:
            handle.layer.give_up()
        raise


def _refuse_arguments(kwargs: dict[str, Any]) -> None:
    if _REFUSED.isdisjoint(kwargs):
        return
    if kwargs.get("output_attentions"):
        raise CacheError(
            "attention weights are never formed over a compressed cache; leave output_attentions off, or use the "
            'model with set_attn_implementation("eager") and its own cache.'
        )
    _refuse_chosen(kwargs)
    for name in UNSUPPORTED:
        if kwargs.get(name) is not None:
            raise CacheError(
                f"this model adds {name!r} to its attention logits, which winnow does not support; use the model's "
                "own cache."
            )


def _refuse_chosen(kwargs: dict[str, Any]) -> None:
    for name in CHOSEN:
        if kwargs.get(name) is not None:
            raise CacheError(
                f"this model uses {name!r} to choose what a query attends to, which winnow does not support; "
                f"{OWN_CACHE}."
            )


def _ordinary(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    spec: AttentionSpec,
    dropout: float,
    is_causal: bool | None,
    kwargs: dict[str, Any],
) -> Tensor:
    _refuse_chosen(kwargs)
    if mask is not None and (mask.dim() == 2 or isinstance(mask, _Validity)):
        raise CacheError(
            "a layer that winnow does not compress got the mask of compressed layers, so winnow does not support this "
            f"model; {OWN_CACHE}."
        )
    # torch would align queries that are fewer than keys with the first of these (Gemma 4 leaves the first ones out).
    torchs = any(kwargs.get(name) is not None for name in OF_TORCH)
    window = None
    if isinstance(mask, WindowMask):
        window = mask.window if not torchs and mask.shape[2:] == (query.shape[2], key.shape[2]) else None
        mask = mask.entries() if window is None else None
    causal = 1 < query.shape[2] <= key.shape[2] and mask is None and not torchs
    if spec.softcap is None and spec.sinks is None and not causal and window is None:
        return sdpa_attention_forward(
            module,
            query,
            key,
            value,
            mask,
            dropout=dropout,
            scaling=spec.scaling,
            is_causal=is_causal,
            **kwargs,
        )[0]
    return dense_attention(module, query, key, value, mask, spec, dropout, is_causal, window)


def _own_pattern(
    sizes: tuple[int, ...], mask_function: Callable[..., Any], attention_mask: Tensor | None, kwargs: dict[str, Any]
) -> Tensor | None:
    """The mask [R, 1, Q, N] of a function of its own; None where it is the causal one, as of texts without images."""
    pattern = sdpa_mask(*sizes, mask_function, attention_mask, **kwargs)
    usual = kwargs | {"allow_is_causal_skip": False, "use_vmap": False}
    causal = sdpa_mask(*sizes, causal_mask_function, attention_mask, **usual)
    return None if pattern is None or torch.equal(pattern, causal) else pattern


class _Validity(Tensor):
    """Validity of padded tokens as a 4-D mask: [R, 1, 1, N] of a prompt, [R, 1, Q, 1] of a chunk."""

    flat: Tensor | None = None
    """In its two dimensions, where a layer asked for it: one tensor, so that all layers bring it to the host once."""


def _sliceable(valid: Tensor | None, config: Any, queries: bool) -> Tensor | None:
    """Validity [R, *] as a model may cut it: one whose last layers share keys may ask with a few queries (Gemma 4).

    It leaves the others out of `mask[:, :, queries]`. queries: True if tokens are queries, too.
    """
    if valid is None or not getattr(config, "num_kv_shared_layers", None):
        return valid
    return (valid[:, None, :, None] if queries else valid[:, None, None]).as_subclass(_Validity)


def _flat(mask: Tensor) -> Tensor:
    """A mask, or validity in its two dimensions."""
    if not isinstance(mask, _Validity):
        return mask
    if mask.flat is None:
        mask.flat = mask.as_subclass(Tensor).flatten(1)
    return mask.flat


def _divided(
    handle: Handle, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> tuple[_Asked, _Asked | None]:
    """Queries, keys, values and mask of a prompt, and of what came behind its end, which asks its compressed form.

    A pattern of its own, which a 4-D mask is, stands for one piece.
    """
    if not handle.behind or (mask is not None and mask.dim() != 2):
        return (query, key, value, mask), None
    # Layers that share keys may be asked with fewer queries than there are tokens behind the prompt (Gemma 4).
    asked, length = max(0, query.shape[2] - handle.behind), key.shape[2] - handle.behind
    behind = query.shape[2] - asked
    before, after = (None, None) if mask is None else (mask[:, :length], mask[:, key.shape[2] - behind :])
    return (
        (query[:, :, :asked], key[:, :, :length], value[:, :, :length], before),
        (query[:, :, asked:], key[:, :, length:], value[:, :, length:], after),
    )


def _over_prompt(
    handle: Handle, module: nn.Module, asked: _Asked, spec: AttentionSpec, dropout: float, first: bool
) -> Tensor:
    query, key, value, mask = asked
    if not query.shape[2]:
        return query.new_zeros(query.shape[0], 0, query.shape[1], value.shape[-1])
    paid: Tensor | None = None
    padded = mask is not None and mask.dim() == 2
    valid = mask if padded else _validity(mask, query.shape[0], key.shape[2])
    if (mask is None or padded) and first and handle.phase is not Phase.REPLAY and handle.layer.sums_attention:
        output, paid = paid_attention(module, query, key, value, valid, spec, dropout)
    elif mask is not None and padded:
        output = padded_attention(module, query, key, value, mask, spec)
    else:
        output = dense_attention(module, query, key, value, mask, spec, dropout)
    if first and handle.phase is Phase.PROMPT:
        handle.layer.finish_prompt(query, key, value, valid, paid)
    elif first and handle.phase is Phase.REPLAY:
        handle.layer.finish_replay(query, key, value)
    elif first:
        handle.layer.finish_part(query, key.shape[2], valid, paid)
    return output


def _over_tail(
    handle: Handle,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    valid: Tensor | None,
    spec: AttentionSpec,
) -> Tensor:
    over = handle.over
    if over is None:
        over = handle.over = handle.layer.append(query, key, value, valid)
    if valid is None:
        return over.plan(spec).run(query)
    output = query.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[-1])
    for row, there in enumerate(on_host(valid)):
        if bool(there.any()):
            asking = places_of(there, query.device)
            output[row, asking] = over.row_plan(row, spec).run(query[row : row + 1, :, asking])[0]
    return output


def _validity(mask: Tensor | None, rows: int, length: int) -> Tensor | None:
    """[R, N] from a 4-D prompt mask: a token that does not see itself is padding."""
    if mask is None:
        return None
    if mask.shape[-2] != length:
        raise CacheError(
            "a prompt with its own mask (image tokens that see each other, a custom 4-D mask) must arrive in one "
            "piece: leave out prompt_length and prefill chunking."
        )
    diagonal = torch.diagonal(mask[:, 0], dim1=-2, dim2=-1)
    valid = diagonal if diagonal.dtype == torch.bool else diagonal > HIDDEN
    return None if bool(valid.all()) else valid.expand(rows, length)


def _check_causal(pattern: Tensor | None) -> None:
    """Raises CacheError where the newest tokens [.., Q, N] are to see tokens after themselves."""
    if pattern is None:
        return
    queries = pattern.shape[-2]
    if bool(pattern[..., -queries:].triu(1).any()):
        raise CacheError(
            "tokens that see each other in both directions (images) must be part of the prompt, but these come after "
            "its compression; put them into the prompt."
        )


def _chunk_validity(attention_mask: Tensor | None, queries: int, length: LogicalLength) -> Tensor | None:
    """[R, Q] validity of the newest of `length` tokens, or None where they all count; a single token always does.

    Raises CacheError for a mask of the whole conversation that hides tokens which rows hold.
    """
    if attention_mask is None or queries == 1:
        return None
    # A mask may be made once for a whole conversation, and then goes on behind these tokens.
    mask = attention_mask[:, :length].bool()
    if mask.shape[1] == length:
        check_shown(mask[:, :-queries].sum(dim=1), length.holder.held_tokens())
    valid = mask[:, -queries:]
    return None if bool(on_host(valid).all()) else valid
