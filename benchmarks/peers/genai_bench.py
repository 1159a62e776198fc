"""Times of OpenVINO GenAI on a GGUF file, printed as llama-bench prints its own.

    python benchmarks/peers/genai_bench.py MODEL.gguf --depth 4096 --threads 2 [--precision u8] [--percent 10]

Its own clock is read: milliseconds of inference, without choosing tokens. The token after a prompt, whose step changes
shapes once, is left out. Reads Llama, Qwen2 and Qwen3 in blocks of Q4_0, Q4_1, Q8_0, Q4_K and Q6_K.
"""

from __future__ import annotations

import argparse
import json
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


def scheduler(depth: int, steps: int, percent: int | None) -> Any:
    """Room for the prompt and its tokens; without eviction a prompt that comes again is not read again."""
    settings = genai.SchedulerConfig()
    settings.max_num_batched_tokens = CHUNK
    settings.num_kv_blocks = 2 * (depth + steps) // BLOCK + 8
    settings.enable_prefix_caching = percent is None
    if percent is not None:
        kept = max(depth * percent // 100 // BLOCK * BLOCK, FIRST + LAST + BLOCK)
        settings.use_cache_eviction = True
        settings.cache_eviction_config = genai.CacheEvictionConfig(FIRST, LAST, kept, genai.AggregationMode.NORM_SUM)
    return settings


def measure(options: argparse.Namespace) -> list[int]:
    """Nanoseconds of every repetition: of the prompt where no steps are asked for, else of all steps together."""
    pipeline = genai.LLMPipeline(
        options.model,
        "CPU",
        scheduler_config=scheduler(options.depth, options.steps, options.percent),
        INFERENCE_NUM_THREADS=options.threads,
        KV_CACHE_PRECISION=options.precision,
    )
    tokens = np.random.default_rng(0).integers(10, WORDS, (1, options.depth or 1))
    prompt = genai.TokenizedInputs(openvino.Tensor(tokens), openvino.Tensor(np.ones_like(tokens)))
    settings = genai.GenerationConfig()
    settings.max_new_tokens = options.steps + 2 if options.steps else 1
    settings.ignore_eos = True
    found = []
    for _ in range(options.repeats):
        microseconds = list(pipeline.generate(prompt, settings).perf_metrics.raw_metrics.token_infer_durations)
        timed = microseconds[2:] if options.steps else microseconds[:1]
        found.append(round(1000 * sum(timed)))
    return found


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--precision", default="u8", help="of keys and values: f16, u8 or u4")
    parser.add_argument("--percent", type=int, help="of the prompt that eviction leaves")
    for name in ("--depth", "--threads", "--steps", "--repeats"):
        parser.add_argument(name, type=int, default=1)
    options = parser.parse_args()
    with open(options.model, "rb") as file:
        size = file.seek(0, 2)
    test = {"model_size": size, "n_threads": options.threads, "n_gen": options.steps, "samples_ns": measure(options)}
    print(json.dumps([test]))


if __name__ == "__main__":
    main()
