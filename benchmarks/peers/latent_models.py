"""Time of prompts and tokens of models with latent attention, in llama.cpp and in Winnow, with random 4-bit weights.

    python benchmarks/peers/latent_models.py        # writes docs/results/latent_models-VENDOR.*

llama.cpp reads a GGUF file in Q4_0, Winnow a model of the same shape in int4: both have a scale for 32 numbers of 4
bits. Both cache latents. llama.cpp is built in build/peers the first time (CMake and a C++ compiler, some minutes).
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from latent_gguf import write_latent_gguf
from latent_shapes import configurations
from shape_race import Race, run


def main() -> None:
    """Measures and writes the table."""
    run(Race("latent_models", "Models with latent attention", configurations(), write_latent_gguf), __doc__)


if __name__ == "__main__":
    main()
