"""Files of what was answered: a table of all answers, a picture that compares methods."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from winnow.commands.answer_about import in_columns
from winnow.commands.answer_picture import draw_answers
from winnow.commands.answers import AnswerResult, as_entry
from winnow.commands.console import messages
from winnow.commands.model_names import model_name
from winnow.commands.options.run import RunOptions
from winnow.files import write_text
from winnow.models import ModelSource
from winnow.runs.export.flat import table_text


def write_files(
    options: RunOptions, source: ModelSource, results: Sequence[AnswerResult], place: dict[str, Any]
) -> None:
    """Writes those that the options name, and says so. Raises FileError where one cannot be written.

    place: facts that all answers share, from `place_of`.
    """
    written = []
    if options.csv is not None:
        written.append(write_csv(options.csv, model_name(source), results, place))
    if options.picture is not None:
        written.append(draw_answers(options.picture, model_name(source), results))
    for path in written:
        messages().print(f"Written: {path}", markup=False, soft_wrap=True)


def write_csv(path: Path, model: str, results: Sequence[AnswerResult], place: dict[str, Any]) -> Path:
    """One row per answer and method, with what `--json` tells but the slots of every head."""
    rows = [in_columns(as_entry(result, model) | place) for result in results]
    columns = [name for name in rows[0] if name != "slots"]
    write_text(path, table_text(columns, rows))
    return path
