"""Attention over a dense prompt with the compiled kernels, with what every token was paid, against loops over heads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import pad
from torch.utils._python_dispatch import TorchDispatchMode

from support.instruction_sets import IN_WHOLE_NUMBERS, ISAS, available, needs_native
from support.turns import each_value
from support.weight_rounding import ROUNDING, rounds_weights
from winnow.kernels import native, prefill
from winnow.kernels.interface import AttentionSpec
from winnow.kernels.prefill import Attention, Prompt

pytestmark = needs_native

SHAPES = [
    (1, 1, 1, 1, 1, 1),
    (2, 1, 5, 5, 8, 8),
    (2, 7, 65, 65, 64, 64),
    (1, 4, 33, 130, 33, 17),
    (3, 2, 49, 200, 80, 72),
    (1, 8, 200, 201, 16, 128),
]
"""KV heads, query heads for each, queries, tokens, D, Dv."""
TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def random_prompt(
    heads: int, group: int, queries: int, tokens: int, dim: int, value_dim: int, dtype: torch.dtype, seed: int = 0
) -> Prompt:
    """Laid out as transformers lays them: token after token, so that heads are strided."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype).transpose(0, 1)

    return Prompt(
        2 * draw(queries, heads * group, dim), draw(tokens, heads, dim), draw(tokens, heads, value_dim).contiguous()
    )


