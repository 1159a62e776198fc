"""Methods by name: composition, parameters, errors, and the path from a layer to a selection."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import winnow
from support.ready import BUDGETED, METHODS, UNBUDGETED, random_scores, ready
from support.views import one_layer, random_view, shown_to
from winnow.allocate import RABA, Ada, CoKV, Duo, HeadKV, Pyramid, Uniform
from winnow.budget import Budget
from winnow.composition.method import Method
from winnow.composition.names import method, methods, takes_budget
from winnow.errors import BudgetError, MethodError, ModelError, UnknownMethod, UnknownParameter
from winnow.score import (
    H2O,
    KVEC,
    TOVA,
    Critical,
    ExpectedAttention,
    Full,
    KeyDiff,
    Knorm,
    Random,
    SnapKV,
    StreamingLLM,
)
from winnow.store import Cost, Dense

BYTES = (68.0,) * 4
COSTS = tuple(Cost(0, size) for size in BYTES)


def test_presets() -> None:
    expected = {
        "full": (Full(), Uniform()),
        "random": (Random(), Uniform()),
        "streamingllm": (StreamingLLM(), Uniform()),
        "snapkv": (SnapKV(), Uniform()),
        "h2o": (H2O(), Uniform()),
        "tova": (TOVA(), Uniform()),
        "knorm": (Knorm(), Uniform()),
        "keydiff": (KeyDiff(), Uniform()),
        "expectedattention": (ExpectedAttention(), Uniform()),
        "criticalkv": (Critical(base=SnapKV()), Uniform()),
        "critical-adakv": (Critical(base=SnapKV()), Ada()),
        "pyramidkv": (SnapKV(), Pyramid()),
        "adakv": (SnapKV(), Ada()),
        "ada-pyramidkv": (SnapKV(), Ada(across=Pyramid())),
        "headkv-r": (SnapKV(), HeadKV(random_scores((4, 2), "headkv-r"), expects="headkv-r")),
        "headkv-er": (SnapKV(), HeadKV(random_scores((4, 2), "headkv-er"), expects="headkv-er")),
        "headkv-r2": (SnapKV(), HeadKV(random_scores((4, 2), "headkv-r2"), expects="headkv-r2")),
        "cokv": (SnapKV(), CoKV(random_scores((4, 2), "cokv"), expects="cokv")),
        "kvec": (KVEC(), Uniform()),
        "aperturekv": (SnapKV(diversify=0.45, over="prefix"), RABA()),
        "duoattention": (
            StreamingLLM(sinks=128, recent=256),
            Duo(random_scores((4, 2), "duoattention"), expects="duoattention"),
        ),
    }
    assert set(expected) == set(METHODS)
    for name, (scorer, allocator) in expected.items():
        made = ready(name, 64)
        assert made.name.partition("(")[0] == name
        assert (made.scorer, made.allocator, made.store) == (scorer, allocator, Dense())


def test_records_explain_every_parameter() -> None:
    records = {record.name: record for record in methods()}
    assert {record.kind for record in records.values()} == {"method", "allocator", "refiner", "store"}
    assert all(record.summary and all(p.meaning for p in record.parameters) for record in records.values())
    assert [p.name for p in records["ada-pyramidkv"].parameters] == [
        *("window", "kernel", "pool", "reduce", "pool_first", "diversify", "over"),
        *("floor", "rounding", "beta"),
    ]
    assert records["full"].parameters == ()
    assert "2407.11550" in records["ada"].paper


def test_every_offered_parameter_can_be_set() -> None:
    for record in methods():
        text = record.name if record.kind == "method" else f"snapkv+{record.name}"
        for parameter in record.parameters:
            if parameter.name != "scores":
                assert ready(text, 64, **{parameter.name: parameter.default}) == ready(text, 64)


def test_parameters_go_where_they_belong() -> None:
    made = method("snapkv", budget=64, window=16, pool="avg")
    assert made.scorer == SnapKV(window=16, pool="avg")
    made = method("ada-pyramidkv", budget=128, floor=0.3, window=32, beta=10)
    assert made.scorer == SnapKV(window=32)
    assert made.allocator == Ada(floor=0.3, across=Pyramid(beta=10))
    made = method("adakv", budget=128, rounding="paper")
    assert made.allocator == Ada(rounding="paper", across=Uniform("paper"))


@pytest.mark.parametrize(
    ("text", "scorer", "allocator", "canonical"),
    [
        ("snapkv+ada", SnapKV(), Ada(), "snapkv+ada"),
        ("knorm+ada", Knorm(), Ada(), "knorm+ada"),
        ("keydiff+pyramid", KeyDiff(), Pyramid(), "keydiff+pyramid"),
        ("snapkv+uniform", SnapKV(), Uniform(), "snapkv+uniform"),
        (
            "snapkv+ada(0.3)+pyramid",
            SnapKV(),
            Ada(floor=0.3, across=Pyramid()),
            "snapkv+ada(floor=0.3)+pyramid",
        ),
        (
            " SnapKV( 16, pool = avg ) + pyramid(10) + ada ",
            SnapKV(window=16, pool="avg"),
            Ada(across=Pyramid(beta=10)),
            "snapkv(window=16, pool=avg)+ada+pyramid(beta=10)",
        ),
        ("snapkv(pool_first=true)", SnapKV(pool_first=True), Uniform(), "snapkv(pool_first=true)"),
        ("pyramidkv+ada", SnapKV(), Ada(across=Pyramid()), "pyramidkv+ada"),
        ("ada-pyramidkv+uniform", SnapKV(), Ada(), "ada-pyramidkv+uniform"),
        ("adakv(window=8)", SnapKV(), Ada(), "adakv"),
    ],
)
def test_composed_names(text: str, scorer: object, allocator: object, canonical: str) -> None:
    made = method(text, 64)
    assert (made.scorer, made.allocator, made.name) == (scorer, allocator, canonical)
    assert str(made) == f"{canonical} @ 64"
    assert method(str(made)) == made
    assert hash(method(str(made))) == hash(made)
    assert pickle.loads(pickle.dumps(made)) == made


def test_text() -> None:
    assert str(method("adakv", budget=128, window=16)) == "adakv(window=16) @ 128"
    assert str(method("snapkv", budget="2%")) == "snapkv @ 2%"
    assert str(method("snapkv @ 64MiB")) == "snapkv @ 64MiB"
    assert str(method("full")) == "full"
    assert method("full").full
    assert not method("snapkv", "100%").full


@pytest.mark.parametrize(
    ("text", "parameters", "error", "message"),
    [
        ("snapvk", {}, UnknownMethod, "did you mean 'snapkv'"),
        ("nonsense", {}, UnknownMethod, "There are: ada-pyramidkv, adakv"),
        ("adakv+sprak(0.8)", {}, UnknownMethod, "did you mean .spark"),
        ("snapkv+knorm", {}, UnknownMethod, "no part 'knorm'"),
        ("ada", {}, MethodError, r"snapkv\+ada"),
        ("snapkv", {"windw": 3}, UnknownParameter, "did you mean 'window'"),
        ("snapkv(floor=0.3)", {}, UnknownParameter, "'snapkv' has no parameter 'floor'"),
        ("snapkv+ada(window=3)", {}, UnknownParameter, "'ada' has no parameter 'window'"),
        ("pyramidkv(beta=3)+uniform", {}, UnknownParameter, "beta"),
        ("snapkv(window=16)", {"window": 16}, MethodError, "given twice"),
        ("snapkv(16, window=16)", {}, MethodError, "twice"),
        ("snapkv(window=16, window=8)", {}, MethodError, "twice"),
        ("ada-pyramidkv+ada+ada", {}, MethodError, "keep one"),
        ("snapkv+uniform+pyramid", {}, MethodError, "keep one"),
        ("knorm(paper, 2)", {}, MethodError, "1 arguments at most: rounding"),
        ("snapkv(window=)", {}, MethodError, "argument 'window='"),
        ("snapkv(window=3, 4)", {}, MethodError, "argument '4'"),
        ("snapkv(16", {}, MethodError, "Cannot read"),
        ("snapkv++ada", {}, MethodError, "Cannot read"),
        ("", {}, MethodError, "Cannot read"),
        ("snapkv", {"window": 2.5}, MethodError, "window must be a whole number"),
        ("snapkv", {"window": 65}, BudgetError, "use at least 65"),
        ("snapkv @ 32", {}, MethodError, "budget is given twice"),
        ("full", {}, BudgetError, "takes no budget"),
    ],
)
def test_errors(text: str, parameters: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        method(text, 64, **parameters)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", METHODS)
def test_whether_a_method_takes_a_budget(name: str) -> None:
    assert takes_budget(name) == (name not in UNBUDGETED)
    assert not takes_budget(f"{name}+masking") if name != "full" else True


def test_budgets_are_needed_where_something_is_evicted() -> None:
    with pytest.raises(BudgetError, match="'snapkv' needs a budget"):
        method("snapkv")
    with pytest.raises(MethodError, match="nothing to allocate"):
        method("full+ada")
    with pytest.raises(UnknownParameter, match="There are: none"):
        method("full", window=3)


@pytest.mark.parametrize("name", BUDGETED)
@pytest.mark.parametrize("length", [1, 8, 9, 40, 150])
@pytest.mark.parametrize("budget", [18, "10%", "9kB"])
def test_selections_hold_the_budget(name: str, length: int, budget: int | str) -> None:
    chosen = ready(name, budget)
    heads = (2, 2, 2, 2)
    allocation = chosen.allocation(length, heads, COSTS)
    expected = chosen.budget.slots(length, heads, BYTES, min(chosen.scorer.guaranteed, length))
    assert sum(allocation.totals) == expected
    for layer, total in enumerate(allocation.totals):
        view = shown_to(chosen.scorer, random_view(length=length, seed=layer, layer=layer))
        positions, offsets = chosen.select(view, allocation)
        assert offsets.tolist()[-1] == len(positions) == total
        for head in range(2):
            kept = positions[offsets[head] : offsets[head + 1]]
            assert kept.unique().tolist() == kept.tolist()
            assert set(range(max(0, length - chosen.scorer.window), length)) <= set(kept.tolist())


@pytest.mark.parametrize("name", METHODS)
def test_budgets_beyond_the_prompt_keep_everything(name: str) -> None:
    chosen = ready(name, 500)
    allocation = chosen.allocation(30, (2, 2, 2, 2), COSTS)
    assert allocation.totals == (60,) * 4
    positions, offsets = chosen.select(shown_to(chosen.scorer, random_view(length=30)), allocation)
    assert positions.tolist() == [*range(30), *range(30)]
    assert offsets.tolist() == [0, 30, 60]


def test_streamingllm_keeps_sinks_and_recent_tokens() -> None:
    positions, _ = method("streamingllm", 10).select(random_view(heads=1, length=50), one_layer(1, 50, 10, 4))
    assert positions.tolist() == [0, 1, 2, 3, 44, 45, 46, 47, 48, 49]


def test_h2o_keeps_half_recent_and_half_heavy() -> None:
    view = random_view(heads=1, group=1, length=50)
    positions, _ = method("h2o", 10).select(view, one_layer(1, 50, 10))
    assert positions.tolist()[5:] == [45, 46, 47, 48, 49]
    heavy = H2O()(view)[0, :45].topk(5).indices.sort().values
    assert positions.tolist()[:5] == heavy.tolist()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 6), st.sampled_from([17.5, 68.0, 260.0])), min_size=1, max_size=6),
    st.integers(20, 3000),
    st.integers(100_000, 10**7),
    st.sampled_from(["snapkv", "pyramidkv", "ada-pyramidkv"]),
)
def test_bytes_are_kept_even_if_layers_differ(
    layers: list[tuple[int, float]], length: int, amount: int, name: str
) -> None:
    heads, sizes = zip(*layers, strict=True)
    totals = method(name, f"{amount}B").allocation(length, heads, tuple(Cost(0, size) for size in sizes)).totals
    assert sum(total * size for total, size in zip(totals, sizes, strict=True)) <= amount


def test_published_rounding_still_selects_within_the_prompt() -> None:
    chosen = method("ada-pyramidkv", 12, rounding="paper")
    allocation = chosen.allocation(40, (2,) * 4, COSTS)
    for layer in range(4):
        view = shown_to(chosen.scorer, random_view(length=40, layer=layer))
        positions, offsets = chosen.select(view, allocation)
        assert offsets.tolist()[-1] == len(positions)
        assert int(positions.max()) < 40


def test_selection_carries_no_graph_and_refuses_nan() -> None:
    view = random_view(length=50)
    view.keys.requires_grad_()
    chosen = method("adakv", 16)
    assert not chosen.select(view, one_layer(2, 50, 32, 8)).positions.requires_grad
    with torch.no_grad():
        view.keys[0, 3] = torch.nan
    with pytest.raises(ModelError, match="layer 0"):
        chosen.select(view, one_layer(2, 50, 32, 8))


def test_methods_can_be_built_by_hand() -> None:
    made = Method("mine", SnapKV(window=4), Ada(floor=0), Dense(), Budget.parse(20))
    assert str(made) == "mine @ 20"
    with pytest.raises(BudgetError, match="below the 32 tokens that mine"):
        Method("mine", SnapKV(window=32), Ada(), Dense(), Budget.parse(20))


def test_scores_from_a_file_are_part_of_the_name(tmp_path: Path) -> None:
    path = random_scores((2, 2), "cokv").save(tmp_path / "mine.safetensors")
    made = winnow.method("cokv", 64, scores=str(path), alpha=2)
    assert str(made) == f"cokv(scores={path}, alpha=2) @ 64"
    assert winnow.method(str(made)) == made
    assert hash(winnow.method(str(made))) == hash(made)
    assert pickle.loads(pickle.dumps(made)) == made
    with pytest.raises(winnow.WinnowError):
        winnow.method("cokv", 64, scores=str(tmp_path / "missing.safetensors"))
