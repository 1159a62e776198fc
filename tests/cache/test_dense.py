"""Attention over dense keys and values: who computes it, and that all who may give the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache

from support.families import build, prompt
from support.instruction_sets import IN_WHOLE_NUMBERS, available, needs_native
from winnow.cache import dense
from winnow.cache.attention import IMPLEMENTATION
from winnow.kernels import native, prefill
from winnow.kernels.interface import AttentionSpec

DIM, GROUP, TOKENS = 32, 2, 50
SPEC = AttentionSpec(DIM**-0.5)
pytestmark = needs_native


class Grouped(nn.Module):
    """A layer as sdpa asks it."""

    num_key_value_groups = GROUP


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows that the compiled kernels attended with so far."""
    served: list[int] = []
    attended = prefill.attended

    def noted(prompt: prefill.Prompt, spec: AttentionSpec, window: int | None = None) -> Tensor:
        served.append(prompt.queries.shape[1])
        return attended(prompt, spec, window)

    monkeypatch.setattr(prefill, "attended", noted)
    return served


@pytest.fixture
def tiles() -> None:
    if "amx" not in available():
        pytest.skip("no amx here")


def drawn(rows: int, queries: int, dtype: torch.dtype, tokens: int = TOKENS) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    shapes = (rows, 2 * GROUP, queries, DIM), (rows, 2, tokens, DIM), (rows, 2, tokens, DIM)
    query, key, value = (torch.randn(*shape, generator=generator).to(dtype) for shape in shapes)
    return query, key, value


def attend(query: Tensor, key: Tensor, value: Tensor, dropout: float = 0.0, is_causal: bool | None = None) -> Tensor:
    return dense.dense_attention(Grouped(), query, key, value, None, SPEC, dropout, is_causal)


def expected(
    query: Tensor, key: Tensor, value: Tensor, window: int | None = None, spec: AttentionSpec = SPEC
) -> Tensor:
    keys, values = (each.double().repeat_interleave(GROUP, dim=1) for each in (key, value))
    logits = query.double() @ keys.mT * spec.scaling
    if spec.softcap:
        logits = spec.softcap * torch.tanh(logits / spec.softcap)
    queries, tokens = logits.shape[-2:]
    seen = torch.zeros(queries, tokens).bool()
    for i in range(queries):
        own = tokens - queries + i
        seen[i, max(0, own + 1 - (window or tokens)) : own + 1] = True
    logits = logits.masked_fill(~seen, -torch.inf)
    if spec.sinks is not None:
        logits = torch.cat([logits, spec.sinks.double()[None, :, None, None].expand(*logits.shape[:3], 1)], dim=-1)
    return (logits.softmax(-1)[..., :tokens] @ values).transpose(1, 2)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("queries", [TOKENS, 32])
def test_bfloat16_is_attended_to_in_tiles(tiles: None, compiled: list[int], rows: int, queries: int) -> None:
    asked = drawn(rows, queries, torch.bfloat16)
    torch.testing.assert_close(attend(*asked).double(), expected(*asked), atol=2e-2, rtol=2e-2)
    assert compiled == [queries] * rows


@pytest.fixture(params=["zen4", "zen5", "avx512bf16", "avx2", "portable"])
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """An instruction set without tiles, in use."""
    name, used = request.param, native.isa()
    if name not in available():
        pytest.skip(f"no {name} here")
    native.select_isa(name)
    yield name
    native.select_isa(used)


def test_whole_prompts_without_tiles_are_left_to_sdpa_where_it_is_faster(compiled: list[int], isa: str) -> None:
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        asked = drawn(1, TOKENS, dtype)
        torch.testing.assert_close(attend(*asked).double(), expected(*asked), atol=tolerance, rtol=tolerance)
    assert compiled == ([TOKENS, TOKENS] if isa in IN_WHOLE_NUMBERS or isa.startswith("zen") else [])


def test_chunks_are_not_left_to_sdpa(compiled: list[int], isa: str) -> None:
    asked = drawn(1, 20, torch.float32)
    torch.testing.assert_close(attend(*asked).double(), expected(*asked), atol=1e-5, rtol=1e-5)
    assert compiled == [20]


