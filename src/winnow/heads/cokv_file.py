"""CoKV's published sums of complementary contributions (Sun et al. 2025, arXiv 2502.17501), one file per size."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from winnow.errors import HeadScoresError
from winnow.heads.files import numbers, read_json
from winnow.heads.scores import HeadScores

Halves = Literal["both", "first"]
LAYOUT = "a CoKV table of cc_left, count_left, cc_right and count_right"

_SUMS = ("cc_left", "count_left", "cc_right", "count_right")
_SAMPLES = "sampling_count"
_SHAPE = ("n_players", "layers", "kv_heads")
_NAME = re.compile(r"cc_(?:(llama3|mistral|qwen3)_)?(.+?)(?:_size)?_\d+")
# The models of the paper's experiments, by the names that the files have for them.
_MODELS = {"llama3": "Meta-Llama-3-8B-Instruct", "mistral": "Mistral-7B-Instruct-v0.2", "qwen3": "Qwen3-32B"}
# Sums over many samples cancel up to the digits that a file keeps.
_CANCELS = 1e-6
_MOST = 10**12


class PublishedStratum(NamedTuple):
    """Sums over published samples, for every player in coalitions of one size."""

    sums: Tensor
    """[n] complementary contributions, added up."""
    counts: Tensor
    """[n] how many were added up."""


class _Samples(NamedTuple):
    """One file: random coalitions of `size` players, and the rest of each, of n - size players."""

    path: Path
    shape: tuple[int, int]
    size: int
    drawn: int
    """Samples that the file is made of."""
    first: PublishedStratum
    rest: PublishedStratum
    source: str


def read_cokv(
    paths: Path | str | Sequence[Path | str], halves: Halves = "both", kv_heads: int | None = None
) -> HeadScores:
    """Sliced Shapley values of one task per KV head [L, H], from its files of all coalition sizes.

    A sample splits the n players into S, of j players, and the rest, of n - j, with u = U(S) - U(rest). Every player of
    S got +u in cc_left: a sample of SV[i, j]. Every player of the rest got -u in cc_right, which is the rest's own
    complementary contribution: a sample of SV[i, n - j]. Samples of one size are pooled, whichever half they come from:

        SV[i, j] = sum of the contributions of i at size j / their count        SSV[i] = mean of SV[i, j] over the sizes

    halves="first" takes cc_left only, as the published code does for eviction. kv_heads: of a layer, for files that do
    not say it, as the published ones do not. The size is what the counts say, not the file's name; a file that repeats
    another counts once. Raises HeadScoresError for files of several tasks or models, and for a player without a sample
    at some size.
    """
    if halves not in get_args(Halves):
        raise HeadScoresError(f'halves must be "both" or "first", not {halves!r}.')
    files = [Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
    if not files:
        raise HeadScoresError("There is no CoKV file to read: give at least one.")
    model, task = _one_task(files)
    samples = [_read(file, kv_heads) for file in files]
    _check_one_shape(samples)
    different = _without_repetitions(samples)
    strata = _strata(different, halves)
    shape = different[0].shape
    try:
        values = torch.stack([_mean(size, stratum, shape) for size, stratum in strata.items()]).mean(dim=0)
        return HeadScores(
            values.view(shape),
            "cokv",
            model=model,
            samples=sum(sample.drawn for sample in different),
            notes=_notes(task, strata, halves, samples, different),
            path=files[0] if len(files) == 1 else None,
        )
    except HeadScoresError as problem:
        raise HeadScoresError(f"{files[0]}: {problem}") from None


def is_cokv(content: Mapping[str, object]) -> bool:
    """True if the object of a JSON file is laid out as such a table."""
    return any(name in content for name in _SUMS)


def task_of(path: Path) -> tuple[str, str]:
    """Model and task, as far as the file's name tells them."""
    match = _NAME.fullmatch(path.stem)
    return (_MODELS.get(match[1] or "", ""), match[2]) if match else ("", "")


def _one_task(files: Sequence[Path]) -> tuple[str, str]:
    named = {task_of(file): file for file in files if any(task_of(file))}
    if len(named) > 1:
        (_, one), (_, other), *_ = named.items()
        raise HeadScoresError(
            f"{one} and {other} are of different tasks or models: read each task by itself, then average the tables "
            "with HeadScores.mean (winnow heads convert --mean)."
        )
    return next(iter(named), ("", ""))


def _read(path: Path, kv_heads: int | None) -> _Samples:
    content = read_json(path, LAYOUT)
    missing = [name for name in (*_SUMS, _SAMPLES) if name not in content]
    if missing:
        raise HeadScoresError(f"{path} has no {' and no '.join(missing)}: it is not {LAYOUT}, or not complete.")
    count = _whole(path, _SAMPLES, content[_SAMPLES])
    lists = [numbers(content[name], f"{path}: {name}") for name in _SUMS]
    if not any(name in content for name in _SHAPE):
        lists = _players_alone(lists)
    layers, heads = _shape(path, content, len(lists[0]), kv_heads)
    if any(len(part) != layers * heads for part in lists):
        lengths = ", ".join(str(len(part)) for part in lists)
        raise HeadScoresError(
            f"{path} speaks of {layers * heads} players in {layers} layers of {heads} heads, and has lists of "
            f"{lengths}: they must agree; the file is damaged."
        )
    left, left_count, right, right_count = lists
    _check_counts(path, left_count + right_count, count)
    size = round(float(left_count.sum()) / count)
    if size * count != float(left_count.sum()):
        raise HeadScoresError(f"{path} mixes coalitions of several sizes: one file holds the samples of one size.")
    _check_signs(path, left, right, size)
    source = content.get("source")
    return _Samples(
        path, (layers, heads), size, count, PublishedStratum(left, left_count), PublishedStratum(right, right_count),
        source if isinstance(source, str) else "",
    )  # fmt: skip


