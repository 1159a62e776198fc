"""Benchmarks by name. Their modules are imported when they are asked for."""

from __future__ import annotations

from importlib import import_module

from winnow.errors import closest
from winnow.tasks.benchmark import Benchmark, UnknownBenchmark

_PLACES = {
    "facts": "winnow.tasks.facts:FACTS",
    "ruler": "winnow.tasks.ruler:RULER",
    "niah": "winnow.tasks.niah:NIAH",
    "babilong": "winnow.tasks.babilong:BABILONG",
    "longbench": "winnow.tasks.longbench.benchmarks:LONGBENCH",
    "longbench-e": "winnow.tasks.longbench.benchmarks:LONGBENCH_E",
    "longbench-kvpress": "winnow.tasks.longbench.benchmarks:LONGBENCH_KVPRESS",
    "loogle": "winnow.tasks.loogle.benchmarks:LOOGLE",
    "loogle-headkv": "winnow.tasks.loogle.benchmarks:LOOGLE_HEADKV",
    "gsm8k": "winnow.tasks.mathematics.gsm8k:GSM8K",
    "gsm-symbolic": "winnow.tasks.mathematics.gsm_symbolic:GSM_SYMBOLIC",
    "math": "winnow.tasks.mathematics.math:MATH",
    "text": "winnow.tasks.texts.text:TEXT",
    "choice": "winnow.tasks.texts.choice:CHOICE",
    "file": "winnow.tasks.texts.own_file:FILE",
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
