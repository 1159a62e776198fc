"""Time of prompts and tokens of models with linear states, in llama.cpp and in Winnow, with random weights of 4 bits.

    python benchmarks/peers/hybrid_models.py        # writes docs/results/hybrid_models-VENDOR.*

llama.cpp reads a GGUF file in Q4_0, Winnow a model of the same shape in int4: both have a scale for 32 numbers of 4
bits. llama.cpp is built in build/peers the first time (CMake and a C++ compiler, some minutes).
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hybrid_gguf import write_hybrid_gguf
from hybrid_shapes import configurations
from shape_race import Race, run


def main() -> None:
    """Measures and writes the table."""
    run(Race("hybrid_models", "Models with linear states", configurations(), write_hybrid_gguf), __doc__)


if __name__ == "__main__":
    main()
