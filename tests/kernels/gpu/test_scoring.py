"""Sums of a window's attention in Triton against its definition in float64, under the interpreter or on a GPU."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import winnow
from support.families import build, prompt
from support.gpu import DEVICE
from support.largest_tensor import LargestTensor
from support.views import random_view
from winnow.kernels.gpu import scoring, support
from winnow.kernels.gpu.paying import ENTROPY, LARGEST, SHARES, SQUARES
from winnow.kernels.gpu.scoring import Asked, Normalized
from winnow.score import KVEC, KVzip, kvec, on_gpu
from winnow.score import window as torch_form
from winnow.score.attention_sums import window_attention
from winnow.view import LayerView, ReplayView

pytestmark = pytest.mark.usefixtures("one_thread")
CASES: list[tuple[torch.dtype, dict[str, float]]] = [
    (torch.float32, {}),
    (torch.float32, {"sinks": True, "dim": 24}),
    (torch.float32, {"group": 5, "dim": 144}),
    (torch.float16, {"softcap": 3.0, "group": 3}),
    (torch.bfloat16, {"group": 1, "dim": 40}),
]


def normalized(view: LayerView, window: int, visible: int) -> Normalized:
    """The window, asked by Triton."""
    queries = view.queries[:, view.queries.shape[1] - window :]
    there = [None if each is None else each.to(DEVICE) for each in (queries, view.keys, view.sinks, view.absent)]
    return Normalized(Asked(there[0], there[1], view.scaling, view.softcap, there[2], there[3], visible))


def paid(view: LayerView, window: int, visible: int, keys: int) -> Tensor:
    """Sums that Triton finds."""
    return normalized(view, window, visible).paid(keys).cpu()


def shares(view: LayerView, window: int, visible: int) -> Tensor:
    """[H, G, w, N] float64: attention by the definition, a query at a time."""
    heads, length, _ = view.keys.shape
    group = view.queries.shape[0] // heads
    result = torch.zeros(heads, group, window, length, dtype=torch.float64)
    for head in range(heads):
        for member in range(group):
            for token in range(length - window, length):
                query = view.queries[head * group + member, token - length].double()
                logits = view.keys[head].double() @ query * view.scaling
                if view.softcap is not None:
                    logits = view.softcap * (logits / view.softcap).tanh()
                seen = torch.arange(length) < min(visible, token + 1)
                if view.absent is not None:
                    seen &= ~view.absent[head]
                weights = torch.where(seen, logits.exp(), 0.0)
                sink = 0.0 if view.sinks is None else view.sinks[head * group + member].double().exp()
                total = weights.sum() + sink
                result[head, member, token - length + window] = weights / torch.where(total == 0, 1.0, total)
    return result


def expected(view: LayerView, window: int, visible: int, keys: int) -> Tensor:
    """[H, G, keys]: what Triton is to find."""
    return shares(view, window, visible).sum(dim=2)[..., :keys]


@pytest.mark.parametrize(("dtype", "facts"), CASES, ids=str)
def test_sums_match_the_definition(dtype: torch.dtype, facts: dict[str, float]) -> None:
    view = random_view(length=80, dtype=dtype, **facts)
    for visible in (80, 68):
        found = paid(view, 12, visible, 68)
        torch.testing.assert_close(found.double(), expected(view, 12, visible, 68), rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize(("dtype", "facts"), CASES, ids=str)
def test_other_numbers_match_the_definition(dtype: torch.dtype, facts: dict[str, float]) -> None:
    view, since = random_view(length=80, dtype=dtype, **facts), 5
    window, each = normalized(view, 12, 80), shares(view, 12, 80)[:, :, since:, :68]
    weights = torch.rand(12, generator=torch.Generator().manual_seed(1)) + 0.5
    wanted = {
        SHARES: each.sum(dim=2),
        SQUARES: each.square().sum(dim=2),
        ENTROPY: -torch.special.xlogy(each, each).sum(dim=2),
        LARGEST: each.amax(dim=2),
    }
    for what, number in wanted.items():
        found = window.paid(68, what, since).cpu().double()
        torch.testing.assert_close(found, number, rtol=2e-5, atol=1e-7)
    found = window.paid(68, LARGEST, since, weights.to(DEVICE)).cpu().double()
    torch.testing.assert_close(found, (each * weights[since:, None].double()).amax(dim=2), rtol=2e-5, atol=1e-7)
    found = window.paid_most(68, since).cpu().double()
    torch.testing.assert_close(found, each.flatten(0, 1).amax(dim=0).sum(dim=0), rtol=2e-5, atol=1e-7)


@settings(max_examples=4, deadline=None)
@given(
    length=st.integers(1, 90),
    window=st.integers(1, 90),
    since=st.integers(0, 90),
    heads=st.integers(1, 3),
    group=st.integers(1, 5),
)
def test_the_heads_that_pay_most_in_any_shape(length: int, window: int, since: int, heads: int, group: int) -> None:
    view, window = random_view(length=length, group=group, heads=heads), min(window, length)
    since = min(since, window)
    found = normalized(view, window, length).paid_most(length, since).cpu().double()
    each = shares(view, window, length)[:, :, since:]
    torch.testing.assert_close(found, each.flatten(0, 1).amax(dim=0).sum(dim=0), rtol=2e-5, atol=1e-7)


def test_queries_of_more_bits_than_keys_keep_them() -> None:
    view = random_view(length=90, dtype=torch.bfloat16)
    view = view._replace(queries=view.queries.float() * 1.0003)
    torch.testing.assert_close(paid(view, 8, 90, 90).double(), expected(view, 8, 90, 90), rtol=2e-5, atol=1e-7)


@settings(max_examples=4, deadline=None)
@given(length=st.integers(1, 90), window=st.integers(1, 90), group=st.integers(1, 5), seed=st.integers(0, 9))
def test_any_shape_with_absent_columns(length: int, window: int, group: int, seed: int) -> None:
    view, window = random_view(length=length, group=group, heads=2, seed=seed), min(window, length)
    absent = torch.rand(2, length, generator=torch.Generator().manual_seed(seed)) < 0.3
    absent[:, length - window :] = False
    view = view._replace(absent=absent)
    found = paid(view, window, length, length)
    torch.testing.assert_close(found.double(), expected(view, window, length, length), rtol=2e-5, atol=1e-7)


def test_rows_of_other_strides_are_read_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "SMALLEST_CHUNK", 64)  # several chunks
    view = random_view(length=300)
    spread = view._replace(keys=view.keys.transpose(0, 1).contiguous().transpose(0, 1))
    assert torch.equal(paid(view, 8, 300, 292), paid(spread, 8, 300, 292))


def served(view: LayerView) -> LayerView:
    """The view where Triton's kernels run."""
    moved = {name: each.to(DEVICE) for name, each in view._asdict().items() if isinstance(each, Tensor)}
    return view._replace(**moved)


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton serves whatever the device."""
    monkeypatch.setattr(support, "serves", lambda rows: True)


def sums(view: LayerView) -> list[Tensor]:
    """Whatever scorers and allocators ask of a window."""
    return [
        torch_form.window_mass(view, 8, "visible"),
        torch_form.window_mass(view, 8, "prefix"),
        torch_form.attention_mass(view, 20),
        torch_form.attention_paid(view, 20),
        *window_attention(view, 20)[1:],
    ]


def test_scorers_ask_triton_where_it_serves(request: pytest.FixtureRequest) -> None:
    view = random_view(length=120, dtype=torch.float16)
    mine = sums(view)
    request.getfixturevalue("everywhere")
    for here, there in zip(mine, sums(served(view)), strict=True):
        torch.testing.assert_close(there.cpu(), here, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(
    "scorer", [KVEC(), KVEC(window=3, wide_window=70, wide_heads=1), KVEC(window=40, wide_window=40)], ids=str
)
def test_kvec_ranks_alike(scorer: KVEC, request: pytest.FixtureRequest) -> None:
    view = random_view(length=90, heads=3, group=3, dtype=torch.float16)
    view = view._replace(coverage=torch.arange(90, dtype=torch.int32) % 3, layer=2)
    mine = scorer.rank(view)
    request.getfixturevalue("everywhere")
    request.getfixturevalue("monkeypatch").setattr(kvec, "attention_blocks", None)  # no matrix is made
    found = scorer.rank(served(view))
    torch.testing.assert_close(found.scores.cpu(), mine.scores, rtol=2e-5, atol=1e-6)
    torch.testing.assert_close(found.basis.cpu(), mine.basis, rtol=2e-5, atol=1e-6)


def folded(view: LayerView, seed: int, window: int) -> LayerView:
    """The view as of a long generation: heads hold tokens of their own before the window, some fewer than others."""
    generator = torch.Generator().manual_seed(seed)
    heads, length, _ = view.keys.shape
    positions = torch.full((heads, length), -1)
    positions[:, length - window :] = torch.arange(2 * length, 2 * length + window)
    for head in range(heads):
        held = int(torch.randint(0, length - window + 1, (), generator=generator))
        positions[head, :held] = torch.randperm(2 * length, generator=generator)[:held].sort().values
    absent = positions < 0
    return view._replace(positions=positions, absent=absent, keys=view.keys.masked_fill(absent[..., None], 0))


@settings(max_examples=6, deadline=None)
@given(
    window=st.integers(1, 20),
    wider=st.integers(0, 20),
    before=st.integers(1, 80),
    heads=st.integers(1, 3),
    group=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_votes_of_heads_that_hold_different_tokens(
    window: int, wider: int, before: int, heads: int, group: int, seed: int
) -> None:
    length = before + window
    view = folded(random_view(heads=heads, group=group, length=length, seed=seed), seed, window)
    scorer = KVEC(window=window, wide_window=window + wider)
    rows = min(window + wider, length)
    asked = view._replace(queries=view.queries[:, length - rows :])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(support, "serves", lambda rows: True)
        patch.setattr(kvec, "attention_blocks", None)  # no matrix is made
        found = scorer._votes(served(asked))
    each = shares(asked, rows, length)
    wide, inside = each.mean(dim=1), each[:, :, rows - window :]
    importance = torch.zeros(heads, before, dtype=torch.float64)
    for query in range(window):
        best: dict[int, float] = {}
        for head in range(heads):
            for column in range(length):
                token, most = int(view.positions[head, column]), float(inside[head, :, query, column].max())
                best[token] = max(best.get(token, 0.0), most)
        importance += torch.tensor([[best[token] for token in row[:before]] for row in view.positions.tolist()])
    wanted = (inside.mean(dim=1).mean(dim=1)[:, :before], wide.mean(dim=1)[:, :before], importance / window)
    held = ~view.absent[:, :before]
    for mine, definition in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine.cpu().double()[held], definition[held], rtol=2e-5, atol=1e-7)


def test_a_fold_makes_no_matrix_of_what_every_query_pays(everywhere: None) -> None:
    heads, group, length = 2, 3, 600
    view = served(folded(random_view(heads=heads, group=group, length=length, dtype=torch.float16), 1, 16))
    view = view._replace(queries=view.queries[:, -32:].clone())
    with LargestTensor() as seen:
        KVEC().rank(view)
    # Nothing larger than the keys, whose bytes the interpreter counts; a matrix has sixteen queries at least.
    assert seen.elements <= view.keys.nbytes < heads * group * 16 * length


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests/cache/test_cuda.py has it on the device")
def test_long_generations_fold_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("llama", num_hidden_layers=3)
    model.set_attn_implementation("winnow")

    def generated() -> tuple[Tensor, list[list[int]]]:
        cache = winnow.CompressedCache(model, "kvec(window=4, wide_window=8) @ 14", fold_every=8)
        ids, found = prompt(length=40), []
        with torch.no_grad():
            for step in range(20):
                found.append(model(ids, past_key_values=cache).logits[:, -1])
                ids = torch.tensor([[(7 * step) % 50]])
        return torch.stack(found), [head.tolist() for layer in range(3) for head in cache.kept(layer)]

    logits, kept = generated()
    asked: list[int] = []
    monkeypatch.setattr(on_gpu, "serves", lambda view: asked.append(view.keys.shape[1]) is None)
    found, its = generated()
    assert len(asked) == 9  # three layers of a prompt and of two folds
    assert its == kept
    torch.testing.assert_close(found, logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("normalize", [False, True])
def test_kvzip_finds_what_it_finds_on_the_cpu(normalize: bool, request: pytest.FixtureRequest) -> None:
    view = random_view(length=70, dtype=torch.float16)
    view = view._replace(queries=view.queries[:, -30:])
    mine = KVzip(normalize=normalize).replayed(ReplayView(view, 4, 36, torch.arange(30.0)))
    request.getfixturevalue("everywhere")
    replay = ReplayView(served(view), 4, 36, torch.arange(30.0, device=DEVICE))
    torch.testing.assert_close(KVzip(normalize=normalize).replayed(replay).cpu(), mine, rtol=2e-5, atol=1e-6)


def test_keys_are_not_copied_for_sums_over_a_whole_prompt(monkeypatch: pytest.MonkeyPatch, everywhere: None) -> None:
    view, met = served(random_view(length=50, dtype=torch.float16)), []

    def noted(asked: Asked) -> Normalized:
        met.append(asked.keys)
        return Normalized(asked)

    monkeypatch.setattr(scoring, "Normalized", noted)
    monkeypatch.setattr(torch_form.prefill, "supports", lambda queries, keys: False)  # as there
    torch_form.attention_paid(view, 50)
    assert [keys.data_ptr() for keys in met] == [view.keys.data_ptr()]


@pytest.mark.skipif(DEVICE.type != "cpu", reason="four gigabytes of a GPU")
def test_queries_of_a_long_prompt_lie_further_apart_than_32_bits_count():
    # Heads of a token lie side by side, so that tokens of a prompt of some hundred thousand span more than 2³¹ numbers.
    # Pages that nobody touches take no memory.
    def paid(stride: int) -> Tensor:
        queries = torch.empty(2 * stride + 16, dtype=torch.float16).as_strided((1, 3, 16), (3 * stride, stride, 1))
        queries.copy_(torch.randn(1, 3, 16, generator=torch.Generator().manual_seed(1)))
        keys = torch.randn(1, 8, 16, generator=torch.Generator().manual_seed(2)).half()
        return Normalized(Asked(queries, keys, 0.25, None, None, None, 8)).paid(8)

    assert torch.equal(paid(1 << 30), paid(1024))
