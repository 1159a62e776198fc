"""Benchmarks' files from the Hugging Face hub, fetched once and kept in its cache."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from winnow.tasks.benchmark import BenchmarkError

HUB = "hub"
"""Data that is to be fetched (`--data hub`)."""


class OnHub(NamedTuple):
    """Files of a data set on the hub."""

    repository: str
    patterns: tuple[str, ...]


def download(source: OnHub, benchmark: str, content: str) -> Path:
    """The folder with the files. Raises BenchmarkError where the hub cannot be reached or does not have them."""
    # Slow to import, and needed by nobody who has the files.
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(source.repository, repo_type="dataset", allow_patterns=list(source.patterns)))
    except (OSError, ValueError) as problem:
        reason = str(problem).strip().split("\n", maxsplit=1)[0] or type(problem).__name__
        raise BenchmarkError(
            f"Cannot download {source.repository} for {benchmark} from the hub ({reason}). Download it on a machine "
            f"with internet access, and give --data with {content}."
        ) from None