def test_dropout_gradients_and_what_is_not_causal_are_torchs(tiles: None, compiled: list[int]) -> None:
    query, key, value = drawn(1, TOKENS, torch.bfloat16)
    attend(query, key, value, dropout=0.5)
    attend(query, key, value, is_causal=False)
    attend(query.clone().requires_grad_(), key, value).sum().backward()
    assert not compiled


def test_prompts_in_other_caches_are_attended_to_by_the_same_rule(compiled: list[int], isa: str) -> None:
    """Not what is masked, a single token, or a prompt that gradients are wanted of."""
    model = build("llama", num_hidden_layers=2)
    ids, answers = prompt(1, 20), []
    for implementation in ("sdpa", IMPLEMENTATION):
        model.set_attn_implementation(implementation)
        cache = DynamicCache(config=model.config)
        with torch.no_grad():
            answers += [model(part, past_key_values=cache).logits for part in (ids[:, :12], ids[:, 12:13], ids[:, 13:])]
        assert compiled == ([12, 12] if implementation == IMPLEMENTATION and isa.startswith("zen") else [])
    for found, other in zip(answers[:3], answers[3:], strict=True):
        torch.testing.assert_close(found, other, atol=1e-4, rtol=1e-4)
    served = len(compiled)
    model(ids).logits.sum().backward()
    assert len(compiled) == served


WINDOWS = [1, 7, 40, TOKENS + 1]
SINKS = torch.linspace(-1, 1, 2 * GROUP)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("queries", [TOKENS, 20, 1])
def test_a_window_by_who_ever_attends(compiled: list[int], isa: str, queries: int, window: int) -> None:
    """By the kernels or by sdpa, and where sdpa cannot, by the kernels or as it is defined."""
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        asked = drawn(2, queries, dtype)
        for spec in (SPEC, SPEC._replace(softcap=5.0), SPEC._replace(sinks=SINKS)):
            found = dense.dense_attention(Grouped(), *asked, None, spec, window=window)
            assert found.dtype == dtype
            torch.testing.assert_close(found.double(), expected(*asked, window, spec), atol=tolerance, rtol=tolerance)
    assert bool(compiled) == (queries > 1)


@pytest.mark.parametrize("name", ["", "softcap", "sinks"])
@pytest.mark.parametrize("earlier", [0, 11])
def test_gradients_of_a_window(compiled: list[int], earlier: int, name: str) -> None:
    """More queries than are attended to at a time."""
    spec = SPEC._replace(**{"": {}, "softcap": {"softcap": 5.0}, "sinks": {"sinks": SINKS}}[name])
    asked = [each.double().requires_grad_() for each in drawn(2, 300, torch.float32, 300 + earlier)]
    expected(*asked, 9, spec).square().sum().backward()
    wanted = [each.grad for each in asked]
    given = [each.detach().float().requires_grad_() for each in asked]
    dense.dense_attention(Grouped(), *given, None, spec, window=9).square().sum().backward()
    for each, gradient in zip(given, wanted, strict=True):
        torch.testing.assert_close(each.grad.double(), gradient, atol=1e-4, rtol=1e-4)
    assert not compiled


def test_a_window_says_that_attention_is_causal() -> None:
    class Bidirectional(Grouped):
        is_causal = False

    asked = drawn(1, TOKENS, torch.float32)
    for window in WINDOWS:
        found = dense.dense_attention(Bidirectional(), *asked, None, SPEC, window=window)
        torch.testing.assert_close(found.double(), expected(*asked, window), atol=1e-5, rtol=1e-5)


class Largest(TorchDispatchMode):
    """The most numbers of any tensor that was made."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor):
            self.numbers = max(self.numbers, made.numel())
        return made


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("name", ["", "sinks"])
def test_memory_of_a_window_does_not_grow_with_tokens_squared(name: str, dropout: float) -> None:
    spec = SPEC._replace(**{"": {}, "sinks": {"sinks": SINKS}}[name])
    query, key, value = drawn(1, 2048, torch.float32, 2048)
    query.requires_grad_()  # what the kernels do not serve
    with Largest() as largest:
        dense.dense_attention(Grouped(), query, key, value, None, spec, dropout, window=20)
    assert largest.numbers <= max(query.numel(), 2 * GROUP * dense.QUERY_BLOCK * (dense.QUERY_BLOCK + 20))
