"""One of OpenVINO GenAI's caches on a GGUF file, timed by turns: questions and answers are those of llama-turns.

    python benchmarks/peers/genai_turns.py MODEL.gguf --room 4112 [--precision u8] [--percent 10]

Its own clock is read: milliseconds of inference, without choosing tokens. The token after a prompt, whose step changes
shapes once, is left out. A prompt that comes again is not read again, unless its blocks are evicted. Reads Llama, Qwen2
and Qwen3 in blocks of Q4_0, Q4_1, Q8_0, Q4_K and Q6_K.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import openvino
import openvino_genai as genai

BLOCK = 32
"""Tokens that are evicted together on CPUs."""
FIRST, LAST = BLOCK, 2 * BLOCK
"""Tokens that eviction always leaves."""
CHUNK = 2048
"""Tokens of a prompt that are read at a time, as many as the other engines read."""
WORDS = 1000
"""Tokens of random prompts are below; every vocabulary has as many."""


class Pipelines:
    """The model with one kind of cache: a pipeline for every number of threads, and, where it evicts, every depth."""

    def __init__(self, model: str, precision: str, room: int, percent: int | None) -> None:
        """room: tokens of all prompts together, with those after them; percent: of a prompt that eviction leaves."""
        self._model, self._precision, self._room, self._percent = model, precision, room, percent
        self._made: dict[tuple[int, int], Any] = {}

    def infer(self, threads: int, depth: int, steps: int) -> list[float]:
        """Milliseconds of the prompt and of every token after it."""
        kind = (threads, 0 if self._percent is None else depth)
        if kind not in self._made:
            self._made[kind] = self._pipeline(threads, depth)
        # Prompts have no beginning in common: it would be read once for all depths.
        tokens = np.random.default_rng(depth).integers(10, WORDS, (1, depth or 1))
        prompt = genai.TokenizedInputs(openvino.Tensor(tokens), openvino.Tensor(np.ones_like(tokens)))
        settings = genai.GenerationConfig()
        settings.max_new_tokens = steps
        settings.ignore_eos = True
        found = self._made[kind].generate(prompt, settings).perf_metrics.raw_metrics.token_infer_durations
        return [microseconds / 1000 for microseconds in found]

    def _pipeline(self, threads: int, depth: int) -> Any:
        return genai.LLMPipeline(
            self._model,
            "CPU",
            scheduler_config=self._scheduler(depth),
            INFERENCE_NUM_THREADS=threads,
            KV_CACHE_PRECISION=self._precision,
        )

    def _scheduler(self, depth: int) -> Any:
        settings = genai.SchedulerConfig()
        settings.max_num_batched_tokens = CHUNK
        settings.num_kv_blocks = 2 * (self._room // BLOCK) + 8
        settings.enable_prefix_caching = self._percent is None
        if self._percent is not None:
            kept = max(depth * self._percent // 100 // BLOCK * BLOCK, FIRST + LAST + BLOCK)
            settings.use_cache_eviction = True
            settings.cache_eviction_config = genai.CacheEvictionConfig(
                FIRST, LAST, kept, genai.AggregationMode.NORM_SUM
            )
        return settings


def answer(pipelines: Pipelines, line: str) -> list[float]:
    """Milliseconds that a question asks for."""
    what, *numbers = line.split()
    if what == "prompt":
        threads, *depths = map(int, numbers)
        return [pipelines.infer(threads, depth, 1)[0] for depth in depths]
    depth, threads, steps = map(int, numbers)
    return [fmean(pipelines.infer(threads, depth, steps + 2)[2:])]


def main() -> None:
    """Answers until there are no more questions."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--room", type=int, required=True, help="tokens of all prompts, with those after them")
    parser.add_argument("--precision", default="u8", help="of keys and values: f16, u8 or u4")
    parser.add_argument("--percent", type=int, help="of a prompt that eviction leaves")
    options = parser.parse_args()
    print(json.dumps({"weight_bytes": Path(options.model).stat().st_size}), flush=True)
    pipelines = Pipelines(options.model, options.precision, options.room, options.percent)
    for line in sys.stdin:
        print(json.dumps({"ms": answer(pipelines, line)}), flush=True)


if __name__ == "__main__":
    main()
