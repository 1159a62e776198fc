"""KVzip as a scorer: what it makes of a replay, in blocks; the definition is in tests/cache/test_replay.py."""

from __future__ import annotations

import pytest
import torch

from support.largest_tensor import LargestTensor
from support.views import random_view
from winnow.errors import MethodError
from winnow.score import Critical, KVzip, SnapKV
from winnow.view import Extra, ReplayView


def replay_view(chunk: int, read: int, first: int = 4, **shape: int) -> ReplayView:
    view = random_view(length=first + chunk + read, **shape)
    return ReplayView(view._replace(queries=view.queries[:, -read:]), first, chunk, torch.rand(read) + 1)


def test_what_a_replay_found_is_the_score_and_first_tokens_stay() -> None:
    view = random_view(length=12)._replace(replayed=torch.rand(2, 12))
    scores = KVzip()(view)
    assert scores[:, :4].isinf().all()
    assert torch.equal(scores[:, 4:], view.replayed[:, 4:])
    assert not view.replayed.isinf().any()
    short = view._replace(keys=view.keys[:, :3], values=view.values[:, :3], replayed=view.replayed[:, :3])
    assert KVzip()(short).isinf().all()
    assert torch.equal(KVzip(sinks=0)(view), view.replayed)


@pytest.mark.parametrize("plus", [False, True])
def test_memory_does_not_grow_with_chunk_times_replay(plus: bool) -> None:
    view = replay_view(1500, 1520, heads=2, group=4)
    with LargestTensor() as largest:
        found = KVzip(normalize=plus).replayed(view)
    assert found.shape == (2, 1500)
    assert largest.elements < 8 * 1520 * 3024 / 7


def test_blocks_do_not_change_the_scores() -> None:
    view = replay_view(150, 170, heads=2, group=2)
    for scorer in (KVzip(), KVzip(normalize=True)):
        keys, queries = view.layer.keys.double(), view.layer.queries.double().view(2, 2, 170, 8)
        logits = queries @ keys[:, None].mT * view.layer.scaling
        future = torch.ones(170, 324, dtype=torch.bool).triu(324 - 170 + 1)
        paid = logits.masked_fill(future, -torch.inf).softmax(-1)[..., 4:154]
        if scorer.normalize:
            projected = view.layer.values[:, None, 4:154].double() @ view.layer.output_projection.double().view(
                2, 2, 8, -1
            )
            paid = paid * projected.norm(dim=-1)[:, :, None] / view.hidden_norms[:, None]
        torch.testing.assert_close(scorer.replayed(view).double(), paid.amax(dim=(1, 2)), atol=1e-6, rtol=1e-5)


def test_hidden_states_of_zeros_give_finite_scores() -> None:
    view = replay_view(10, 14)
    found = KVzip(normalize=True).replayed(view._replace(hidden_norms=torch.zeros(14)))
    assert found.isfinite().all()


def test_who_has_a_prompt_read_again() -> None:
    scorer = KVzip(normalize=True)
    assert scorer.replayer is scorer
    assert Critical(base=scorer).replayer is scorer
    assert SnapKV().replayer is None
    assert scorer.extras == Extra.REPLAY | Extra.OUTPUT_PROJECTION
    assert KVzip().extras == Extra.REPLAY
    assert KVzip(sinks=7).guaranteed == 7


def test_what_is_missing_is_named() -> None:
    with pytest.raises(MethodError, match="replay of the prompt, which layer 0 lacks"):
        KVzip()(random_view())
    view = replay_view(10, 14)
    with pytest.raises(MethodError, match="hidden states"):
        KVzip(normalize=True).replayed(view._replace(hidden_norms=None))
    with pytest.raises(MethodError, match="output projection"):
        KVzip(normalize=True).replayed(view._replace(layer=view.layer._replace(output_projection=None)))
    for wrong in ({"chunk": 0}, {"sinks": -1}, {"normalize": 1}):
        with pytest.raises(MethodError):
            KVzip(**wrong)
