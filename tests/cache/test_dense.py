"""Attention over dense keys and values: who computes it, and that all who may give the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache

from support.families import build, prompt
from support.instruction_sets import available, needs_native
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

    def noted(prompt: prefill.Prompt, spec: AttentionSpec) -> Tensor:
        served.append(prompt.queries.shape[1])
        return attended(prompt, spec)

    monkeypatch.setattr(prefill, "attended", noted)
    return served


@pytest.fixture
def tiles() -> None:
    if "amx" not in available():
        pytest.skip("no amx here")


def drawn(rows: int, queries: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    shapes = (rows, 2 * GROUP, queries, DIM), (rows, 2, TOKENS, DIM), (rows, 2, TOKENS, DIM)
    query, key, value = (torch.randn(*shape, generator=generator).to(dtype) for shape in shapes)
    return query, key, value


def attend(query: Tensor, key: Tensor, value: Tensor, dropout: float = 0.0, is_causal: bool | None = None) -> Tensor:
    return dense.dense_attention(Grouped(), query, key, value, None, SPEC, dropout, is_causal)


def expected(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    keys, values = (each.double().repeat_interleave(GROUP, dim=1) for each in (key, value))
    logits = query.double() @ keys.mT * SPEC.scaling
    seen = torch.ones(logits.shape[-2:]).tril(TOKENS - query.shape[2]).bool()
    return (logits.masked_fill(~seen, -torch.inf).softmax(-1) @ values).transpose(1, 2)


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
    assert compiled == ([TOKENS, TOKENS] if isa == "avx2" or isa.startswith("zen") else [])


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
