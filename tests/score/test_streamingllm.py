"""StreamingLLM: sinks first, then recent tokens."""

from __future__ import annotations

import pytest
import torch

from support.views import one_layer, random_view, score
from winnow.composition.names import method
from winnow.errors import MethodError
from winnow.score import StreamingLLM


@pytest.mark.parametrize("length", [1, 3, 4, 9])
def test_streamingllm_orders_by_recency_behind_the_sinks(length: int) -> None:
    scores = score(StreamingLLM(sinks=4), random_view(heads=2, length=length))
    assert scores[:, :4].isinf().all()
    assert (scores[:, 4:] == torch.arange(4, length)).all() if length > 4 else True


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: StreamingLLM(sinks=-1),
    ],
)
def test_wrong_parameters_are_refused(wrong: object) -> None:
    with pytest.raises(MethodError, match="must be"):
        wrong()  # type: ignore[operator]


def test_streamingllm_keeps_sinks_and_recent_tokens() -> None:
    positions, _ = method("streamingllm", 10).select(random_view(heads=1, length=50), one_layer(1, 50, 10, 4))
    assert positions.tolist() == [0, 1, 2, 3, 44, 45, 46, 47, 48, 49]
