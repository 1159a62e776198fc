"""Fresh coalitions."""

from __future__ import annotations

import torch

from winnow.estimate.cokv.plan import Sampled
from winnow.estimate.cokv.sampling import PlayerSplits
from winnow.estimate.verify.coalitions import Redrawn, expected_batches


def test_every_head_is_in_coalitions_of_every_size():
    plan = Sampled(PlayerSplits(16, (2, 8), 0), 8)
    batches = expected_batches(plan, 0.01, 100)
    first = plan.splits.first_parts(range(batches * plan.pairs))
    assert int(first[first.sum(dim=1) == 2].sum(dim=0).min()) >= 2


def test_errors_are_those_of_a_difference_to_a_table_that_has_errors_of_its_own():
    generator = torch.Generator().manual_seed(0)
    plan = Sampled(PlayerSplits(6, (3,), 0), 8)
    again = Redrawn(lambda _: torch.rand(16, generator=generator).tolist(), plan, batches=4, examples=1, halves="both")
    assert sum(1 for _ in again.evaluate()) == again.items == 4
    alone = again.fresh(samples=10**12).errors
    torch.testing.assert_close(again.fresh(samples=32).errors, 2**0.5 * alone)
    torch.testing.assert_close(again.fresh(samples=8).errors, 5**0.5 * alone)
