"""Names of models in results."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from winnow.bundled import MODEL_PATH
from winnow.commands.model_names import model_name
from winnow.models import open_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in a folder whose name says nothing."""
    made = tmp_path_factory.mktemp("snapshots") / "8f1c"
    made.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(MODEL_PATH) / name, made)
    return made


def test_a_folder_is_named_without_its_place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_model(folder)
    assert model_name(source) == "8f1c"
    monkeypatch.chdir(folder)
    assert model_name(replace(source, name=".")) == "8f1c"
    assert model_name(replace(source, name="Qwen/Qwen3-8B")) == "Qwen/Qwen3-8B"


def test_a_link_has_the_name_that_its_owner_gave_it(folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "Meta-Llama-3-8B-Instruct"
    link.symlink_to(folder)
    assert model_name(open_model(link)) == "Meta-Llama-3-8B-Instruct"
