"""A stand-in for llama-turns: takes its arguments and answers its questions, with times that are known."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

FIXED_MS, MS_OF_A_TOKEN = 20.0, {"f16": 0.01, "q8_0": 0.012, "q4_0": 0.016}
"""Milliseconds of a token on one thread without any context, and what a token of context adds, by type of cache."""
PROMPT_MS = 1.5
"""Milliseconds of a token of a prompt."""
WEIGHT_BYTES = 4000


def token_ms(kind: str, depth: int, threads: int) -> float:
    """Milliseconds of a token."""
    return (FIXED_MS + MS_OF_A_TOKEN[kind] * depth) / threads


def main(arguments: list[str]) -> None:
    """Answers like llama-turns, and is as strict."""
    model, room, kind, flash = arguments
    assert Path(model).exists(), model
    assert flash == "1" or kind == "f16"
    print(json.dumps({"weight_bytes": WEIGHT_BYTES}), flush=True)
    read: list[int] = []
    for line in sys.stdin:
        what, *words = line.split()
        numbers = [int(word) for word in words]
        if what == "prompt":
            read = numbers[1:]
            assert read == sorted(read), read
            assert read[-1] < int(room), room
            ms = [PROMPT_MS * depth for depth in read]
        else:
            depth, threads, steps = numbers
            assert depth in (0, *read), f"{depth} tokens were not read"
            assert depth + steps < int(room), room
            ms = [token_ms(kind, depth, threads)]
        print(json.dumps({"ms": ms}), flush=True)


def write_program(path: Path, body: str | None = None) -> Path:
    """An executable of that name that does the same, or `body`, in Python."""
    here = Path(__file__).resolve()
    same = f"import sys\nsys.path.insert(0, {str(here.parent)!r})\nfrom {here.stem} import main\nmain(sys.argv[1:])\n"
    path.write_text(f"#!{sys.executable}\n{same if body is None else body}", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path
