"""KeyDiff against its definition in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.definitions import SHAPES, assert_scores
from support.views import random_view, refined, score
from winnow.errors import MethodError
from winnow.score import KeyDiff, Knorm
from winnow.view import LayerView


def keydiff_by_definition(view: LayerView) -> np.ndarray:
    keys = view.keys.double().numpy()
    result = np.zeros(keys.shape[:2])
    for head, rows in enumerate(keys):
        anchor = np.mean([row / np.linalg.norm(row) for row in rows], axis=0)
        for token, row in enumerate(rows):
            result[head, token] = -(row @ anchor) / np.linalg.norm(row) / np.linalg.norm(anchor)
    return result


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_keydiff(shape: tuple[int, ...]) -> None:
    view = random_view(*shape)
    assert_scores(score(KeyDiff(), view), keydiff_by_definition(view))


def test_keydiff_of_zero_keys_is_a_number() -> None:
    view = random_view(length=5)
    view.keys[:, 2] = 0
    assert (score(KeyDiff(), view)[:, 2] == 0).all()
    assert (score(KeyDiff(), view._replace(keys=torch.zeros_like(view.keys))) == 0).all()


def test_keydiff_and_knorm_do_not_depend_on_chunks() -> None:
    view = random_view(heads=1, group=1, length=2500, dim=4)
    assert_scores(score(KeyDiff(), view), keydiff_by_definition(view))
    assert_scores(score(Knorm(), view), -np.linalg.norm(view.keys.double().numpy(), axis=-1))


def left_by_definition(scorer: KeyDiff, keys: np.ndarray, count: int) -> list[int]:
    """Tokens of a head, keys [N, D], that stay where the prompt comes in blocks: `count` of them after each."""
    left = list(range(min(count, len(keys))))
    for start in range(count, len(keys), scorer.block):
        tokens = left + list(range(start, min(start + scorer.block, len(keys))))
        units = [keys[token] / np.linalg.norm(keys[token]) for token in tokens]
        anchor = np.mean(units, axis=0)
        worth = {token: -float(unit @ anchor) for token, unit in zip(tokens, units, strict=True)}
        left = sorted(sorted(tokens, key=lambda token: (-worth[token], token))[:count])
    return left


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(1, 12), st.lists(st.integers(0, 40), min_size=3, max_size=3), st.integers(0, 99))
def test_prompts_in_blocks(length: int, block: int, slots: list[int], seed: int) -> None:
    scorer, view = KeyDiff(block=block), random_view(3, 1, length, seed=seed)
    counts = [min(each, length) for each in slots]
    final = scorer.refine(scorer.rank(view), torch.tensor(counts), view)
    for head, count in enumerate(counts):
        if count == 1 and (block == 1 or (length - 1) % block == 1):
            continue  # two keys are as far from the direction between them, and rounding decides
        expected = left_by_definition(scorer, view.keys[head].double().numpy(), count)
        assert final[head].isinf().nonzero()[:, 0].tolist() == expected


def test_a_block_of_the_whole_prompt_is_the_scores_alone() -> None:
    view = random_view(2, 1, 40)
    slots = torch.tensor([9, 14])
    plain, blocked = KeyDiff(), KeyDiff(block=40)
    for head, count in enumerate(slots.tolist()):
        best = plain(view)[head].argsort(descending=True)[:count]
        final = blocked.refine(blocked.rank(view), slots, view)[head]
        assert set(final.isinf().nonzero()[:, 0].tolist()) == set(best.tolist())
    with pytest.raises(MethodError, match="block"):
        KeyDiff(block=-1)


def test_a_fold_is_a_block_of_its_own() -> None:
    view, scorer = random_view(heads=2, length=12), KeyDiff(block=2)
    scores, folded = scorer(view), view._replace(positions=torch.arange(12).expand(2, -1))
    assert torch.equal(refined(scorer, scores, [4, 4], folded), scores)