def _players_alone(lists: Sequence[Tensor]) -> list[Tensor]:
    """Lists as the published code saves them, without the place behind the last player, which it never fills."""
    unused = all(len(part) > 1 and len(part) == len(lists[0]) and not part[-1] for part in lists)
    return [part[:-1] if unused else part for part in lists]


def _shape(path: Path, content: Mapping[str, object], players: int, kv_heads: int | None) -> tuple[int, int]:
    """Layers and KV heads, as the file says, or as the number of players and of KV heads does."""
    told = {name: _whole(path, name, content[name]) for name in _SHAPE if name in content}
    heads, layers, players = told.get("kv_heads", kv_heads), told.get("layers"), told.get("n_players", players)
    if heads is None and layers is None:
        raise HeadScoresError(
            f"{path} does not say how many of its {players} players are in a layer: give the KV heads of the model "
            "(--kv-heads N, kv_heads=N; num_key_value_heads in its config.json)."
        )
    heads, layers = heads or players // (layers or 1), layers or players // (heads or 1)
    if layers * heads != players:
        raise HeadScoresError(
            f"{path} has {players} players, which are not {layers} layers of {heads} heads: give the KV heads of this "
            "model, or copy the file again."
        )
    return layers, heads


def _whole(path: Path, name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST:
        raise HeadScoresError(f"{path}: {name} must be a whole number from 1 to {_MOST:,}, not {value!r}.")
    return value


def _check_counts(path: Path, counts: Tensor, samples: int) -> None:
    """Every sample has every player in one of its halves."""
    odd = (counts != samples).nonzero().flatten().tolist()
    if odd:
        raise HeadScoresError(
            f"{path}: player {odd[0]} was counted {counts[odd[0]].item():g} times in {samples} samples: every sample "
            "has every player in one half, so the file is damaged."
        )


def _check_signs(path: Path, left: Tensor, right: Tensor, size: int) -> None:
    """u goes j times into the left sums and -u goes n - j times into the right ones, so weighted they cancel."""
    others = len(left) - size
    gap = abs(float(others * left.sum() + size * right.sum()))
    if gap > _CANCELS * float(others * left.abs().sum() + size * right.abs().sum()):
        raise HeadScoresError(
            f"{path}: the two halves do not cancel, as the contributions of a coalition and of its rest do: cc_right "
            "must hold U(rest) - U(coalition)."
        )


def _check_one_shape(samples: Sequence[_Samples]) -> None:
    for sample in samples[1:]:
        if sample.shape != samples[0].shape:
            raise HeadScoresError(
                f"{samples[0].path} has {samples[0].shape[0]} layers of {samples[0].shape[1]} heads, {sample.path} has "
                f"{sample.shape[0]} of {sample.shape[1]}: files of one table are of one model."
            )


def _without_repetitions(samples: Sequence[_Samples]) -> list[_Samples]:
    """Some published files repeat the samples of another size under their name; they would count twice."""
    different: list[_Samples] = []
    for sample in samples:
        if not any(_same(sample, other) for other in different):
            different.append(sample)
    return different


def _same(one: _Samples, other: _Samples) -> bool:
    return torch.equal(one.first.sums, other.first.sums) and torch.equal(one.first.counts, other.first.counts)


def _strata(samples: Sequence[_Samples], halves: Halves) -> dict[int, PublishedStratum]:
    """The samples of every size, from whichever half, in ascending order of the sizes."""
    strata: dict[int, PublishedStratum] = {}
    for sample in samples:
        parts = {sample.size: [sample.first]}
        if halves == "both":
            parts.setdefault(sample.first.sums.numel() - sample.size, []).append(sample.rest)
        for size, found in parts.items():
            for part in found:
                known = strata.get(size)
                strata[size] = (
                    part if known is None else PublishedStratum(known.sums + part.sums, known.counts + part.counts)
                )
    return dict(sorted(strata.items()))


def _mean(size: int, stratum: PublishedStratum, shape: tuple[int, int]) -> Tensor:
    """[n] SV[i, size]"""
    never = (stratum.counts == 0).nonzero().flatten().tolist()
    if never:
        layer, head = divmod(never[0], shape[1])
        raise HeadScoresError(
            f"head {layer}-{head} was in no sampled coalition of {size} players, so it has no score there "
            f"({len(never)} such heads): take more samples, or leave this size out."
        )
    return stratum.sums / stratum.counts


def _notes(
    task: str,
    strata: Mapping[int, PublishedStratum],
    halves: Halves,
    samples: Sequence[_Samples],
    different: Sequence[_Samples],
) -> str:
    parts = [f"task {task}"] if task else []
    parts.append(f"coalition sizes {', '.join(map(str, strata))}" + ("" if halves == "both" else " (first half only)"))
    sources = dict.fromkeys(sample.source.partition(":")[0] for sample in different if sample.source)
    parts.extend(f"from {source}" for source in sources)
    repeated = len(samples) - len(different)
    if repeated:
        parts.append(f"{repeated} of {len(samples)} files repeat another and were left out")
    return "; ".join(parts)
