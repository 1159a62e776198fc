"""DuoAttention's published patterns (Xiao et al. 2024, arXiv 2410.10819): a row of gates per layer, tab-separated."""

from __future__ import annotations

from pathlib import Path

import torch

from winnow.errors import HeadScoresError
from winnow.heads.files import FileKind, read_json, read_text
from winnow.heads.scores import HeadScores

LAYOUT = "a DuoAttention pattern, rows of numbers between 0 and 1"

# How far beyond 0 and 1 a trained gate is believed to be one; the published ones are within 0.0015.
_SLACK = 0.1


def read_duo(path: Path | str) -> HeadScores:
    """A table per KV head [L, H]: the trained gates, 1 for a retrieval head, 0 for a streaming head.

    Training leaves some gates slightly below 0; they are clipped to [0, 1], as the authors' own loader does. Model and
    seed come from the published config file beside it, if it is there; else the model is the file's name. Raises
    HeadScoresError for rows of different lengths and for what are no gates.
    """
    path = Path(path)
    rows = _rows(path, read_text(path, FileKind.TSV, LAYOUT))
    values = torch.tensor(rows, dtype=torch.float64, device="cpu")
    outside = (values < -_SLACK) | (values > 1 + _SLACK)
    if outside.any():
        layer, head = outside.nonzero()[0].tolist()
        raise HeadScoresError(
            f"{path} has {values[layer, head].item():g} for layer {layer}, head {head}: it is not {LAYOUT}."
        )
    model, seed = _said_by_config(path)
    try:
        return HeadScores(values.clamp(0, 1), "duoattention", model=model, seed=seed, path=path)
    except HeadScoresError as problem:
        raise HeadScoresError(f"{path}: {problem}") from None


def _rows(path: Path, text: str) -> list[list[float]]:
    rows: list[list[float]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = [float(word) for word in line.split()]
        except ValueError:
            raise HeadScoresError(f"{path}, line {number}: not a row of numbers; it is not {LAYOUT}.") from None
        if rows and len(row) != len(rows[0]):
            raise HeadScoresError(
                f"{path}, line {number}: {len(row)} heads, the first layer has {len(rows[0])}; the file is damaged or "
                "cut off; copy it again."
            )
        rows.append(row)
    if not rows:
        raise HeadScoresError(f"{path} has no rows: it is not {LAYOUT}.")
    return rows


def _said_by_config(path: Path) -> tuple[str, int | None]:
    """Model and seed of the training, from NAME.config.json or the published folder's config.json."""
    published = path.stem == "full_attention_heads"
    config = path.with_name("config.json") if published else path.with_suffix(".config.json")
    said = read_json(config, "the config of a DuoAttention pattern") if config.is_file() else {}
    model, seed = said.get("model_name"), said.get("seed")
    name = model.rstrip("/").rpartition("/")[2] if isinstance(model, str) else "" if published else path.stem
    return name, seed if isinstance(seed, int) and not isinstance(seed, bool) else None
