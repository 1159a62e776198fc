"""Devices of workers: several GPUs of a machine are given out in turn."""

from __future__ import annotations


def devices_of(device: str, workers: int, gpus: int) -> list[str]:
    """The device of every worker, by name.

    gpus: those that "cuda" could mean here, 0 where the workers run on none. With several each worker has one of its
    own, as long as there are; a device that names its GPU ("cuda:1") is that of all.
    """
    if gpus < 2 or device not in ("auto", "cuda"):
        return [device] * workers
    return [f"cuda:{worker % gpus}" for worker in range(workers)]
