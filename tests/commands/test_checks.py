"""Checks of output paths and of lengths."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from winnow.commands.checks import check_apart, check_context, prepare_output
from winnow.commands.inputs import InputError
from winnow.errors import WinnowError


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "file.png").write_text("precious")


@pytest.mark.parametrize("name", ["new.png", "NEW.PNG", "some/new/folder/new.png"])
def test_free_names_get_their_folder(name):
    prepare_output(Path(name), force=False, suffix=".png")
    assert Path(name).parent.is_dir()
    assert not Path(name).exists()
    assert not list(Path(name).parent.glob(".*"))


@pytest.mark.parametrize(
    ("name", "suffix", "force", "said"),
    [
        ("new.pdf", ".png", True, "new.pdf is not a name for a .png file: call it new.png."),
        ("folder.png", ".png", True, "folder.png is a directory; name a file in it."),
        ("file.png", ".png", False, "file.png exists; give another name, or --force to replace it."),
        ("file.png/new.png", ".png", False, "file.png is a file; give a folder."),
        ("file.png", "", False, "file.png exists"),
    ],
)
def test_others_are_refused(name, suffix, force, said):
    before = sorted(Path().rglob("*"))
    with pytest.raises(WinnowError) as caught:
        prepare_output(Path(name), force, suffix)
    assert said in str(caught.value)
    assert sorted(Path().rglob("*")) == before


def test_existing_files_are_replaced_by_force():
    prepare_output(Path("file.png"), force=True, suffix=".png")
    assert Path("file.png").read_text() == "precious"


def test_a_prompt_leaves_room():
    source = SimpleNamespace(context=2048)
    check_context(source, 2047, "The prompt")
    check_context(source, 2048, "The prompt", room=0)
    check_context(SimpleNamespace(context=None), 1 << 40, "The prompt")
    with pytest.raises(InputError, match=r"^The prompt has 2,048 tokens and needs room for an answer; "):
        check_context(source, 2048, "The prompt")
    with pytest.raises(InputError, match=r"^The prompt has 2,049 tokens; the model reads 2,048 at most"):
        check_context(source, 2049, "The prompt", room=0)


def test_two_results_are_two_files():
    check_apart(out=Path("a"), picture=None, journal=Path("b"))
    Path("link").symlink_to("a")
    with pytest.raises(InputError, match="--out and --journal are the same file, link; give two names"):
        check_apart(out=Path("a"), picture=None, journal=Path("link"))


def test_safetensors_files_have_names_that_can_be_read():
    with pytest.raises(InputError, match="not a UTF-8 name"):
        prepare_output(Path("caf\udce9.safetensors"), force=False, suffix=".safetensors")
