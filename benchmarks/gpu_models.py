"""Pieces of `gpu.py` about a whole model with random weights: prefill, decoding, memory, batches."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, StaticCache
from transformers.generation import LogitsProcessor, LogitsProcessorList

import winnow
from gpu_clock import Clock, Run, free_bytes, peak_bytes, peak_reset, wait
from winnow.models.cache_argument import generation_name, with_cache

STOCK = "stock"
"""transformers' DynamicCache with sdpa."""
STATIC = "static"
"""transformers' StaticCache with sdpa, whose steps can be captured in a CUDA graph as well."""
REPEATED = 1 << 14
"""Tokens of a batch up to which a prefill is timed several times."""
PREFILLS = 3
WRITTEN = 48
"""Tokens of an answer by `generate`."""
READ_AGAIN = 1 << 13
"""Tokens of a row up to which an answer is written to them."""


class Setting(NamedTuple):
    """A cache, a prompt and how often."""

    cache: str
    tokens: int
    rows: int = 1
    compiled: bool = False
    """True if torch compiles the model's layers."""

    @property
    def name(self) -> str:
        """The piece of work in words."""
        return f"{self.cache}, {self.tokens} tokens, {self.rows} rows" + (", compiled layers" if self.compiled else "")


def build(config: LlamaConfig, device: torch.device, dtype: torch.dtype) -> LlamaForCausalLM:
    """The model, its weights made where they stay."""
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)


def eight_billion() -> LlamaConfig:
    """The shape of Llama 3.1 8B."""
    return LlamaConfig(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=131072,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
    )


def miniature() -> LlamaConfig:
    """As few weights as there can be."""
    return LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
    )


def dense_bytes(model: PreTrainedModel, tokens: int) -> int:
    """Bytes of a full cache of one row."""
    config = model.config
    return 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * tokens * model.dtype.itemsize


def measure_model(setting: Setting, model: PreTrainedModel, clock: Clock) -> dict[str, Any]:
    """Prefill, decoding and memory of one cache."""
    with _compiled_layers(model) if setting.compiled else nullcontext():
        return _measured(setting, model, clock)


@contextmanager
def _compiled_layers(model: PreTrainedModel) -> Iterator[None]:
    """Within, torch compiles the layers of a model, once for prompts and once for steps."""
    backend = "inductor" if model.device.type == "cuda" else "eager"
    with torch._dynamo.config.patch(allow_unspec_int_on_nn_module=True):
        for layer in model.model.layers:
            layer.compile(backend=backend)
        try:
            yield
        finally:
            for layer in model.model.layers:
                layer._compiled_call_impl = None


