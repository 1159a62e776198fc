"""Texts and names of results on a command line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import typer

from winnow.commands.options.values import plain_text, result_file, result_folder, share, temperature


@pytest.mark.parametrize("name", ["a", "a b", " a", "some/folder/a", "./-", "naïve", os.fsdecode(b"\xff"), Path("a")])
def test_names_of_results(name):
    assert result_file(name) == result_folder(name) == Path(name)


def test_a_tilde_that_the_shell_left_is_the_home_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/home/anna")
    assert result_file("~/a") == result_folder("~/a") == Path("/home/anna/a")


@pytest.mark.parametrize("name", ["", " ", "\t ", "-", "nul\0byte", "half\ud800"])
def test_what_names_no_result(name):
    for read in (result_file, result_folder):
        with pytest.raises(typer.BadParameter):
            read(name)


@pytest.mark.parametrize("name", ["a/", "a/.", "a/..", "/"])
def test_a_folder_is_no_file(name):
    with pytest.raises(typer.BadParameter, match="names a folder"):
        result_file(name)
    assert result_folder(name) == Path(name)


def test_texts():
    assert plain_text("garçon 何") == "garçon 何"
    for text in ("half\ud800", os.fsdecode(b"wh\xff")):
        with pytest.raises(typer.BadParameter, match="not valid UTF-8 text"):
            plain_text(text)


def test_temperatures_and_shares():
    assert [temperature(text) for text in ("0", "0.7", "1e1", 0.0)] == [0, 0.7, 10, 0]
    assert [share(text) for text in ("1", "0.05", 1.0)] == [1, 0.05, 1]


@pytest.mark.parametrize("text", ["", "warm", "-0.1", "nan", "inf", "-inf", "0,7"])
def test_what_is_no_temperature_and_no_share(text):
    for read in (temperature, share):
        with pytest.raises(typer.BadParameter):
            read(text)
    for outside in ("0", "1.01"):
        with pytest.raises(typer.BadParameter, match="above 0, up to 1"):
            share(outside)
