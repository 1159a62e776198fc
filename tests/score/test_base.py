"""The contract of every scorer: shapes, what is guaranteed, no nan, fp32."""

from __future__ import annotations

import pytest
import torch

from support.views import random_view, score
from winnow.score import (
    H2O,
    RKV,
    TOVA,
    Critical,
    ExpectedAttention,
    Full,
    KeyDiff,
    Knorm,
    Random,
    Scorer,
    SnapKV,
    StreamingLLM,
    TriAttention,
)

ALL = [Full(), Random(), StreamingLLM(), SnapKV(), H2O(), TOVA(), Knorm(), KeyDiff(), ExpectedAttention()]
ALL += [Critical(base=SnapKV()), SnapKV(aggregate="defensive"), RKV(), TriAttention()]


@pytest.mark.parametrize("scorer", ALL, ids=str)
@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 30])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_contract(scorer: Scorer, length: int, dtype: torch.dtype) -> None:
    view = random_view(heads=2, group=3, length=length, dtype=dtype)
    scores = score(scorer, view)
    assert scores.shape == (2, length)
    assert scores.dtype == torch.float32
    assert not scores.isnan().any()
    # +inf marks exactly what is guaranteed, and the window is part of it
    assert (scores.isinf().sum(dim=1) == min(scorer.guaranteed, length)).all()
    assert scores[:, length - min(scorer.window, length) :].isinf().all()
    assert torch.equal(scores, score(scorer, view))


@pytest.mark.parametrize("scorer", [SnapKV(), H2O(), TOVA(), KeyDiff(), RKV()], ids=str)
def test_low_precision_is_scored_in_fp32(scorer: Scorer) -> None:
    view = random_view(heads=2, group=2, length=60, dtype=torch.bfloat16)
    exact = view._replace(queries=view.queries.float(), keys=view.keys.float())
    torch.testing.assert_close(score(scorer, view), score(scorer, exact), rtol=1e-5, atol=1e-7)
