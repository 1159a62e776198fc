"""`winnow heads show`: tables of head scores, described, drawn and compared, and every way to use it wrongly."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from support.pictures import pixels
from support.published_tables import DUO, R2, R
from support.text import flat
from winnow.commands.heads import show as command
from winnow.heads import HeadScores
from winnow.report import HeadMap, draw_heatmap


def test_show_says_what_is_in_a_table(winnow_heads):
    code, out, err = winnow_heads("show", R2)
    assert code == 0, err
    text = flat(out)
    for said in (
        R2,
        "model Tiny",
        "method headkv-r2",
        "shape 3 layers of 4 query heads",
        "samples 2",
        "scores 0.5 to 5.5, mean 3, sum 36",
        "zero, negative 0 and 0 of 12 heads",
        "concentration 4 heads (33%) hold half",
        "top heads 2-3 5.5, 1-3 4.5, 2-2 4.5",
        "Rows are layers, columns are heads; 0 to 5.5",
    ):
        assert said in text
    assert "seed" not in text
    assert out.rstrip().splitlines()[-3:] == ["  0   :=*", "  1  :=*%", "  2  =*%@"]


def test_show_without_the_map(winnow_heads):
    _, out, _ = winnow_heads("show", R2, "--no-map")
    assert "Rows are layers" not in out


def test_show_groups_query_heads(winnow_heads):
    _, out, _ = winnow_heads("show", R2, "--kv-heads", "2")
    assert "3 layers of 2 KV heads" in flat(out)
    assert "scores 1 to 5, mean 3" in flat(out)


def test_show_says_whether_tables_agree(winnow_heads):
    code, out, err = winnow_heads("show", R2, R, DUO, "--no-map")
    assert code == 0, err
    text = flat(out)
    assert f"1 {R2}" in text
    assert "1 and 2 83.3% 0.8" in text
    assert "1 and 3 not the same heads; --kv-heads averages query heads" in text
    assert "seed" not in text


def test_show_as_json(winnow_heads):
    code, out, err = winnow_heads("show", R2, DUO, "--kv-heads", "2", "--json")
    assert code == 0, err
    shown = json.loads(out)
    first, second = shown["tables"]
    assert (first["file"], first["shape"], first["method"], first["heads"]) == (R2, [3, 2], "headkv-r2", "kv")
    assert (first["low"], first["high"], first["mean"], first["total"], first["samples"]) == (1, 5, 3, 18, 2)
    assert first["top"][0] == {"layer": 2, "head": 1, "score": 5.0}
    assert second["model"] == "Tiny"
    (pair,) = shown["agreement"]
    assert (pair["first"], pair["second"]) == (1, 2)
    assert 0 <= pair["top_half_overlap"] <= 1
    assert -1 <= pair["rank_correlation"] <= 1


def test_json_has_null_where_tables_do_not_compare(winnow_heads):
    HeadScores(torch.ones(3, 2), "random").save("constant.safetensors")
    _, out, _ = winnow_heads("show", R2, DUO, "constant.safetensors", "--json")
    agreement = json.loads(out)["agreement"]
    assert agreement[0] == {"first": 1, "second": 2, "top_half_overlap": None, "rank_correlation": None}
    assert agreement[2]["top_half_overlap"] is not None
    assert agreement[2]["rank_correlation"] is None
    _, out, _ = winnow_heads("show", DUO, "constant.safetensors", "--no-map")
    assert "–" in out.splitlines()[-1]


def test_files_of_one_cokv_task_are_one_table(winnow_heads):
    _, out, err = winnow_heads("show", "cc_llama3_lcc_2.json", "cc_llama3_lcc_3.json", "cc_llama3_trec_3.json")
    text = flat(out)
    assert not err
    assert "1 cc_llama3_lcc_2.json + 1" in text
    assert "task lcc; coalition sizes 2, 3, 4" in text
    assert "2 cc_llama3_trec_3.json" in text
    assert "zero in the middle" in text
    _, out, _ = winnow_heads("show", "cc_llama3_lcc_3.json", "--halves", "first")
    assert "coalition sizes 3 (first half only)" in flat(out)


def test_facts_that_are_known_are_shown(winnow_heads):
    HeadScores(
        torch.ones(2, 2), "random", seed=7, date="2025-01-31", license="[MIT]", notes="some [bold]notes[/bold]"
    ).save("a.safetensors")
    _, out, _ = winnow_heads("show", "a.safetensors")
    for said in ("model not said", "seed 7", "date 2025-01-31", "license [MIT]", "some [bold]notes[/bold]"):
        assert said in flat(out)


@pytest.mark.parametrize(
    ("layers", "count", "lines"), [(32, 32, 32), (32, 8, 32), (64, 64, 32), (64, 8, 32), (5, 40, 3)]
)
def test_the_map_on_a_terminal(layers, count, lines):
    """One cell per score; two layers in a line where there are many."""
    scores = HeadScores(torch.rand(layers, count, generator=torch.manual_seed(0)), "random")
    console = Console(force_terminal=True, color_system="truecolor", width=100)
    drawn = list(command._map(scores, console))
    assert len(drawn) == lines
    wide = 2 if count <= 32 else 1
    assert {len(line.plain) for line in drawn} == {5 + wide * count}
    colors = {str(span.style) for line in drawn for span in line.spans if "rgb" in str(span.style)}
    assert len(colors) > min(100, layers * count // 4)


def test_the_map_without_colors_is_plain_text():
    scores = HeadScores(torch.tensor([[0.0, 1.0]]), "random")
    without = Console(force_terminal=True, color_system="truecolor", no_color=True)
    for console in (Console(force_terminal=True, color_system=None), Console(force_terminal=False), without):
        assert [line.plain for line in command._map(scores, console)] == ["  0   @"]


def test_more_heads_than_columns():
    scores = HeadScores(torch.rand(4, 300, generator=torch.manual_seed(0)), "random")
    console = Console(force_terminal=True, color_system="truecolor", width=80)
    assert all(len(line.plain) <= 80 for line in command._map(scores, console))


# --- pictures --------------------------------------------------------------------------------------------------------


def test_picture(winnow_heads):
    code, _, err = winnow_heads("show", R2, DUO, "cc_llama3_lcc_3.json", "--picture", "new/heads.png")
    assert code == 0, err
    shown = pixels("new/heads.png")
    blue = (shown[..., 2] > shown[..., 0] + 0.2).mean()
    red = (shown[..., 0] > shown[..., 2] + 0.2).mean()
    assert blue > 0.02
    assert red > 0.005
    for edge in (shown[0], shown[-1], shown[:, 0], shown[:, -1]):
        assert np.all(edge == 1)


@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (2, 8), (32, 32), (64, 8), (8, 64)])
def test_heatmaps_of_all_shapes(tmp_path, layers, heads):
    values = np.linspace(0, 1, layers * heads).reshape(layers, heads)
    shown = HeadMap("a long name of a file " * 10, "note", values, 0.0, 1.0, marked=[(0, 0)])
    picture = pixels(draw_heatmap(tmp_path / "a.png", [shown], "Title", "subtitle"))
    for edge in (picture[0], picture[-1], picture[:, 0], picture[:, -1]):
        assert np.all(edge == 1)


def test_heatmap_of_scores_without_a_spread(tmp_path):
    for value in (-2.0, 3.0):
        shown = HeadMap("same", "", np.full((3, 3), value), min(value, 0), max(value, 0))
        assert (pixels(draw_heatmap(tmp_path / "a.png", [shown], "T")) < 0.9).any()
    canceling = HeadMap("canceling", "", np.array([[1.0, -1.0]] * 3), -1, 1, signed=True)
    assert (pixels(draw_heatmap(tmp_path / "a.png", [canceling], "T")) < 0.9).any()


def test_the_most_important_heads_are_marked_unless_more_are_equal():
    distinct = HeadScores(torch.arange(24.0).view(4, 6), "random")
    assert command._marked(distinct)[:2] == [(3, 5), (3, 4)]
    assert len(command._marked(distinct)) == 10
    assert command._marked(HeadScores(torch.ones(4, 6), "random")) == []
    assert command._marked(HeadScores(torch.arange(1.0, 5.0).view(2, 2), "random")) == []


def test_a_missing_matplotlib_is_named(winnow_heads, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, out, err = winnow_heads("show", R2, "--picture", "a.png")
    assert code == 1
    assert "winnow-kv[plot]" in err
    assert not out


# --- used wrongly ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "exists"),
    [(("convert", R2, "-o", "a.safetensors"), "a.safetensors"), (("show", R2, "--picture", "a.png"), "a.png")],
)
def test_nothing_is_replaced_unasked(winnow_heads, arguments, exists):
    Path(exists).write_text("precious")
    code, out, err = winnow_heads(*arguments)
    assert code == 1
    assert flat(err) == f"{exists} exists; give another name, or --force to replace it."
    assert not out
    assert Path(exists).read_text() == "precious"
    code, _, err = winnow_heads(*arguments, "--force")
    assert code == 0, err
    assert Path(exists).read_bytes() != b"precious"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("show", "none.json"), 1, "There is no file none.json."),
        (("show", "."), 1, "is a directory"),
        (("show", R2, "none.json"), 1, "There is no file none.json."),
        (("show", R2, "--kv-heads", "3"), 1, "not a multiple of 3 KV heads"),
        (("show", DUO, "--kv-heads", "4"), 1, "2 KV heads per layer, not 4"),
        (("show", R2, "--kv-heads", "two"), 2, "--kv-heads"),
        (("show", R2, "--kind", "r3"), 2, "--kind"),
        (("show", DUO, "--halves", "none"), 2, "--halves"),
        (("show", DUO, "--kind", "r"), 2, "--kind: it is for tables in HeadKV's format, and there is none here"),
        (("show", R2, R, "--halves", "first"), 2, "--halves: it is for tables in CoKV's format, and there"),
        (("convert", DUO, "-o", "a.safetensors", "--kind", "r"), 2, "--kind: it is for tables in HeadKV's format"),
        (("show", R2, "--picture", "a.pdf"), 1, "call it a.png"),
        (("show", R2, "--picture", f"{R2}/a.png"), 1, "is a file"),
        (("convert", R2, "-o", "."), 1, "is a directory"),
        (("convert", R2, "-o", "a.pt"), 1, "call it a.safetensors"),
        (("convert", R2, "-o", f"{R2}/a.safetensors"), 1, "is a file"),
        (("convert", R2), 2, "-o"),
        (("show",), 2, "files"),
    ],
)
def test_wrong_usage_is_one_line(winnow_heads, arguments, code, says):
    got, out, err = winnow_heads(*arguments)
    assert got == code
    assert says in flat(err)
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1
    assert not out


def test_a_folder_is_no_output(winnow_heads):
    Path("folder.safetensors").mkdir()
    code, _, err = winnow_heads("convert", R2, "-o", "folder.safetensors", "--force")
    assert code == 1
    assert "is a directory" in err


def test_heads_alone_shows_its_commands(winnow_heads):
    code, out, _ = winnow_heads()
    assert code == 2
    assert "show" in out
    assert "convert" in out
