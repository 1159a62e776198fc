"""Every family and every part of a method on a GPU: as the stock cache with all room, as on the CPU with little."""

from __future__ import annotations

import warnings

import pytest
import torch
from transformers import DynamicCache, PreTrainedModel

import winnow
from support.families import EVERY, build, build_any, prompt

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here"),
]
PROMPT, STEPS = 40, 8
CLOSE = 2e-3
"""Absolute, on logits of small random models: products of the two devices are summed in different orders."""
ALIKE = 0.97
"""Share of kept tokens that both devices keep, at least: scores that are nearly the same may change places."""
GREEDY = {"do_sample": False, "max_new_tokens": STEPS, "pad_token_id": 0}
NEEDS_A_FILE = {"scores", "curves", "mean"}
"""Parameters without which a part cannot be made."""
REPEAT = ("kvzip", "kvzip-plus")
"""Methods that read the prompt again once it is over, which `winnow.compress` does."""


def names(kind: str) -> list[str]:
    """Names of parts of a kind that need no file of a model's."""
    return [
        record.name
        for record in winnow.methods()
        if record.kind == kind and NEEDS_A_FILE.isdisjoint(each.name for each in record.parameters if not each.default)
    ]


ONCE = [name for name in names("method") if name not in REPEAT]


@torch.no_grad()
def fed(model: PreTrainedModel, cache, ids: torch.Tensor) -> torch.Tensor:
    """Logits [R, 1 + STEPS, V] on the CPU: of a prompt's last token, and of further tokens given one by one."""
    ids, length = ids.to(model.device), ids.shape[1] - STEPS
    found = [model(ids[:, :length], past_key_values=cache, use_cache=True).logits[:, -1:]]
    for place in range(length, ids.shape[1]):
        found.append(model(ids[:, place : place + 1], past_key_values=cache, use_cache=True).logits)
    return torch.cat(found, dim=1).float().cpu()


@pytest.mark.parametrize("family", EVERY)
def test_room_for_everything_changes_nothing(family: str) -> None:
    model, ids = build_any(family).cuda(), prompt(rows=2, length=PROMPT + STEPS)
    expected = fed(model, DynamicCache(config=model.config.get_text_config(decoder=True)), ids)
    model.set_attn_implementation("winnow")
    for method in ("full", f"adakv(window=4) @ {PROMPT}"):
        found = fed(model, winnow.CompressedCache(model, method), ids)
        torch.testing.assert_close(found, expected, rtol=0, atol=CLOSE)


@pytest.mark.parametrize("family", EVERY)
def test_answers_within_graphs_are_those_without(family: str) -> None:
    """To the token; where a replayed step is none of the model's there is a warning, which fails."""
    model = build_any(family).cuda()
    model.set_attn_implementation("winnow")
    ids = prompt(length=PROMPT).cuda()
    plain, graphed = (winnow.CompressedCache(model, "adakv(window=4) @ 12") for _ in range(2))
    expected = model.generate(ids, past_key_values=plain, **GREEDY)
    with winnow.step_graphs(model), warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*CUDA graph")
        found = model.generate(ids, past_key_values=graphed, **GREEDY)
    assert torch.equal(found, expected)
    assert graphed.stats().slots == plain.stats().slots


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize(
    "name", [*sorted({*names("method")} - {*REPEAT}), *(f"adakv+{store}" for store in names("store"))]
)
def test_every_method_keeps_what_it_keeps_on_the_cpu(name: str, rows: int) -> None:
    here, there = build("llama"), build("llama").cuda()
    ids, written = prompt(rows=rows, length=PROMPT + STEPS), name if name == "full" else f"{name} @ 20"
    caches, logits = [], []
    for model in (here, there):
        model.set_attn_implementation("winnow")
        caches.append(winnow.CompressedCache(model, written))
        logits.append(fed(model, caches[-1], ids))
    both = total = 0
    for layer in range(here.config.num_hidden_layers):
        for row in range(rows):
            for kept, other in zip(*(each.kept(layer, row) for each in caches), strict=True):
                both += len(set(kept.tolist()) & set(other.tolist()))
                total += len(kept)
    assert both >= ALIKE * total
    if both == total:
        # Rounded numbers may fall to the other side.
        tolerance = 5e-2 if "bits" in name or "kivi" in name else CLOSE
        torch.testing.assert_close(logits[1], logits[0], rtol=0, atol=tolerance)
