"""Results as kvpress' `evaluation/evaluate.py` writes them, for its leaderboard.

One folder per configuration, `DATASET__DATA_DIR__MODEL__PRESS__RATIO`, with `predictions.csv`, `metrics.json` and
`config.yaml`. Lengths of RULER and tasks of the other benchmarks are data directories there. The compression ratio is
the share of the full cache's slots that are gone, as measured; predictions have the bytes as well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from statistics import fmean
from typing import Any, NamedTuple

import yaml  # transformers brings it

from winnow.runs.export.file_names import short
from winnow.runs.export.flat import table_text
from winnow.runs.export.means import mean_scores
from winnow.runs.export.press_names import press_name
from winnow.runs.folder import Run
from winnow.runs.measures import measures
from winnow.runs.rows import Row, rows_by

_BY_LENGTH = "ruler"
"""The benchmark whose data directories are lengths; those of others are tasks."""
_COLUMNS = ("question", "answer_prefix", "task", "max_new_tokens", "predicted_answer", "compression_ratio")
_MORE = ("length", "example", "held_bytes", "full_bytes")


class Configuration(NamedTuple):
    """One folder of results."""

    run: Run
    data_dir: str | None
    press: str
    method: str
    rows: Sequence[Row]
    ratios: Sequence[float]
    """Shares of the slots that are gone, row by row."""

    @property
    def ratio(self) -> float:
        """The mean over its rows."""
        return fmean(self.ratios)

    @property
    def query_aware(self) -> bool:
        """True if the question was seen at compression."""
        return bool(self.run.about.protocol.get("question_seen"))

    @property
    def folder(self) -> str:
        """Its name."""
        about = self.run.about
        limit = about.protocol.get("max_prompt_tokens")
        parts = [
            about.benchmark,
            self.data_dir,
            about.model.name.replace("/", "--"),
            self.press,
            f"{self.ratio:.2f}",
            f"max_context{limit}" if limit else None,
            "query_aware" if self.query_aware else None,
        ]
        return short("__".join(_safe(part) for part in parts if part))


def kvpress_files(run: Run) -> dict[PurePath, str]:
    """The texts of all files, by their paths in the folder of results.

    Two methods of one name and ratio go as kvpress' own repetitions do: the second into a folder "1" in the first's.
    """
    found: dict[PurePath, str] = {}
    for configuration in _configurations(run):
        folder = _free(PurePath(configuration.folder), found)
        found[folder / "predictions.csv"] = _predictions(configuration)
        found[folder / "metrics.json"] = json.dumps(_metrics(configuration), indent=4)
        found[folder / "config.yaml"] = yaml.safe_dump(_config(configuration), sort_keys=False, allow_unicode=True)
    return found


def _configurations(run: Run) -> list[Configuration]:
    by_length = run.about.benchmark == _BY_LENGTH
    groups = rows_by(run.rows, lambda row: (row.method, str(row.facts.get("length", "")) if by_length else row.task))
    full = {(row.task, row.example): row.slots for row in run.rows if row.method == "full"}
    return [
        Configuration(run, data_dir or None, press_name(method), method, rows, [_ratio(row, full) for row in rows])
        for (method, data_dir), rows in groups.items()
    ]


def _predictions(configuration: Configuration) -> str:
    """A run keeps no prefixes of answers: that column is empty."""
    answers = "answers" if configuration.run.about.benchmark == "longbench" else "answer"
    entries = (
        {
            "task": row.task,
            "question": row.question,
            answers: row.answers,
            "predicted_answer": row.prediction,
            "compression_ratio": ratio,
            "length": row.facts.get("length"),
            "example": row.example,
            "held_bytes": row.held_bytes,
            "full_bytes": row.full_bytes,
        }
        for row, ratio in zip(configuration.rows, configuration.ratios, strict=True)
    )
    return table_text([*_COLUMNS, answers, *_MORE], entries)


def _ratio(row: Row, full: Mapping[tuple[str, str], float]) -> float:
    """The share of the full cache's slots that are gone; where only a context is compressed, of that context's."""
    whole = full.get((row.task, row.example)) or max(1, row.prompt_tokens)
    return 1 - row.slots / whole


def _metrics(configuration: Configuration) -> Any:
    """As the scorer of the benchmark gives them: shares are in percent."""
    tasks = rows_by(configuration.rows, lambda row: row.task)
    found = {
        task: {name: _rounded(name, each) for name, each in mean_scores(rows).items()} for task, rows in tasks.items()
    }
    match configuration.run.about.benchmark:
        case "ruler":
            return {task: {"string_match": next(iter(scores.values()))} for task, scores in found.items()}
        case "longbench":
            return next(iter(found[configuration.rows[0].task].values()))
    return found


def _rounded(measure: str, value: float) -> float:
    known = measures().get(measure)
    return round(100 * value, 2) if known is not None and known.percent else round(value, 4)


def _config(configuration: Configuration) -> dict[str, Any]:
    """The fields of kvpress' `EvaluationConfig`, in its order."""
    about = configuration.run.about
    return {
        "dataset": about.benchmark,
        "data_dir": configuration.data_dir,
        "model": about.model.name,
        "device": configuration.run.environment.get("device"),
        "press_name": configuration.press,
        "compression_ratio": round(configuration.ratio, 4),
        "key_channel_compression_ratio": None,
        "fraction": 1.0,
        "max_new_tokens": None,
        "max_context_length": about.protocol.get("max_prompt_tokens"),
        "query_aware": configuration.query_aware,
        "needle_depth": None,
        "compression_interval": None,
        "target_size": None,
        "hidden_states_buffer_size": None,
        "output_dir": "./results",
        "log_level": "INFO",
        "model_kwargs": {"dtype": about.model.dtype},
        "press_init_command": f"winnow.method({configuration.method!r})",
        "seed": about.request.get("seed"),
        "fp8": False,
    }


def _safe(part: str) -> str:
    """A part of a folder's name, which two underscores divide."""
    return re.sub(r"_{2,}", "_", re.sub(r"[^\w.,=()+-]+", "_", part)).strip("_") or "_"


def _free(folder: PurePath, taken: dict[PurePath, str]) -> PurePath:
    candidates = [folder, *(folder / str(number) for number in range(1, len(taken) + 2))]
    return next(each for each in candidates if each / "metrics.json" not in taken)
