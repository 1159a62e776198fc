"""`winnow export`: results of a run in the forms of other programs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePath

from winnow.commands.console import messages
from winnow.commands.options.export import ExportOptions, Form
from winnow.commands.progress import stage
from winnow.files import prepare_target, write_text
from winnow.runs.export import csv_text, harness_files, json_text, kvpress_files
from winnow.runs.folder import Run, RunError, read_run


def export(options: ExportOptions) -> None:
    """Writes all files, or none where one of them is there already."""
    with stage("Reading the results"):
        run = read_run(options.run)
    if not run.rows:
        raise RunError(f"{options.run} has no results yet; run winnow eval first.")
    with stage("Writing"):
        files = _files(options.form, run)
        _write({options.out / name if name.parts else options.out: text for name, text in files.items()}, options.force)
    written = options.out if len(files) == 1 else f"{options.out} ({len(files)} files)"
    messages().print(f"Written: {written}", markup=False, soft_wrap=True)


def _files(form: Form, run: Run) -> Mapping[PurePath, str]:
    """Texts by their paths in the output; the empty path is the output itself."""
    match form:
        case "kvpress":
            return kvpress_files(run)
        case "lm-eval":
            return harness_files(run)
        case "csv":
            return {PurePath(): csv_text(run)}
        case "json":
            return {PurePath(): json_text(run)}


def _write(files: Mapping[Path, str], force: bool) -> None:
    for path in files:
        prepare_target(path, overwrite=force)
    for path, text in files.items():
        write_text(path, text, overwrite=force)
