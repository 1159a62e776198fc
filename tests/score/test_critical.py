"""CriticalKV against its definition in float64, over several base scorers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.definitions import MODELS, SHAPES, assert_scores
from support.views import random_view, shown_to
from winnow.allocate import Ada
from winnow.composition.names import method
from winnow.errors import MethodError
from winnow.kernels.onednn import has_onednn
from winnow.score import (
    H2O,
    KVEC,
    TOVA,
    Critical,
    ExpectedAttention,
    KeyDiff,
    Knorm,
    Random,
    Scorer,
    SnapKV,
    StreamingLLM,
    critical,
)
from winnow.select import select
from winnow.view import LayerView

BASES = [
    SnapKV(window=2, kernel=3),
    H2O(),
    TOVA(),
    Knorm(),
    KeyDiff(),
    StreamingLLM(sinks=1),
    ExpectedAttention(value_norm=False, sinks=1),
    KVEC(window=2, wide_window=4, wide_heads=1, kernel=1),
]


def norms_by_definition(view: LayerView) -> np.ndarray:
    values, output = view.values.double().numpy(), view.output_projection.double().numpy()
    heads, length, _ = values.shape
    group = len(output) // heads
    result = np.zeros((heads, length))
    for head in range(heads):
        for token in range(length):
            each = [np.abs(values[head, token] @ output[head * group + g]).sum() for g in range(group)]
            result[head, token] = np.mean(each)
    return result


def by_definition(scorer: Critical, base_order: np.ndarray, slots: list[int], view: LayerView) -> list[list[int]]:
    """Kept tokens per head, one after another; `base_order` is the final order of the base."""
    norms = norms_by_definition(view)
    result = []
    for head, count in enumerate(slots):
        scores = base_order[head]
        ranked = sorted(range(len(scores)), key=lambda t: (-scores[t], t))
        kept = ranked[: int(np.floor(scorer.share * count))]
        kept += [t for t in ranked if scores[t] == np.inf and t not in kept]
        raised = scores - min(0.0, scores.min())
        worth = (raised + scorer.smoothing) * norms[head]
        rest = sorted((t for t in range(len(scores)) if t not in kept), key=lambda t: (-worth[t], t))
        result.append(sorted((kept + rest)[:count]))
    return result


def kept(scorer: Scorer, slots: list[int], view: LayerView) -> list[list[int]]:
    view = shown_to(scorer, view)
    counts = torch.tensor(slots)
    positions, offsets = select(scorer.refine(scorer.rank(view), counts, view), counts)
    return [part.tolist() for part in positions.tensor_split(offsets[1:-1])]


def some_slots(view: LayerView, least: int, seed: int = 0) -> list[int]:
    heads, length, _ = view.keys.shape
    return np.random.default_rng(seed).integers(min(least, length), length, size=heads, endpoint=True).tolist()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_projected_norms(shape: tuple[int, ...]) -> None:
    view = random_view(*shape)
    assert_scores(critical.projected_norms(view), norms_by_definition(view))


@pytest.mark.parametrize("base", BASES, ids=lambda base: type(base).__name__)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("share", [0.0, 0.5, 0.8])
def test_definition(base: Scorer, shape: tuple[int, ...], share: float) -> None:
    view, scorer = random_view(*shape), Critical(base=base, share=share)
    for seed in range(3):
        slots = some_slots(view, base.guaranteed, seed)
        shown = shown_to(base, view)
        order = base.refine(base.rank(shown), torch.tensor(slots), shown).double().numpy()
        assert kept(scorer, slots, view) == by_definition(scorer, order, slots, view)


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_definition_on_models_that_cap_or_sink(model: dict[str, float]) -> None:
    view, scorer = random_view(heads=3, group=2, length=50, **model), Critical(base=SnapKV())
    order = scorer.base(shown_to(scorer, view)).double().numpy()
    assert kept(scorer, [9, 20, 50], view) == by_definition(scorer, order, [9, 20, 50], view)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(BASES), st.integers(1, 30), st.integers(1, 3), st.integers(0, 10**6))
def test_half_is_the_bases_choice_and_nothing_certain_is_lost(base: Scorer, length: int, heads: int, seed: int) -> None:
    view = random_view(heads=heads, group=2, length=length, seed=seed)
    slots = some_slots(view, base.guaranteed, seed)
    shown = shown_to(base, view)
    order = base.refine(base.rank(shown), torch.tensor(slots), shown)
    best = [part.tolist() for part in _split(*select(order, torch.tensor(slots) // 2))]
    for head, positions in enumerate(kept(Critical(base=base), slots, view)):
        assert len(positions) == slots[head]
        assert set(best[head]) <= set(positions)
        assert set(order[head].isinf().nonzero().flatten().tolist()) <= set(positions)


def _split(positions: torch.Tensor, offsets: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return positions.tensor_split(offsets[1:-1])


@pytest.mark.parametrize("base", BASES, ids=lambda base: type(base).__name__)
def test_equal_values_leave_the_bases_choice(base: Scorer) -> None:
    """Also for negative scores, whose order a product would have turned round."""
    view = random_view(heads=2, group=3, length=40)
    view.values[:] = view.values[:, :1].clone()
    assert kept(Critical(base=base, share=0), [11, 30], view) == kept(base, [11, 30], view)
    assert kept(Critical(base=base, share=1), [11, 30], random_view(length=40)) == kept(
        base, [11, 30], random_view(length=40)
    )


def test_values_decide_between_equal_scores() -> None:
    view = random_view(heads=1, group=1, length=20)
    view.keys[:] = view.keys[:, :1].clone()
    view.values[:] = view.values[:, :1].clone()
    assert kept(Critical(base=Knorm()), [6], view) == [[0, 1, 2, 3, 4, 5]]
    view.values[:, [9, 15]] *= 3
    # half by the base, ties to the lower index; then the large values
    assert kept(Critical(base=Knorm()), [6], view) == [[0, 1, 2, 3, 9, 15]]
    view.values[:] = 0
    assert kept(Critical(base=Knorm()), [6], view) == [[0, 1, 2, 3, 4, 5]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_blocks_and_precision(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    view = random_view(heads=2, group=2, length=33, dtype=dtype)
    whole = critical.projected_norms(view)
    assert_scores(whole, norms_by_definition(view))
    monkeypatch.setattr(critical, "_BLOCK", 5 * 4 * 24)
    torch.testing.assert_close(critical.projected_norms(view), whole, rtol=1e-6, atol=0)


@pytest.mark.skipif(not has_onednn(), reason="torch was built without oneDNN")
@pytest.mark.parametrize("length", [256, 300, 577])
def test_norms_of_many_tokens_by_onednn_are_torchs(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    """Also with the weight as nn.Linear keeps it, whose rows oneDNN would take one number at a time."""
    view = random_view(heads=2, group=3, length=length, dtype=torch.bfloat16)
    weight = view.output_projection.flatten(0, 1).t().contiguous()
    view = view._replace(output_projection=weight.t().unflatten(0, (6, -1)))
    with monkeypatch.context() as patch:
        patch.setattr(torch, "bmm", lambda *_, **__: pytest.fail("torch multiplied"))
        found = critical.projected_norms(view)
    monkeypatch.setattr(critical, "has_onednn", lambda: False)
    torch.testing.assert_close(found, critical.projected_norms(view), rtol=1e-6, atol=0)
    assert_scores(found, norms_by_definition(view))


def test_a_projection_may_be_a_view_of_a_weight() -> None:
    view = random_view(heads=2, group=2, length=9)
    weight = view.output_projection.flatten(0, 1).t().contiguous()  # [E, Hq·Dv], as nn.Linear keeps it
    strided = view._replace(output_projection=weight.t().unflatten(0, (4, 8)))
    torch.testing.assert_close(critical.projected_norms(strided), critical.projected_norms(view))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.sampled_from([SnapKV(window=2, kernel=3), Knorm(), H2O(), Random()]),
    st.integers(100, 500),
    st.integers(1, 3),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.floats(0.1, 4),
    st.integers(0, 10**6),
)
def test_few_slots_of_a_long_prompt_are_those_of_all_norms(
    base: Scorer, length: int, heads: int, share: float, spread: float, seed: int
) -> None:
    """Norms of tokens that cannot be among the best are not computed; values differ more or less in size."""
    view = random_view(heads=heads, group=2, length=length, seed=seed)
    view.values.mul_(torch.randn(heads, length, 1, generator=torch.Generator().manual_seed(seed)).mul(spread).exp())
    scorer = Critical(base=base, share=share)
    slots = np.random.default_rng(seed).integers(2, 20, size=heads).tolist()
    shown = shown_to(base, view)
    order = base.refine(base.rank(shown), torch.tensor(slots), shown).double().numpy()
    assert kept(scorer, slots, view) == by_definition(scorer, order, slots, view)


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12, 1e25])
def test_few_slots_where_values_are_tiny_or_huge(scale: float) -> None:
    view, scorer = random_view(length=300), Critical(base=SnapKV(window=2))
    view.values.mul_(scale)
    order = scorer.base(shown_to(scorer, view)).double().numpy()
    assert kept(scorer, [9, 2], view) == by_definition(scorer, order, [9, 2], view)


def test_norms_of_few_tokens_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    view, scorer, computed = random_view(length=600), Critical(base=SnapKV()), 0
    norms = critical._Projection.norms

    def counted(self: critical._Projection, values: torch.Tensor) -> torch.Tensor:
        nonlocal computed
        computed += values.shape[1]
        return norms(self, values)

    monkeypatch.setattr(critical._Projection, "norms", counted)
    kept(scorer, [12, 12], view)
    assert 0 < computed < 150


def test_composition() -> None:
    assert method("knorm+critical", 9).scorer == Critical(base=Knorm())
    made = method("expectedattention(value_norm=false)+ada+critical(0.3)", 9)
    assert (made.scorer, made.allocator) == (
        Critical(base=ExpectedAttention(value_norm=False), share=0.3),
        Ada(),
    )
    assert method("criticalkv", 64, window=4, share=0.25).scorer == Critical(base=SnapKV(window=4), share=0.25)
    assert method(str(made)) == made
    with pytest.raises(MethodError, match="keep one"):
        method("snapkv+critical+critical", 64)


def test_what_is_asked_for() -> None:
    scorer = Critical(base=ExpectedAttention())
    assert scorer.extras == ExpectedAttention().extras | Critical(base=Random()).extras
    assert (scorer.guaranteed, scorer.queries_needed(30)) == (4, 26)
    with pytest.raises(MethodError, match="layer 0"):
        kept(Critical(base=Knorm()), [3, 3], random_view()._replace(output_projection=None))


@pytest.mark.parametrize("wrong", [{"share": 1.1}, {"share": True}, {"smoothing": -1.0}], ids=str)
def test_wrong_parameters_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(MethodError, match="must be"):
        Critical(base=SnapKV(), **wrong)
