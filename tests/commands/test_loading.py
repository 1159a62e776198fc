"""Models that workers of a command load themselves."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from winnow.bundled import MODEL_PATH
from winnow.commands.loading import spec_of
from winnow.commands.options.shared import ModelOptions
from winnow.models import open_model


def test_workers_in_another_folder_find_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    shutil.copytree(MODEL_PATH, tmp_path / "m")
    monkeypatch.chdir(tmp_path / "here")
    source = open_model("../m")
    options = ModelOptions(dtype="float32")
    spec = spec_of(source, options)
    # What users read stays as they wrote it.
    assert source.name == "../m"
    monkeypatch.chdir("/")
    assert spec.load()[0].num_parameters() > 0
    assert spec.dtype == "float32"
    assert spec_of(replace(source, name="Qwen/Qwen3-8B"), options).name == "Qwen/Qwen3-8B"
