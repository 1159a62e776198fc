"""Small tensors on their way to a device."""

from __future__ import annotations

import pytest
import torch

from support.elsewhere import Elsewhere, gpu_stand_in, there
from winnow.transfers import send_into, sent

CPU = torch.device("cpu")


def test_what_is_there_is_not_copied() -> None:
    tensor = torch.arange(3)
    assert sent(tensor, CPU) is tensor
    with gpu_stand_in() as notes:
        far = there(tensor)
        notes.clear()
        assert sent(far, far.device) is far
        assert not notes


def test_numbers_arrive() -> None:
    with gpu_stand_in():
        target = there(torch.zeros(3, dtype=torch.int64))
        found = sent(torch.arange(3), target.device)
        assert isinstance(found, Elsewhere)
        send_into(target, torch.arange(3))
    assert found.here.tolist() == target.here.tolist() == [0, 1, 2]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here")
def test_a_gpu_is_not_waited_for() -> None:
    device = torch.device("cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = [sent(torch.full((5,), number), device) for number in range(50)]
        target = torch.zeros(5, dtype=torch.int64, device=device)
        send_into(target, torch.arange(5))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [int(each.sum()) for each in found] == [5 * number for number in range(50)]
    assert target.tolist() == [0, 1, 2, 3, 4]
