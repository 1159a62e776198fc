"""Query centers as files: round trips, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from winnow.errors import HeadScoresError
from winnow.heads import HeadScores, QueryCenters
from winnow.heads.centers import HEADER


def centers(seed: int = 0, **facts: object) -> QueryCenters:
    generator = torch.Generator().manual_seed(seed)
    mean, sizes = torch.randn(3, 4, 8, generator=generator), torch.rand(3, 4, 8, generator=generator)
    return QueryCenters(mean, sizes, **facts)  # type: ignore[arg-type]


def test_round_trip(tmp_path: Path) -> None:
    written = centers(tokens=77, model="tiny")
    path = written.save(tmp_path / "c.safetensors")
    found = QueryCenters.load(path)
    assert torch.equal(found.mean, written.mean)
    assert torch.equal(found.sizes, written.sizes)
    assert (found.tokens, found.model, found.path) == (77, "tiny", path)
    assert (found.text, found.text_hash, found.date) == ("", "", "")
    assert str(found) == str(path)
    assert found == written != centers(1)
    assert len({found, written, centers(1)}) == 2


def test_the_origin_is_told(tmp_path: Path) -> None:
    """Text and day; centers are equal whatever is said about them."""
    told: dict[str, Any] = {"text": "reference.txt", "text_hash": "c0ffee", "date": "2026-11-27"}
    found = QueryCenters.load(centers(**told).save(tmp_path / "c.safetensors"))
    assert {name: getattr(found, name) for name in told} == told
    assert found == centers()


def test_files_of_earlier_versions_open(tmp_path: Path) -> None:
    """They tell tokens and model alone."""
    path = tmp_path / "c.safetensors"
    header = '{"version": 1, "tokens": 5, "model": "tiny"}'
    safetensors.torch.save_file(
        {"mean": torch.ones(1, 2, 4), "sizes": torch.ones(1, 2, 4)}, path, metadata={HEADER: header}
    )
    found = QueryCenters.load(path)
    assert (found.tokens, found.model, found.text, found.text_hash, found.date) == (5, "tiny", "", "", "")


@pytest.mark.parametrize(
    ("mean", "sizes", "reason"),
    [
        (torch.ones(2, 3), torch.ones(2, 3), "floating-point numbers"),
        (torch.ones(2, 3, 4), torch.ones(2, 3, 1), "not of the same shape"),
        (torch.ones(2, 3, 4), torch.ones(2, 2, 2), "not of the same shape"),
        (torch.ones(2, 3, 4), torch.full((2, 3, 4), torch.nan), "sizes .* NaN"),
        (torch.ones(2, 3, 4).long(), torch.ones(2, 3, 2), "mean .* floating-point"),
    ],
)
def test_wrong_tensors(mean: torch.Tensor, sizes: torch.Tensor, reason: str) -> None:
    with pytest.raises(HeadScoresError, match=reason):
        QueryCenters(mean, sizes)


@pytest.mark.parametrize(
    "header",
    [
        "{",
        "[]",
        '{"version": 2}',
        '{"version": 1, "tokens": 0}',
        '{"version": 1, "tokens": true}',
        '{"version": 1, "model": 3}',
        '{"version": 1, "date": 2026}',
    ],
)
def test_damaged_headers(tmp_path: Path, header: str) -> None:
    path = tmp_path / "c.safetensors"
    tensors = {"mean": torch.ones(1, 2, 4), "sizes": torch.ones(1, 2, 4)}
    safetensors.torch.save_file(tensors, path, metadata={HEADER: header})
    with pytest.raises(HeadScoresError, match=r"c\.safetensors"):
        QueryCenters.load(path)


def test_other_files(tmp_path: Path) -> None:
    scores = HeadScores(torch.ones(2, 2), "random").save(tmp_path / "s.safetensors")
    with pytest.raises(HeadScoresError, match="without query centers"):
        QueryCenters.load(scores)
    with pytest.raises(HeadScoresError, match="There is no file"):
        QueryCenters.load(tmp_path / "none.safetensors")
    (tmp_path / "text.safetensors").write_text("no tensors")
    with pytest.raises(HeadScoresError, match="damaged, or not a file"):
        QueryCenters.load(tmp_path / "text.safetensors")
    safetensors.torch.save_file(
        {"mean": torch.ones(1)}, tmp_path / "m.safetensors", metadata={HEADER: '{"version": 1}'}
    )
    with pytest.raises(HeadScoresError, match="not query centers"):
        QueryCenters.load(tmp_path / "m.safetensors")
    with pytest.raises(HeadScoresError, match="directory"):
        centers().save(tmp_path)
    with pytest.raises(HeadScoresError, match=r"name the file c\.safetensors"):
        centers().save(tmp_path / "c.txt")


def test_numbers_that_are_too_large_for_what_is_kept() -> None:
    with pytest.raises(HeadScoresError, match="infinite"):
        QueryCenters(torch.full((1, 2, 4), 1e300, dtype=torch.float64), torch.ones(1, 2, 4))


def test_centers_of_other_sizes_are_others() -> None:
    one = centers()
    other = QueryCenters(one.mean, one.sizes + 1)
    assert one != other
    assert len({one, other}) == 2
