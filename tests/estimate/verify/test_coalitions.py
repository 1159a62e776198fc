"""Fresh coalitions."""

from __future__ import annotations

from winnow.estimate.cokv.plan import Sampled
from winnow.estimate.cokv.sampling import PlayerSplits
from winnow.estimate.verify.coalitions import expected_batches


def test_every_head_is_in_coalitions_of_every_size():
    plan = Sampled(PlayerSplits(16, (2, 8), 0), 8)
    batches = expected_batches(plan, 0.01, 100)
    first = plan.splits.first_parts(range(batches * plan.pairs))
    assert int(first[first.sum(dim=1) == 2].sum(dim=0).min()) >= 2
