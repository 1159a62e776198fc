"""Numbers and lengths that a request asks a generated benchmark for."""

from __future__ import annotations

from winnow.tasks.benchmark import BenchmarkError, Request


def asked_examples(request: Request, usual: int) -> int:
    """Examples of every task. Raises BenchmarkError for none or fewer."""
    count = usual if request.examples is None else request.examples
    if count < 1:
        raise BenchmarkError(f"At least one example of every task is needed, not {count}.")
    return count


def asked_lengths(request: Request, usual: tuple[int, ...]) -> tuple[int, ...]:
    """Lengths without repetition, in the order given. Raises BenchmarkError for negative ones."""
    lengths = tuple(dict.fromkeys(request.lengths or usual))
    for length in lengths:
        if length < 0:
            raise BenchmarkError(f"A prompt cannot have {length} tokens; give a positive number.")
    return lengths
