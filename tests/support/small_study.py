"""The study on two short documents, under a few methods."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def main(arguments: Sequence[str]) -> None:
    """Tunes, measures and looks into layers; writes what was found. arguments: journal, file to write."""
    journal, out = map(Path, arguments)
    sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS / "study")]
    import torch

    import settings

    torch.set_num_threads(1)
    settings.TOKENS, settings.QUESTIONS_PER_KIND = 256, 1
    settings.VALIDATION, settings.TEST = (2_500_000,), (2_000_000, 2_000_001)
    settings.MEASURED = settings.TEST[:1]
    settings.BUDGETS, settings.TUNED_AT = (32, 64), (64,)
    settings.candidates = lambda: {"cokv": ["cokv(alpha=1)", "cokv(alpha=3)"], "headkv-r2": ["headkv-r2(beta=2)"]}
    specification = importlib.util.spec_from_file_location("study_program", BENCHMARKS / "study" / "__main__.py")
    assert specification is not None
    assert specification.loader is not None
    program = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(program)
    study = program.Study(journal)
    chosen, tuning = study.tune()
    rows = study.measure("Methods", program.at_budgets({"snapkv": "snapkv", **chosen}))
    layers = study.keeping.facts_by_layer("Layers", settings.MEASURED, [program.winnow.method("kvec", 64)])
    out.write_text(json.dumps({"chosen": chosen, "tuning": tuning, "rows": program.records(rows), "layers": layers}))
