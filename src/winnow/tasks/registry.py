"""Benchmarks by name. Their modules are imported when they are asked for."""

from __future__ import annotations

from importlib import import_module

from winnow.errors import closest
from winnow.tasks.benchmark import Benchmark, UnknownBenchmark

_PLACES = {
    "facts": "winnow.tasks.facts:FACTS",
}


def benchmarks() -> list[Benchmark]:
    """All of them."""
    return [benchmark(name) for name in _PLACES]


def benchmark(name: str) -> Benchmark:
    """The benchmark of a name. Raises UnknownBenchmark, with what there is."""
    if name not in _PLACES:
        raise UnknownBenchmark(f"There is no benchmark {name!r}: {closest(name, _PLACES)}")
    module, attribute = _PLACES[name].split(":")
    found: Benchmark = getattr(import_module(module), attribute)
    return found
