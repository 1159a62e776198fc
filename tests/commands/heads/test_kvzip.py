"""`winnow heads kvzip`: a table in one go, from generated or given texts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import winnow
from support.asked import DOCUMENT
from winnow.commands.failures import FAILED
from winnow.heads import HeadScores

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_command_writes_a_table_that_budgets_follow(winnow_heads):
    code, out, err = winnow_heads("kvzip", "--out", "k.safetensors", "--tokens", "300")
    assert code == 0, err
    assert "4 layers of 4 KV heads; 300 tokens repeated" in out
    table = HeadScores.load("k.safetensors")
    assert (table.method, table.shape, table.heads, table.samples, table.seed) == ("kvzip", (4, 4), "kv", 1, 0)
    assert (table.model, table.license) == ("winnow-bundled", "Apache-2.0")
    asked = json.loads(table.settings)
    assert (asked["tokens"], asked["normalize"], asked["texts_from"]) == (300, False, "generated")
    for method in ("snapkv+headkv @ 32", "snapkv+cokv @ 32", "snapkv+duo", "snapkv+masking"):
        assert winnow.method(method, scores="k.safetensors").allocator.head_scores == table
    assert winnow_heads("kvzip", "--out", "k.safetensors")[0] == FAILED
    assert winnow_heads("show", "k.safetensors", "--no-map")[0] == 0


def test_texts_may_be_given(winnow_heads):
    Path("one.txt").write_text(DOCUMENT.text, encoding="utf-8")
    Path("two.txt").write_text(" ".join(reversed(DOCUMENT.text.split(". "))), encoding="utf-8")
    tables = []
    for texts in (("one.txt",), ("two.txt",), ("one.txt", "two.txt")):
        named = [part for text in texts for part in ("--text", text)]
        out = f"{len(tables)}.safetensors"
        code, _, err = winnow_heads("kvzip", "--out", out, "--plus", "--tokens", "150", "--keep-noise", *named)
        assert code == 0, err
        tables.append(HeadScores.load(out))
    one, two, both = (table.values for table in tables)
    assert both.equal(one.maximum(two))
    assert not one.equal(two)
    assert (tables[2].samples, tables[2].seed) == (2, None)
    assert json.loads(tables[2].settings)["normalize"] is True


def test_an_interrupted_command_writes_nothing(winnow_heads, monkeypatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("winnow.commands.heads.kvzip.repeated_scores", interrupted)
    assert winnow_heads("kvzip", "--out", "k.safetensors", "--tokens", "100")[0] == 130
    assert not list(Path().glob("k*"))


def test_a_text_that_says_too_little_is_refused(winnow_heads):
    Path("short.txt").write_text("Alice likes plum.", encoding="utf-8")
    code, _, err = winnow_heads("kvzip", "--out", "k.safetensors", "--text", "short.txt")
    assert code == FAILED
    assert "too few to tell heads apart; give a text of 16 or more." in err


def test_tokens_that_are_too_few_are_told_with_those_that_do(winnow_heads):
    code, _, err = winnow_heads("kvzip", "--out", "k.safetensors", "--tokens", "16")
    assert code == FAILED
    enough = err.split("give --tokens ")[1].split()[0]
    assert int(enough) > 16
    assert winnow_heads("kvzip", "--out", "k.safetensors", "--tokens", enough, "--keep-noise")[0] == 0
