"""Work that need not wait for other work: branches of a CUDA graph, one after another where none is captured."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from winnow.kernels.gpu.streams import stream_for


def side_by_side(device: torch.device, works: Sequence[Callable[[], None]]) -> None:
    """All work is done, launches on a device that write nothing of each other's; later launches come after all of it.

    Outside a graph a second stream would take the host longer than it saves the device.
    """
    if len(works) < 2 or device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
        for work in works:
            work()
        return
    usual, branches = torch.cuda.current_stream(device), []
    for number, work in enumerate(works[1:]):
        branch = stream_for(f"branch {number}", device)
        branch.wait_stream(usual)
        with torch.cuda.stream(branch):
            work()
        branches.append(branch)
    works[0]()
    for branch in branches:
        usual.wait_stream(branch)
