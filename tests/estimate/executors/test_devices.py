"""GPUs are given to workers in turn."""

from __future__ import annotations

import pytest

from winnow.estimate.executors.devices import devices_of


@pytest.mark.parametrize(
    ("device", "workers", "gpus", "expected"),
    [
        ("auto", 3, 0, ["auto"] * 3),
        ("cpu", 2, 0, ["cpu"] * 2),
        ("auto", 2, 1, ["auto"] * 2),
        ("cuda", 2, 1, ["cuda"] * 2),
        ("auto", 4, 4, ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]),
        ("cuda", 5, 2, ["cuda:0", "cuda:1", "cuda:0", "cuda:1", "cuda:0"]),
        ("cuda", 2, 8, ["cuda:0", "cuda:1"]),
        ("cuda:1", 2, 8, ["cuda:1", "cuda:1"]),
    ],
)
def test_workers_take_gpus_in_turn(device: str, workers: int, gpus: int, expected: list[str]) -> None:
    assert devices_of(device, workers, gpus) == expected
