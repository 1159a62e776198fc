"""Kept sets equal those of kvpress 0.5.5 wherever it has the same method with the same options.

Where it differs, and what is compared then:
- It rounds budgets down from a ratio per layer; slots here are set to what it keeps.
- Its PyramidKV counts the window into the schedule's numbers (the paper adds the window to them), so that
  every layer holds `window` slots fewer than planned. Compared: its layer budgets with the schedule; sets.
- Its AdaKV guarantees every head some slots and lets heads compete for the rest; the paper (and Winnow) mixes
  the result of the competition with the mean. Equal without a floor; with one, its slots per head are taken
  over and the sets compared.
- Its ObservedAttention is H2O's score, normalized, without the recent half.
- Its CriticalKV multiplies the scores as they are, which turns the order of negative ones (knorm, keydiff) round;
  only bases without are compared. Its CriticalAdaKV has AdaKV's slots per head, which are taken over.
- Its TOVA always keeps the last token: TOVA(keep_last=True).
- Its KVzip does not repeat what a chat template puts before a text, which then goes first, but for the sinks; Winnow
  repeats it, too. Compared: a tokenizer without a template.
- Its DuoAttention has no budget either: with the same scores and share of streaming heads, the same sets.
- Its LU-KV gives the leftover of a layer to its heads, and gives every head one slot: within one slot of ours for the
  same table, and the same sets for its slots.
- Ties: torch.topk leaves them open there. Random keys have none.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

import winnow
from support.families import build
from support.launcher import COMMANDS, launcher
from support.ready import random_scores
from support.views import one_layer, random_view, shown_to
from winnow import HeadScores
from winnow.allocate import LUKV, Ada, Allocator, SlotPlan, Uniform
from winnow.allocate.pyramid import pyramid
from winnow.budget import Budget
from winnow.bundled import MODEL_PATH
from winnow.cache.rotary import Embedding, Rotary
from winnow.composition.method import Method
from winnow.heads import BudgetCurves
from winnow.score import H2O, TOVA, Critical, ExpectedAttention, KeyDiff, Knorm, Scorer, SnapKV, StreamingLLM
from winnow.select import select
from winnow.store import Cost, Dense
from winnow.view import LayerView

PEER = Path(__file__).parent / "support" / "peer_selections.py"
SHAPES = {  # heads, group, length, dim
    "small": (2, 1, 160, 16),
    "grouped": (4, 4, 300, 16),
    "odd": (3, 7, 201, 8),
}
RATIOS = [0.25, 0.5]
PEER_SNAPKV = SnapKV(window=64, kernel=5, pool="avg", pool_first=True)
SAME: dict[str, tuple[Scorer, str, dict[str, Any]]] = {
    "snapkv": (PEER_SNAPKV, "SnapKVPress", {}),
    "snapkv-small": (
        SnapKV(window=8, kernel=7, pool="avg", pool_first=True),
        "SnapKVPress",
        {"window_size": 8, "kernel_size": 7},
    ),
    "streamingllm": (StreamingLLM(), "StreamingLLMPress", {}),
    "knorm": (Knorm(), "KnormPress", {}),
    "keydiff": (KeyDiff(), "KeyDiffPress", {}),
    "keydiff-blocks": (KeyDiff(block=7), "KeyDiffPress", {}),
    "keydiff-block": (KeyDiff(block=128), "KeyDiffPress", {}),
    "tova": (TOVA(keep_last=True), "TOVAPress", {}),
    "h2o": (H2O(recent=0, normalize=True), "ObservedAttentionPress", {}),
    "expected": (ExpectedAttention(), "ExpectedAttentionPress", {}),
    "expected-epsilon": (ExpectedAttention(epsilon=0.02), "ExpectedAttentionPress", {"epsilon": 0.02}),
    "expected-mean": (
        ExpectedAttention(covariance=False, value_norm=False, future=64),
        "ExpectedAttentionPress",
        {"use_covariance": False, "use_vnorm": False, "n_future_positions": 64},
    ),
}
BLOCKS = {"keydiff-blocks": 7, "keydiff-block": 128}
"""Tokens of a block, where the peer's BlockPress evicts block by block."""
CRITICAL = ("snapkv", "snapkv-small", "h2o", "tova", "expected-mean")
ADA = {name: SAME[name] for name in ("snapkv", "snapkv-small", "knorm", "keydiff", "expected-epsilon")}
CURVES = ("snapkv-small", "knorm", "keydiff")
LAYERS = 6


