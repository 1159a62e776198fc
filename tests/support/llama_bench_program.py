"""A stand-in for llama-bench: takes its arguments and prints its JSON, with times that are known."""

from __future__ import annotations

import argparse
import json
import stat
import sys
from pathlib import Path

FIXED_MS, MS_OF_A_TOKEN = 20.0, {"f16": 0.01, "q8_0": 0.012, "q4_0": 0.016}
"""Milliseconds of a token on one thread without any context, and what a token of context adds, by type of cache."""
PROMPT_MS = 1.5
"""Milliseconds of a token of a prompt."""


def token_ms(kind: str, depth: int, threads: int) -> float:
    """Milliseconds of a token."""
    return (FIXED_MS + MS_OF_A_TOKEN[kind] * depth) / threads


def main(arguments: list[str]) -> None:
    """Prints the tests that are asked for, as many fields as matter and one that does not."""
    parser = argparse.ArgumentParser()
    for name in ("-m", "-o", "-ctk", "-ctv", "-fa", "-t"):
        parser.add_argument(name)
    for name in ("-p", "-n", "-r", "-d"):
        parser.add_argument(name, type=int, default=0)
    parser.add_argument("--no-warmup", action="store_true")
    asked = parser.parse_args(arguments)
    assert Path(asked.m).exists(), asked.m
    assert asked.fa == "on" or asked.ctv == "f16"
    tests = []
    for threads in map(int, asked.t.split(",")):
        one = PROMPT_MS * asked.p if asked.p else asked.n * token_ms(asked.ctk, asked.d, threads)
        about = {"build_commit": "0123abc", "model_type": "tiny", "model_size": 4000, "backends": "CPU"}
        counts = {"n_threads": threads, "n_prompt": asked.p, "n_gen": asked.n, "n_depth": asked.d}
        tests.append(about | counts | {"samples_ns": [round(1e6 * one)] * asked.r})
    print(json.dumps(tests, indent=2))


def write_program(path: Path, body: str | None = None) -> Path:
    """An executable of that name that does the same, or `body`, in Python."""
    here = Path(__file__).resolve()
    same = f"import sys\nsys.path.insert(0, {str(here.parent)!r})\nfrom {here.stem} import main\nmain(sys.argv[1:])\n"
    path.write_text(f"#!{sys.executable}\n{same if body is None else body}", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path
