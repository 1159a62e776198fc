"""A model whose chat template tells the time, and clocks that are wrong."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from winnow.bundled import MODEL_PATH

OF_DAY = "{{ 'the ' * (strftime_now('%d') | int) }}{% for m in messages %}{{ m.content }} {% endfor %}"
"""A template that tells the day of the month by words that the bundled model's tokenizer knows: as many as it is."""
DATED = "{{ 'of ' * (strftime_now('%H') | int) }}" + OF_DAY
"""The same with the hour."""


def dated_model(path: Path, template: str = DATED) -> Path:
    """The bundled model with a chat template that tells the time."""
    shutil.copytree(MODEL_PATH, path)
    (path / "chat_template.jinja").write_text(template)
    return path


def set_clocks_of_templates(monkeypatch: pytest.MonkeyPatch, days: Iterator[int]) -> None:
    """Chat templates think, whenever they ask, that it is so many days and hours later."""

    def now() -> datetime:
        later = next(days)
        return datetime.now() + timedelta(days=later, hours=later)

    monkeypatch.setattr("transformers.utils.chat_template_utils.datetime", SimpleNamespace(now=now))


def every_day_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chat templates think that each of their questions is asked on another day."""
    set_clocks_of_templates(monkeypatch, count(1))
