"""Models in this machine's Hugging Face cache, and whether they can be compressed. Nothing is downloaded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import CachedRepoInfo, CacheNotFound, scan_cache_dir

from winnow.errors import WinnowError

_WEIGHTS = (".safetensors", ".bin", ".gguf")


@dataclass(frozen=True)
class LocalModel:
    """A model of the cache."""

    name: str
    bytes: int
    """On disk."""
    problem: str | None
    """Words on why it cannot be compressed; None where nothing speaks against it."""


def local_models(cache: Path | None = None) -> list[LocalModel]:
    """The models of a cache, by default this user's, by name; none where there is no cache."""
    try:
        found = scan_cache_dir(cache)
    except (CacheNotFound, ValueError):
        return []
    models = sorted((repo for repo in found.repos if repo.repo_type == "model"), key=lambda repo: repo.repo_id)
    return [LocalModel(repo.repo_id, repo.size_on_disk, _problem(repo)) for repo in models]


def _problem(repo: CachedRepoInfo) -> str | None:
    latest = max(repo.revisions, key=lambda revision: revision.last_modified, default=None)
    files = [] if latest is None else [Path(file.file_path) for file in latest.files]
    configuration = _named(files, "config.json")
    if configuration is None:
        blocks = min((file for file in files if file.suffix == ".gguf"), default=None)
        return "no config.json" + ("" if blocks is None else f"; give one of its GGUF files: --model {blocks}")
    if not any(file.suffix in _WEIGHTS for file in files):
        return "no weights"
    # Only where there is a model to look at is torch loaded.
    from winnow.commands.console import silence_libraries
    from winnow.evaluate.checking import check_directory

    silence_libraries()
    try:
        check_directory(configuration.parent)
    except WinnowError as problem:
        return str(problem)
    return None


def _named(files: Iterable[Path], name: str) -> Path | None:
    """The file of this name that lies least deep."""
    return min((file for file in files if file.name == name), key=lambda file: len(file.parts), default=None)