def by_definition(prompt: Prompt, spec: AttentionSpec, window: int | None = None) -> Attention:
    queries, keys, values = (each.double() for each in prompt)
    (asking, count, _), (heads, tokens, _) = queries.shape, keys.shape
    group = asking // heads
    output, paid = torch.zeros(count, asking, values.shape[2]).double(), torch.zeros(heads, tokens).double()
    seen = torch.ones(count, tokens).tril(tokens - count).bool()
    for query in range(count if window else 0):
        seen[query, : max(0, tokens - count + query - (window or 0) + 1)] = False
    for head in range(asking):
        logits = queries[head] @ keys[head // group].T * spec.scaling
        if spec.softcap:
            logits = spec.softcap * torch.tanh(logits / spec.softcap)
        sink = torch.empty(count, 0) if spec.sinks is None else spec.sinks[head].expand(count, 1)
        weights = torch.cat([logits.where(seen, -torch.inf), sink.double()], dim=1).softmax(1)[:, :tokens]
        output[:, head] = weights @ values[head // group]
        paid[head // group] += weights.sum(0) / group
    return Attention(output, paid)


def rounds_payments(prompt: Prompt) -> bool:
    tiles = native.isa() == "amx" and prefill.lays_rows(prompt.queries, prompt.keys)
    return tiles or rounds_weights(prompt.keys.dtype)


def payments_tolerance(prompt: Prompt) -> float:
    return ROUNDING if rounds_payments(prompt) else 1e-5


def close(found: Tensor, expected: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_output_and_payments(isa: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    prompt = random_prompt(*shape, dtype)
    sinks = torch.randn(shape[0] * shape[1], generator=torch.Generator().manual_seed(1))
    for spec in (AttentionSpec(shape[4] ** -0.5), AttentionSpec(0.3, softcap=5.0, sinks=sinks)):
        expected = by_definition(prompt, spec)
        found = prefill.attend(prompt, spec)
        assert found.output.dtype == dtype
        close(found.output, expected.output, TOLERANCES[dtype])
        close(found.paid, expected.paid, payments_tolerance(prompt))
        assert torch.equal(prefill.attended(prompt, spec), found.output)
        paid = prefill.paid(prompt.queries, prompt.keys, spec)  # without an output nothing is rounded
        close(paid, expected.paid, 1e-5)
        in_another_way = rounds_payments(prompt) or prefill.lays_rows(prompt.queries, prompt.keys)
        assert torch.equal(paid, found.paid) or in_another_way


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    st.integers(1, 3),
    st.integers(1, 9),
    st.integers(1, 150),
    st.integers(0, 150),
    st.integers(1, 40),
    st.integers(1, 40),
    st.none() | st.integers(1, 310),
    st.sampled_from(list(TOLERANCES)),
    st.sampled_from(ISAS),
)
def test_any_shape(
    heads: int,
    group: int,
    queries: int,
    earlier: int,
    dim: int,
    value_dim: int,
    window: int | None,
    dtype: torch.dtype,
    isa: str,
) -> None:
    prompt = random_prompt(heads, group, queries, queries + earlier, dim, value_dim, dtype)
    spec, used = AttentionSpec(dim**-0.5), native.isa()
    native.select_isa(isa if isa in available() else used)
    found, tolerance = prefill.attend(prompt, spec, window), payments_tolerance(prompt)
    native.select_isa(used)
    paid = found.paid.double()
    assert float(paid.sum()) == pytest.approx(heads * queries, rel=1e-5)  # every query pays 1
    expected = by_definition(prompt, spec, window)
    close(found.output, expected.output, TOLERANCES[dtype])
    close(found.paid, expected.paid, tolerance)


@pytest.mark.parametrize(("dtype", "window"), each_value(list(TOLERANCES), [1, 2, 7, 48, 64, 100, 201, 500]))
def test_windows(isa: str, window: int, dtype: torch.dtype) -> None:
    """From one token to all of them, over prompts that begin and end within a block; with sinks and a cap, too."""
    sinks = torch.randn(8, generator=torch.Generator().manual_seed(1))
    for shape in ((1, 8, 200, 201, 16, 128), (2, 1, 300, 300, 33, 17), (4, 2, 70, 201, 64, 64)):
        prompt = random_prompt(*shape, dtype)
        heads = len(prompt.queries)
        for spec in (AttentionSpec(shape[4] ** -0.5), AttentionSpec(0.3, softcap=5.0, sinks=sinks[:1].expand(heads))):
            expected, found = by_definition(prompt, spec, window), prefill.attend(prompt, spec, window)
            close(found.output, expected.output, TOLERANCES[dtype])
            close(found.paid, expected.paid, payments_tolerance(prompt))
            assert torch.equal(prefill.attended(prompt, spec, window), found.output)
            if window >= prompt.keys.shape[1]:
                assert torch.equal(prefill.attended(prompt, spec), found.output)


def test_tokens_before_every_window_are_not_read(isa: str) -> None:
    prompt = random_prompt(2, 3, 40, 400, 32, 32, torch.float32)
    hidden = Prompt(prompt.queries, prompt.keys.clone(), prompt.values.clone())
    for each in (hidden.keys, hidden.values):
        each[:, :256] = torch.nan
    found, expected = (prefill.attend(each, AttentionSpec(0.2), 30) for each in (hidden, prompt))
    assert torch.equal(found.output, expected.output)
    assert torch.equal(found.paid, expected.paid)
    assert not expected.paid[:, : 400 - 40 - 30 + 1].round(decimals=20).any()


def test_windows_are_not_attended_to_in_tiles(isa: str) -> None:
    keys, queries = torch.zeros(2, 100, 64, dtype=torch.bfloat16), torch.zeros(8, 16, 64, dtype=torch.bfloat16)
    assert prefill.lays_rows(queries, keys, 99) == (isa in IN_WHOLE_NUMBERS)
    for all_tokens in (100, 101, None):
        assert prefill.lays_rows(queries, keys, all_tokens) == prefill.lays_rows(queries, keys)


UNEVEN = [(2, 1, 700, 700, 64, 64), (1, 3, 130, 450, 40, 100), (5, 2, 64, 64, 128, 96)]


@pytest.mark.parametrize("shape", UNEVEN, ids=str)
def test_bfloat16_rounds_where_sdpa_does(isa: str, shape: tuple[int, ...]) -> None:
    """Panels of queries that end within a block of tokens, and blocks of channels that a head does not fill."""
    prompt, spec = random_prompt(*shape, torch.bfloat16), AttentionSpec(shape[4] ** -0.5)
    expected, found = by_definition(prompt, spec), prefill.attend(prompt, spec)
    largest = float(prompt.values.float().abs().max())
    assert float((found.output - expected.output).abs().max()) < 2**-7 * largest
    assert float((found.paid / expected.paid - 1).abs().max()) < payments_tolerance(prompt)
    tail = prompt._replace(queries=prompt.queries[:, -9:])
    close(prefill.attended(tail, spec), found.output[-9:].double(), TOLERANCES[torch.bfloat16])


def test_rows_are_laid_for_many_queries(isa: str) -> None:
    keys = torch.zeros(2, 100, 64, dtype=torch.bfloat16)
    queries = torch.zeros(8, 16, 64, dtype=torch.bfloat16)
    assert prefill.lays_rows(queries, keys) == (isa == "amx" or isa in IN_WHOLE_NUMBERS)
    assert not prefill.lays_rows(queries[:, :15], keys)
    for dtype in (torch.float32, torch.float16):
        assert prefill.lays_rows(queries.to(dtype), keys.to(dtype)) == (isa == "amx" or isa in IN_WHOLE_NUMBERS)


def test_heads_in_rounds(isa: str) -> None:
    """So many keys that they are laid for a few heads at a time, and are all the same at each."""
    laid = {"amx": 70_000, **dict.fromkeys(IN_WHOLE_NUMBERS, 40_000)}
    tokens = laid.get(isa, 7_000)  # others read keys as they lie
    one = random_prompt(1, 1, 70, tokens, 128, 128, torch.bfloat16)
    prompt = Prompt(*(each.expand(5, -1, -1) for each in one))
    found = prefill.attend(prompt, AttentionSpec(0.1))
    alone = prefill.attend(one, AttentionSpec(0.1))
    assert torch.equal(found.output, alone.output.expand(-1, 5, -1))
    assert torch.equal(found.paid, alone.paid.expand(5, -1))
    rows = prefill.attended(one._replace(queries=one.queries[:, -5:]), AttentionSpec(0.1))
    close(found.output[-5:, :1], rows.double(), TOLERANCES[torch.bfloat16])


def test_many_queries_of_heads_beside_each_other() -> None:
    """Keys and values that are copied first give what they give where they lie apart."""
    prompt, spec = random_prompt(3, 4, 300, 310, 32, 24, torch.float32), AttentionSpec(0.2)
    values = prompt.values.transpose(0, 1).contiguous().transpose(0, 1)
    assert not prompt.keys.is_contiguous()
    assert not values.is_contiguous()
    found = prefill.attend(prompt._replace(values=values), spec)
    few = [prompt._replace(queries=prompt.queries[:, :10], keys=prompt.keys[:, :20], values=values[:, :20])]
    few.append(prompt._replace(queries=prompt.queries[:, 10:40], keys=prompt.keys[:, :50], values=values[:, :50]))
    parts = torch.cat([prefill.attended(part, spec) for part in few])  # so few that nothing is copied
    close(found.output[:40], parts.double(), 1e-6)
    expected = by_definition(prompt, spec)
    close(found.output, expected.output, 1e-5)
    close(found.paid, expected.paid, 1e-5)


class Copies(TorchDispatchMode):
    """Counts tensors that are copied."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten.clone.default
        return func(*args, **(kwargs or {}))


def test_rows_of_a_buffer_are_read_where_they_lie() -> None:
    """Keys and values of a tail with room behind them."""
    prompt = random_prompt(3, 4, 300, 310, 32, 24, torch.float32)
    apart = prompt._replace(keys=prompt.keys.contiguous(), values=prompt.values.contiguous())
    roomy = apart._replace(
        keys=pad(apart.keys, (0, 0, 0, 50))[:, :310], values=pad(apart.values, (0, 0, 0, 50))[:, :310]
    )
    with Copies() as copies:
        found = prefill.attended(roomy, AttentionSpec(0.2))
    assert copies.count == 0
    with Copies() as copies:
        assert torch.equal(prefill.attended(prompt, AttentionSpec(0.2)), found)
    assert copies.count == (not prefill.lays_rows(prompt.queries, prompt.keys))


def test_threads_change_nothing(isa: str, threads: None) -> None:
    prompt, spec = random_prompt(3, 2, 300, 500, 32, 32, torch.float32), AttentionSpec(0.2)
    torch.set_num_threads(1)
    alone = prefill.attend(prompt, spec)
    torch.set_num_threads(5)
    for _ in range(3):
        together = prefill.attend(prompt, spec)
        assert torch.equal(alone.output, together.output)
        assert torch.equal(alone.paid, together.paid)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_extreme_logits(isa: str, dtype: torch.dtype) -> None:
    """Weights that vanish, and logits that overflow an exponential without its maximum."""
    prompt = random_prompt(2, 3, 90, 150, 16, 16, dtype)
    prompt = prompt._replace(queries=prompt.queries * 300)
    expected = by_definition(prompt, AttentionSpec(1.0))
    found = prefill.attend(prompt, AttentionSpec(1.0))
    close(found.output, expected.output, max(1e-3, TOLERANCES[dtype] / 2))
    close(found.paid, expected.paid, max(1e-3, payments_tolerance(prompt)))


def test_what_does_not_fit_is_refused() -> None:
    prompt, spec = random_prompt(2, 2, 5, 9, 8, 8, torch.float32), AttentionSpec(1.0)
    queries, keys, values = prompt
    for wrong in (
        Prompt(queries[:3], keys, values),
        Prompt(queries[..., :4], keys, values),
        Prompt(queries, keys, values[:, :8]),
        Prompt(queries, keys, values.half()),
        Prompt(queries, keys[:, :4], values[:, :4]),
        Prompt(queries[:, :0], keys, values),
        Prompt(queries.to("meta"), keys, values),
        Prompt(queries, keys, values.to("meta")),
        Prompt(queries.double(), keys.double(), values.double()),
    ):
        with pytest.raises(ValueError, match="do not fit"):
            prefill.attend(wrong, spec)
    with pytest.raises(ValueError, match="do not fit"):
        prefill.attend(prompt, AttentionSpec(1.0, sinks=torch.zeros(3)))
    for nothing in (0, -1):
        with pytest.raises(ValueError, match="shows a query nothing"):
            prefill.attended(prompt, spec, nothing)