def view_of(tensors: str, layer: int = 0) -> LayerView:
    heads, group, length, dim = SHAPES[tensors]
    return random_view(heads, group, length, dim, seed=len(tensors), layer=layer, layers=LAYERS)


def view_for(name: str, tensors: str) -> LayerView:
    """The same layer, its queries rotated where the method looks at them before their rotation."""
    view = view_of(tensors)
    if not name.startswith("expected"):
        return view
    dim = view.keys.shape[-1]
    embedding = LlamaRotaryEmbedding(LlamaConfig(head_dim=dim))
    cos, sin = embedding(view.queries, torch.arange(view.keys.shape[1])[None])
    queries, _ = apply_rotary_pos_emb(view.queries[None], view.queries[None], cos, sin)
    rotation = Rotary(Embedding(embedding, None), dim, slice(0, dim // 2), neighbors=False, clockwise=False)
    return view._replace(queries=queries[0], rotation=rotation)


def case_of(
    name: str,
    tensors: str,
    ratio: float,
    layer: int = 0,
    safeguard: float | None = None,
    press: str = "",
    critical: bool = False,
    duo: dict[str, Any] | None = None,
) -> dict[str, Any]:
    heads, group, _, _ = SHAPES[tensors]
    _, own_press, options = SAME[name]
    return {
        "press": press or own_press,
        "options": options,
        "tensors": tensors,
        "ratio": ratio,
        "safeguard": safeguard,
        "critical": critical,
        "block": BLOCKS.get(name),
        "duo": duo,
        "attentions": name == "h2o",
        "heads": heads,
        "group": group,
        "layer": layer,
        "layers": LAYERS,
    }


def all_cases() -> Iterator[dict[str, Any]]:
    for name, tensors, ratio in product(SAME, SHAPES, RATIOS):
        yield case_of(name, tensors, ratio)
    for name, tensors, safeguard in product(ADA, SHAPES, [0.0, 0.2]):
        yield case_of(name, tensors, 0.25, safeguard=safeguard)
    for name, tensors, ratio in product(CRITICAL, SHAPES, RATIOS):
        yield case_of(name, tensors, ratio, critical=True)
    for name, tensors in product(CRITICAL, SHAPES):
        yield case_of(name, tensors, 0.5, safeguard=0.2, critical=True)
    for tensors, ratio, layer in product(SHAPES, [0.5, 0.8], range(LAYERS)):
        yield case_of("snapkv-small", tensors, ratio, layer=layer, press="PyramidKVPress")
    for tensors, ratio, layer in product(SHAPES, [0.25, 0.5], range(LAYERS)):
        yield duo_case(tensors, ratio, layer)
    for name, tensors, ratio in product(CURVES, SHAPES, RATIOS):
        yield curves_case(name, tensors, ratio)


def duo_case(tensors: str, streaming: float, layer: int) -> dict[str, Any]:
    """A layer of a model whose `streaming` share of heads keeps 8 sinks and 24 recent tokens."""
    scores = gates(tensors).values.tolist()
    duo = {"streaming": streaming, "sinks": 8, "recent": 24, "scores": scores}
    return case_of("streamingllm", tensors, 0.0, layer=layer, press="DuoAttentionPress", duo=duo)


def replay_cases(directory: Path) -> Iterator[dict[str, Any]]:
    """A small model with the bundled tokenizer, which reads its prompt twice."""
    tokens = torch.randint(5, 800, (150,), generator=torch.Generator().manual_seed(3)).tolist()
    for plus, chunk, ratio in [(False, 2048, 0.8), (False, 64, 0.5), (True, 64, 0.8), (True, 50, 0.9)]:
        options = {"kvzip_plus_normalization": plus, "chunk_size": chunk}
        yield {"press": "KVzipPress", "model": str(directory), "tokens": tokens, "ratio": ratio, "options": options}


@pytest.fixture(scope="module")
def replay_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of that model."""
    directory = tmp_path_factory.mktemp("replay")
    tokenizer = AutoTokenizer.from_pretrained(MODEL_PATH)
    assert tokenizer.chat_template is None
    tokenizer.save_pretrained(directory)
    build("llama", vocab_size=len(tokenizer), pad_token_id=None).save_pretrained(directory)
    return directory


def gates(tensors: str) -> HeadScores:
    return random_scores((LAYERS, SHAPES[tensors][0]), "duoattention", seed=len(tensors))


def budget_curves(tensors: str) -> BudgetCurves:
    """Shares that rise from nothing to everything, for every head at its own pace."""
    generator = torch.Generator().manual_seed(len(tensors))
    pace = torch.rand(1, LAYERS, SHAPES[tensors][0], generator=generator) + 0.5
    return BudgetCurves((torch.arange(1, 100)[:, None, None] / 100) ** pace)


def curves_case(name: str, tensors: str, ratio: float) -> dict[str, Any]:
    return case_of(name, tensors, ratio, layer=1) | {"curves": budget_curves(tensors).ratios.tolist()}


Peer = dict[str, list[list[int]]]


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory, replay_model: Path) -> Peer:
    """Tokens that kvpress keeps in every case, by the case's JSON text."""
    if importlib.util.find_spec("kvpress") is None:
        pytest.skip("kvpress is not installed: pip install --no-deps kvpress==0.5.5 and what it imports")
    folder = tmp_path_factory.mktemp("peer")
    cases = [*all_cases(), *replay_cases(replay_model)]
    parts = ("queries", "keys", "values", "output_projection")
    arrays = {f"{name}-{part}": getattr(view_of(name), part).numpy() for name, part in product(SHAPES, parts)}
    np.savez(folder / "cases.npz", cases=np.array(json.dumps(cases)), **arrays)
    program = PEER.read_text(encoding="utf-8")
    run = launcher(COMMANDS).python(program, str(folder / "cases.npz"), str(folder / "kept.json"))
    if "ModuleNotFoundError" in run.stderr or "PackageNotFoundError" in run.stderr:
        pytest.skip(f"kvpress cannot be imported: {run.stderr.strip().splitlines()[-1]}")
    assert run.returncode == 0, run.stderr
    results = json.loads((folder / "kept.json").read_text(encoding="utf-8"))
    return {json.dumps(case): kept for case, kept in zip(cases, results, strict=True)}


def chosen_by(scorer: Scorer, allocator: Allocator, view: LayerView, total: int) -> list[list[int]]:
    """Tokens that Winnow keeps, per head."""
    chosen = Method("peer", scorer, allocator, Dense(), Budget.parse("50%"))
    heads, length, _ = view.keys.shape
    shown = shown_to(scorer, view)._replace(layer=0)
    positions, offsets = chosen.select(shown, one_layer(heads, length, total, min(scorer.guaranteed, length)))
    bounds = offsets.tolist()
    return [positions[a:b].tolist() for a, b in pairwise(bounds)]


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("tensors", SHAPES)
@pytest.mark.parametrize("name", SAME)
def test_same_sets(peer: Peer, name: str, tensors: str, ratio: float) -> None:
    expected = peer[json.dumps(case_of(name, tensors, ratio))]
    total = sum(len(head) for head in expected)
    assert chosen_by(SAME[name][0], Uniform(), view_for(name, tensors), total) == expected


@pytest.mark.parametrize("tensors", SHAPES)
@pytest.mark.parametrize("name", ADA)
def test_same_sets_when_heads_compete(peer: Peer, name: str, tensors: str) -> None:
    expected = peer[json.dumps(case_of(name, tensors, 0.25, safeguard=0.0))]
    total = sum(len(head) for head in expected)
    assert len({len(head) for head in expected}) > 1
    assert chosen_by(SAME[name][0], Ada(floor=0), view_for(name, tensors), total) == expected


@pytest.mark.parametrize("tensors", SHAPES)
@pytest.mark.parametrize("name", ADA)
def test_same_sets_for_the_slots_of_its_safeguard(peer: Peer, name: str, tensors: str) -> None:
    expected = peer[json.dumps(case_of(name, tensors, 0.25, safeguard=0.2))]
    scorer = SAME[name][0]
    positions, offsets = select(
        scorer(shown_to(scorer, view_for(name, tensors))), torch.tensor([len(head) for head in expected])
    )
    assert [part.tolist() for part in positions.tensor_split(offsets[1:-1])] == expected


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("tensors", SHAPES)
@pytest.mark.parametrize("name", CRITICAL)
def test_same_sets_in_two_stages(peer: Peer, name: str, tensors: str, ratio: float) -> None:
    expected = peer[json.dumps(case_of(name, tensors, ratio, critical=True))]
    total = sum(len(head) for head in expected)
    base, view = SAME[name][0], view_for(name, tensors)
    assert chosen_by(Critical(base=base), Uniform(), view, total) == expected
    assert chosen_by(base, Uniform(), view, total) != expected


@pytest.mark.parametrize("tensors", SHAPES)
@pytest.mark.parametrize("name", CRITICAL)
def test_same_sets_in_two_stages_for_slots_that_heads_competed_for(peer: Peer, name: str, tensors: str) -> None:
    expected = peer[json.dumps(case_of(name, tensors, 0.5, safeguard=0.2, critical=True))]
    scorer, slots = Critical(base=SAME[name][0]), torch.tensor([len(head) for head in expected])
    view = shown_to(scorer, view_for(name, tensors))
    positions, offsets = select(scorer.refine(scorer.rank(view), slots, view), slots)
    assert [part.tolist() for part in positions.tensor_split(offsets[1:-1])] == expected


@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize("streaming", [0.25, 0.5])
@pytest.mark.parametrize("tensors", SHAPES)
def test_same_retrieval_heads(peer: Peer, tensors: str, streaming: float, layer: int) -> None:
    expected = peer[json.dumps(duo_case(tensors, streaming, layer))]
    heads, _, length, _ = SHAPES[tensors]
    chosen = winnow.method("duoattention(sinks=8, recent=24)", scores=gates(tensors), retrieval=1 - streaming)
    allocation = chosen.allocation(length, (heads,) * LAYERS, (Cost(0, 1),) * LAYERS)
    positions, offsets = chosen.select(view_of(tensors, layer), allocation)
    assert [part.tolist() for part in positions.tensor_split(offsets[1:-1])] == expected


@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize("ratio", [0.5, 0.8])
@pytest.mark.parametrize("tensors", SHAPES)
def test_same_schedule_and_sets_in_a_pyramid(peer: Peer, tensors: str, ratio: float, layer: int) -> None:
    expected = peer[json.dumps(case_of("snapkv-small", tensors, ratio, layer=layer, press="PyramidKVPress"))]
    scorer, length = SAME["snapkv-small"][0], SHAPES[tensors][2]
    levels = pyramid(length * (1 - ratio), length - scorer.window, LAYERS, beta=20)
    # it falls back to uniform layers where the last one would hold less than the window
    fits = levels[-1] >= scorer.window
    planned = round(levels[layer]) if fits else max(1, round(length * (1 - ratio)))
    assert {len(head) for head in expected} == {planned}
    assert chosen_by(scorer, Uniform(), view_of(tensors), planned * len(expected)) == expected


@pytest.mark.parametrize("number", range(4))
def test_same_slots_of_a_prompt_that_was_read_twice(peer: Peer, replay_model: Path, number: int) -> None:
    case = list(replay_cases(replay_model))[number]
    expected = peer[json.dumps(case)]
    model = AutoModelForCausalLM.from_pretrained(replay_model)
    model.set_attn_implementation("winnow")
    plus, chunk = case["options"].values()
    mean, left = divmod(sum(map(len, expected)), len(expected))
    assert left == 0
    method = winnow.method("kvzip", mean, normalize=plus, chunk=chunk)
    tokenizer = AutoTokenizer.from_pretrained(replay_model)
    context = winnow.compress(model, torch.tensor([case["tokens"]]), method, tokenizer=tokenizer)
    kept = [head.tolist() for layer in range(model.config.num_hidden_layers) for head in context.kept(layer)]
    assert len({len(head) for head in kept}) > 1
    assert kept == expected


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("tensors", SHAPES)
@pytest.mark.parametrize("name", CURVES)
def test_same_slots_and_sets_by_budget_curves(peer: Peer, name: str, tensors: str, ratio: float) -> None:
    expected = peer[json.dumps(curves_case(name, tensors, ratio))]
    counts = torch.tensor([len(head) for head in expected])
    heads, _, length, _ = SHAPES[tensors]
    plan = SlotPlan(round(LAYERS * heads * length * (1 - ratio)), (heads,) * LAYERS, length, 0)
    published = LUKV(budget_curves(tensors), rounding="paper").slots(plan)[1]
    assert bool(((counts - published >= 0) & (counts - published <= 1)).all())
    scorer = SAME[name][0]
    positions, offsets = select(scorer(shown_to(scorer, view_of(tensors))), counts)
    assert [part.tolist() for part in positions.tensor_split(offsets[1:-1])] == expected
