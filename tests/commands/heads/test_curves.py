"""`winnow heads curves`: a table of budget curves that lukv follows, and every way to ask for it wrongly."""

from __future__ import annotations

import json

import pytest
import torch

import winnow
from support.text import flat
from winnow.heads import BudgetCurves

pytestmark = pytest.mark.usefixtures("one_thread")


def test_curves_are_written_and_followed(winnow_heads, folder):
    few = ("curves", "--out", "curves.safetensors", "--questions", "2", "--length", "300", "--max-new-tokens", "2")
    code, out, err = winnow_heads(*few)
    assert code == 0, err
    assert "snapkv, 4 layers of 4 KV heads, 2 questions" in flat(out)
    assert "where 20% stay, heads keep" in flat(out)
    table = BudgetCurves.load("curves.safetensors")
    assert (table.scorer, table.model, table.samples) == ("snapkv", "winnow-bundled", 2)
    assert json.loads(table.settings)["questions"] == 2
    method = winnow.method("snapkv+lukv(curves=curves.safetensors)", 20)
    assert sum(method.for_model("winnow-bundled", (4,) * 4).allocation(200, (4,) * 4, ()).totals) == 20 * 16
    again = winnow_heads(*few, "--force")  # from the journal
    assert again[0] == 0
    assert BudgetCurves.load("curves.safetensors") == table
    assert winnow_heads(*few)[0] == 1


def test_questions_of_a_file_and_another_scorer(winnow_heads, folder):
    asked = [{"context": "The color of Anna is red. " * 30, "question": "What is the color of Anna?"}]
    (folder / "asked.jsonl").write_text("".join(json.dumps(each) + "\n" for each in asked), encoding="utf-8")
    code, out, err = winnow_heads(
        "curves", "--out", "c.safetensors", "--examples", "asked.jsonl", "--method", "keydiff", "--max-new-tokens", "2"
    )
    assert code == 0, err
    assert "keydiff" in out
    assert torch.isfinite(BudgetCurves.load("c.safetensors").ratios).all()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--examples", "asked.jsonl", "--questions", "2"), "--questions"),
        (("--examples", "asked.jsonl", "--length", "99"), "--length"),
        (("--examples", "nowhere.jsonl"), "nowhere"),
        (("--method", "kvec"), "earlier ones kept"),
        (("--method", "nothing"), "nothing"),
        (("--seed", "3"), "--seed"),
        (("--length", "9"), "256"),
    ],
)
def test_wrong_wishes_are_refused_before_any_work(winnow_heads, folder, more, said):
    code, _, err = winnow_heads("curves", "--out", "c.safetensors", *more)
    assert code in (1, 2)
    assert said in flat(err)
    assert not (folder / "c.safetensors").exists()
