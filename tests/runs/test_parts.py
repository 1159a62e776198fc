"""Facts that a method's name does not say of its parts: numbers of tables, and code."""

from __future__ import annotations

import importlib
import pickle
import sys
from pathlib import Path

import pytest
import torch

from support.own_parts import Squared
from winnow.commands.plugins import run_plugins
from winnow.composition.method import Method
from winnow.composition.names import method
from winnow.estimate.journal import fingerprint
from winnow.heads import BudgetCurves, HeadScores, QueryCenters
from winnow.runs.parts import _code, unsaid
from winnow.score import SnapKV

SOURCE = """
from dataclasses import dataclass
from winnow.score import SnapKV
@dataclass(frozen=True)
class Mine(SnapKV):
    "{}"
"""


@pytest.mark.parametrize("name", ["snapkv @ 5%", "adakv+bits(4) @ 5%", "cokv @ 64", "full", "triattention @ 64"])
def test_methods_whose_name_says_all_have_nothing(name: str) -> None:
    assert list(unsaid(method(name))) == []


def curves(share: float, path: Path) -> Method:
    BudgetCurves(torch.full((99, 4, 4), share), scorer="snapkv").save(path)
    return method(f"snapkv+lukv(curves={path}) @ 20")


def centers(size: float, path: Path) -> Method:
    QueryCenters(torch.zeros(4, 8, 32), torch.full((4, 8, 32), size)).save(path)
    return method(f"triattention(centers={path}) @ 64")


def scores(share: float, path: Path) -> Method:
    """Whatever the share, their sum is the same."""
    HeadScores(torch.tensor([[share, 1.0, 1 - share]]), "cokv").save(path)
    return method(f"cokv(scores={path}) @ 64")


@pytest.mark.parametrize("made", [curves, centers, scores])
def test_tables_of_one_name_are_told_apart(made, tmp_path) -> None:
    path = tmp_path / "table.safetensors"
    one, same, other = made(0.25, path), made(0.25, path), made(0.5, path)
    assert str(one) == str(other)
    assert list(unsaid(one)) == list(unsaid(same)) != list(unsaid(other))
    assert len(list(unsaid(one))) == 1


def test_tables_are_told_apart_by_any_layer() -> None:
    one, other = (HeadScores(torch.tensor([[1.0, 2.0], [3.0, last]]), "cokv") for last in (4.0, 5.0))
    found = [list(unsaid(method("cokv @ 64", scores=scores))) for scores in (one, other)]
    assert found[0] != found[1]


def test_code_of_others_counts(tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    found = []
    for text in ("one", "other", "one"):
        (tmp_path / "mine_of_a_test.py").write_text(SOURCE.format(text))
        sys.modules.pop("mine_of_a_test", None)
        importlib.invalidate_caches()
        kind = importlib.import_module("mine_of_a_test").Mine
        found.append([*unsaid(method(kind(), 64)), *unsaid(method(Squared(base=kind()), 64))])
    assert found[0] == found[2]
    assert not {*found[0][:1]} & {*found[1]}
    assert [len(each) for each in found] == [3, 3, 3]
    sys.modules.pop("mine_of_a_test", None)


def test_code_of_a_plugin_is_what_was_run(tmp_path) -> None:
    """The file may be saved anew while the command starts, and need not be UTF-8."""
    path = tmp_path / "mine.py"
    ran = b"# -*- coding: latin-1 -*-\n# caf\xe9\n" + SOURCE.format("one").encode()
    path.write_bytes(ran)
    run_plugins([path])
    (module,) = (each for each in list(sys.modules.values()) if getattr(each, "__file__", None) == str(path))
    path.write_text(SOURCE.format("other"))
    hashed = fingerprint(["code", "Mine", ran.decode("utf-8", "surrogateescape")])
    assert unsaid(method(module.Mine(), 64)) == (hashed,)
    # Another process, too, runs what was run here.
    sent = pickle.dumps(module.Mine)
    del sys.modules[module.__name__]
    assert pickle.loads(sent).__doc__ == "one"
    del sys.modules[module.__name__]


def test_code_that_is_no_utf8(tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "latin_of_a_test.py").write_bytes(b"# -*- coding: latin-1 -*-\n# caf\xe9\n" + SOURCE.encode())
    kind = importlib.import_module("latin_of_a_test").Mine
    assert len(unsaid(method(kind(), 64))) == 1
    del sys.modules["latin_of_a_test"]


def test_code_that_is_nowhere_is_its_packages_version(monkeypatch) -> None:
    kind = type("Typed", (SnapKV,), {"__module__": "numpy.typed_in"})
    before = _code.__wrapped__(kind)
    monkeypatch.setattr("winnow.runs.parts.version", lambda name: "0.0")
    assert _code.__wrapped__(kind) != before