def _measured(setting: Setting, model: PreTrainedModel, clock: Clock) -> dict[str, Any]:
    needed = setting.rows * dense_bytes(model, setting.tokens)
    # Activations of a prefill are a few times as wide as the hidden state.
    needed += setting.rows * setting.tokens * model.config.intermediate_size * model.dtype.itemsize * 4
    if needed > 0.9 * free_bytes(clock.device):
        return {"skipped": f"may need {needed / 1e9:.0f} GB"}
    shape = (setting.rows, setting.tokens)
    ids = torch.randint(0, model.config.vocab_size, shape, generator=torch.Generator().manual_seed(1)).to(clock.device)
    _warm_up(setting, model, ids)
    before = peak_reset(clock.device)
    _forward(model, ids, _cache(setting, model, clock.rounds))
    prefill_peak = peak_bytes(clock.device) - before
    prefills = []
    for _ in range(PREFILLS if setting.rows * setting.tokens <= REPEATED else 1):
        cache = _cache(setting, model, clock.rounds)
        prefills.append(clock.once(partial(_forward, model, ids, cache)))
    token = ids[:, :1]
    decode_ms = _median_ms(lambda: _forward(model, token, cache), clock)
    return {
        "prefill_ms": statistics.median(prefills),
        "decode_ms": decode_ms,
        "tokens_s": setting.rows * 1e3 / decode_ms,
        "held_bytes": _held(cache),
        "prefill_peak_bytes": prefill_peak,
        "rows_that_fit": int(0.9 * (free_bytes(clock.device) + _held(cache)) // (_held(cache) / setting.rows)),
        **_graphed(model, cache, token[:, 0], clock),
        "generate_ms": _generated_ms(setting, model, ids, clock),
    }


def _median_ms(step: Run, clock: Clock) -> float:
    """Milliseconds of a step, once two were taken: the first makes tables, or a graph."""
    return statistics.median([clock.once(step) for _ in range(clock.rounds + 2)][2:])


def _graphed(model: PreTrainedModel, cache: Cache, token: Tensor, clock: Clock) -> dict[str, Any]:
    """The same for steps that are replayed from a CUDA graph; None without a GPU, and for the stock cache."""
    if clock.device.type == "cuda" and isinstance(cache, StaticCache):
        graph = clock.captured(lambda: _forward(model, token[:, None], cache))
        if graph is None:
            return {"graphed_ms": None, "failed": {"graphed": "the step cannot be captured"}}
        return {"graphed_ms": _median_ms(graph.replay, clock)}
    if clock.device.type != "cuda" or not isinstance(cache, winnow.CompressedCache):
        return {"graphed_ms": None}
    decoder = winnow.GraphedDecoder(model, cache, room=clock.rounds + 3)
    try:
        return {"graphed_ms": _median_ms(lambda: decoder.step(token), clock)}
    except winnow.CacheError as problem:
        return {"graphed_ms": None, "failed": {"graphed": str(problem)}}


class _Marks(LogitsProcessor):  # type: ignore[misc]
    """Notes when the logits of every token are there."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.seconds: list[float] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores as they are."""
        wait(self._device)
        self.seconds.append(time.perf_counter())
        return scores


def _generated_ms(setting: Setting, model: PreTrainedModel, ids: Tensor, clock: Clock) -> float | None:
    """Milliseconds of a token of an answer by `model.generate`, the capture of graphs among them.

    None for the static cache, for which `generate` compiles the model, and for prompts that take long to read again.
    """
    if setting.cache == STATIC or setting.tokens > READ_AGAIN:
        return None
    marks = _Marks(clock.device)
    settings = GenerationConfig(do_sample=False, max_new_tokens=WRITTEN, pad_token_id=0)
    cache = _cache(setting, model, clock.rounds)
    with winnow.step_graphs(model) if setting.cache != STOCK else nullcontext():
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            **{generation_name(): cache},
            generation_config=settings,
            logits_processor=LogitsProcessorList([marks]),
        )
    return 1e3 * (marks.seconds[-1] - marks.seconds[0]) / (len(marks.seconds) - 1)


def _warm_up(setting: Setting, model: PreTrainedModel, ids: Tensor) -> None:
    """Compiles the kernels that the cache needs, and lets libraries choose theirs."""
    cache = _cache(setting, model, rounds=1)
    few = ids[:, : min(1024, ids.shape[1])]
    for step in (few, few[:, :1], few[:, :1]):
        _forward(model, step, cache)


def _cache(setting: Setting, model: PreTrainedModel, rounds: int) -> Cache:
    """An empty one, and the attention it needs."""
    if setting.cache in (STOCK, STATIC):
        model.set_attn_implementation("sdpa")
        if setting.cache == STOCK:
            return DynamicCache(config=model.config)
        return StaticCache(config=model.config, max_cache_len=setting.tokens + 2 * rounds + 8)
    model.set_attn_implementation("winnow")
    return winnow.CompressedCache(model, setting.cache)


@torch.no_grad()
def _forward(model: PreTrainedModel, ids: Tensor, cache: Cache) -> None:
    model(ids, **with_cache(model, cache), logits_to_keep=1)


def _held(cache: Cache) -> int:
    if isinstance(cache, winnow.CompressedCache):
        return cache.stats().held_bytes
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
