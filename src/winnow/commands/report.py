"""`winnow report`: runs as a page that a browser opens."""

from __future__ import annotations

import os.path
from collections.abc import Sequence
from pathlib import Path

from winnow.commands.console import messages, output
from winnow.commands.options.report import ReportOptions
from winnow.commands.progress import Bar, stage
from winnow.report.page import (
    PAGE,
    Content,
    Section,
    check_free,
    content_of,
    plotly_script,
    render,
    sections_of,
    write_folder,
)
from winnow.runs.folder import ABOUT, Run, RunError, read_run


def report(options: ReportOptions) -> None:
    """Reads the runs, works out the numbers, writes the folder."""
    check_free(options.out, options.force)
    plotly_script()
    with stage("Reading runs") as bar:
        sections = sections_of(_read(options.runs, bar))
        contents = [_content(section, number, bar) for number, section in enumerate(sections, start=1)]
        bar.show(f"Writing {options.out}")
        files = render(options.title or _title(sections), contents)
        write_folder(options.out, files, options.force)
    size = sum(map(len, files.values())) / 2**20
    output().print(f"Written: {options.out / PAGE} ({size:.1f} MiB)", soft_wrap=True, markup=False)


def _read(folders: Sequence[Path], bar: Bar) -> list[Run]:
    """Runs with results. Those that have none yet are left out, with a line, where others were found beside them."""
    found: list[Run] = []
    empty: list[Run] = []
    for folder in dict.fromkeys(run for each in folders for run in _runs_in(each)):
        bar.show(f"Reading {folder}")
        run = read_run(folder)
        (found if run.rows else empty).append(run)
    for run in empty:
        told = f"{run.path} is a run without a finished result; let winnow eval go on with it first."
        if run.path in folders or not found:
            raise RunError(told)
        messages().print(told, markup=False, soft_wrap=True)
    return found


def _runs_in(folder: Path) -> list[Path]:
    """The folder itself, or those inside it that are runs."""
    if os.path.exists(folder / ABOUT) or not os.path.isdir(folder):
        return [folder]
    try:
        inside = sorted(folder.iterdir())
    except OSError as problem:
        raise RunError(f"Cannot read {folder}: {problem.strerror}.") from None
    return [path for path in inside if os.path.exists(path / ABOUT)] or [folder]


def _content(section: Section, number: int, bar: Bar) -> Content:
    about = section.about
    name = f"{about.benchmark}, {about.protocol.get('name', 'no protocol')}"
    return content_of(section, number, lambda done, of: bar.show(f"Working out {name}: {done} of {of}"))


def _title(sections: Sequence[Section]) -> str:
    """Benchmarks and models of all sections."""
    benchmarks = dict.fromkeys(section.about.benchmark for section in sections)
    models = dict.fromkeys(Path(section.about.model.name).name for section in sections)
    return f"{', '.join(benchmarks)} · {', '.join(models)}"
