"""Time and memory on a GPU, or on the CPU where a benchmark is tried in miniature."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

import torch

Run = Callable[[], object]
FLUSH_BYTES = 1 << 28
"""Written between two runs: more than any second-level cache holds."""


class Times(NamedTuple):
    """Milliseconds of every contender in all rounds; contenders took turns."""

    ms: dict[str, list[float]]
    captured: frozenset[str]
    """Contenders that were replayed from a CUDA graph, so that the host's part does not count."""

    def median(self, name: str) -> float:
        """Median milliseconds."""
        return statistics.median(self.ms[name])

    def ratio(self, over: str, under: str) -> float:
        """Median over the rounds of time(over) / time(under)."""
        return statistics.median(a / b for a, b in zip(self.ms[over], self.ms[under], strict=True))


class Clock:
    """Times of runs on one device."""

    def __init__(self, device: torch.device, rounds: int) -> None:
        """rounds: in which every contender runs once, after one to warm up."""
        self.device = device
        self.rounds = rounds
        self._flush = torch.empty(FLUSH_BYTES if device.type == "cuda" else 1, dtype=torch.int8, device=device)

    def times(self, contenders: Mapping[str, Run], capture: bool = True) -> Times:
        """All contenders, in turns; captured in CUDA graphs where there is a GPU and they allow it."""
        runs, captured = dict(contenders), set()
        for name, run in contenders.items():
            run()
            graph = self.captured(run) if capture and self.device.type == "cuda" else None
            if graph is not None:
                runs[name] = graph.replay
                captured.add(name)
        found: dict[str, list[float]] = {name: [] for name in runs}
        for done in range(self.rounds + 1):
            for name, run in runs.items():
                ms = self.once(run)
                if done:
                    found[name].append(ms)
        return Times(found, frozenset(captured))

    def once(self, run: Run) -> float:
        """Milliseconds of one run, with nothing of what it reads in a cache."""
        self._flush.zero_()
        if self.device.type != "cuda":
            begin = time.perf_counter()
            run()
            return 1e3 * (time.perf_counter() - begin)
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        stop.record()
        torch.cuda.synchronize(self.device)
        return start.elapsed_time(stop)

    def captured(self, run: Run) -> torch.cuda.CUDAGraph | None:
        """The run as a CUDA graph, or None where it does what cannot be captured."""
        graph = torch.cuda.CUDAGraph()
        with suppress(RuntimeError):
            torch.cuda.synchronize(self.device)
            with torch.cuda.graph(graph):
                run()
            return graph
        torch.cuda.synchronize(self.device)
        return None


def host_us(run: Run, clock: Clock) -> float:
    """Microseconds that the host takes for one run, which the device may still be busy with."""
    run()
    wait(clock.device)
    begin = time.perf_counter()
    for _ in range(clock.rounds):
        run()
    found = 1e6 * (time.perf_counter() - begin) / clock.rounds
    wait(clock.device)
    return found


def wait(device: torch.device) -> None:
    """Returns when the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def copy_bandwidth(clock: Clock, megabytes: int) -> float:
    """GB/s read and written by a copy within the device's memory."""
    source = torch.ones(megabytes << 20, dtype=torch.int8, device=clock.device)
    target = torch.empty_like(source)
    times = clock.times({"copy": lambda: target.copy_(source)})
    return 2 * source.nbytes / times.median("copy") / 1e6


def free_bytes(device: torch.device) -> int:
    """Bytes that can be allocated now."""
    if device.type != "cuda":
        return 1 << 32
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]


def peak_reset(device: torch.device) -> int:
    """Starts to watch the peak; returns the bytes that are allocated now."""
    if device.type != "cuda":
        return 0
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def peak_bytes(device: torch.device) -> int:
    """Most bytes allocated since `peak_reset`."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
