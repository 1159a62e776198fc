"""Pictures are written, have the promised size and show something."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from support.pictures import pixels
from winnow.report import (
    Cost,
    HeadMap,
    Line,
    Panel,
    accuracy,
    draw_accuracy,
    draw_costs,
    draw_heatmap,
    draw_kept_map,
    heatmap,
    keptmap,
    pairs,
    retention,
    tuning,
)
from winnow.report.accuracy import _ticks
from winnow.report.style import DPI, MissingPackage, line_style, new_figure, short_labels, without_middle

pytest.importorskip("matplotlib.image")

LINES = [
    Line(f"method {index}", [(budget, min(1, budget / 256 / (index + 1))) for budget in (16, 64, 256)])
    for index in range(10)
]


def panel(layers=2, heads=3, length=100, name="adakv"):
    kept = [[list(range(head, length, 7 + layer)) for head in range(heads)] for layer in range(layers)]
    return Panel(name, "answers mango: right", kept)


def test_accuracy_picture(tmp_path):
    path = draw_accuracy(tmp_path / "new" / "a.png", LINES, "Title", "subtitle", full=0.9, prompt_tokens=2000)
    shown = pixels(path)
    assert DPI >= 150
    assert shown.shape[:2] == (round(5.4 * DPI), round(9.5 * DPI))
    assert 0.02 < (shown < 0.9).any(axis=-1).mean() < 0.5
    # Nothing touches the edges of the picture, so nothing is cut off.
    for edge in (shown[0], shown[-1], shown[:, 0], shown[:, -1]):
        assert np.all(edge == 1)


@pytest.mark.parametrize(("methods", "name"), [(1, "full"), (3, "snapkv @ 2%"), (12, "long" * 20)])
def test_costs_picture(tmp_path, methods, name):
    costs = [Cost(f"{name} {index}", 2e6 / (index + 1), 3e4, 2e5, index or None) for index in range(methods)]
    shown = pixels(draw_costs(tmp_path / "c.png", costs, 2e6, "Title", "subtitle"))
    assert shown.shape[1] == 11 * DPI
    for edge in (shown[0], shown[-1], shown[:, 0], shown[:, -1]):
        assert np.all(edge == 1)
    # Blue is what is compressed, green the speed.
    blue = (shown[..., 2] > shown[..., 0] + 0.4).sum()
    green = ((shown[..., 1] > shown[..., 0] + 0.4) & (shown[..., 1] > shown[..., 2] + 0.1)).sum()
    assert blue > 1000
    assert (green > 1000) == (methods > 1)


def test_costs_of_methods_that_only_long_names_tell_apart(tmp_path):
    costs = [Cost(f"{'long' * 20} {index} {'long' * 20}", 2e6, 3e4, 2e5, 1.0) for index in range(2)]
    shown = pixels(draw_costs(tmp_path / "c.png", costs, 2e6, "Title", "subtitle"))
    assert shown.shape[1] > 11 * DPI
    for edge in (shown[0], shown[-1], shown[:, 0], shown[:, -1]):
        assert np.all(edge == 1)


def test_long_names_keep_their_ends():
    assert without_middle("snapkv @ 2%", 11) == "snapkv @ 2%"
    assert without_middle("snapkv(window=16)+ada @ 2%", 11) == "snapk… @ 2%"
    for longest in range(3, 30):
        assert len(without_middle("x" * 30, longest)) == longest


def test_different_names_have_different_labels():
    alike = [f"headkv-r2(scores=model{index}.safetensors) @ 2%" for index in (1, 2)]
    labels = short_labels([*alike, alike[0]], 20)
    assert labels[0] == labels[2] != labels[1]
    assert all(len(label) < len(name) for label, name in zip(labels, alike, strict=False))
    assert short_labels(["snapkv @ 2%", "adakv @ 2%"], 20) == ["snapkv @ 2%", "adakv @ 2%"]
    assert short_labels(["x" * 30], 20) == [without_middle("x" * 30, 20)]
    assert short_labels([], 20) == []


@pytest.mark.parametrize(("names", "part"), [(24, "x"), (4, "scores" * 12)])
def test_a_long_legend_has_room(tmp_path, names, part):
    lines = [
        Line(f"headkv-r2(of {part} {index}) and {part} @ the end", [(8, 0.5), (64, 0.9)]) for index in range(names)
    ]
    shown = pixels(draw_accuracy(tmp_path / "a.png", lines, "Title", "subtitle"))
    for edge in (shown[0], shown[-1], shown[:, 0], shown[:, -1]):
        assert np.all(edge == 1)


def test_accuracy_picture_of_one_method_at_one_budget(tmp_path):
    path = draw_accuracy(tmp_path / "a.png", [Line("adakv", [(64, 0.5)])], "Title")
    assert (pixels(path) < 0.9).any()


def test_lines_can_be_told_apart():
    styles = [tuple(str(value) for value in line_style(index).values()) for index in range(21)]
    assert len(set(styles)) == 21


@pytest.mark.parametrize(("layers", "heads", "length", "panels"), [(2, 3, 100, 1), (4, 4, 2000, 5), (32, 8, 9000, 2)])
def test_kept_map(tmp_path, layers, heads, length, panels):
    shown = [panel(layers, heads, length, f"method {index}") for index in range(panels)]
    path = draw_kept_map(tmp_path / "k.png", shown, length, "Title", "subtitle", facts=[(3, 9)])
    picture = pixels(path)
    assert picture.shape[1] == 11 * DPI
    assert picture.shape[0] > panels * DPI * 0.8
    blue = (picture[..., 2] > picture[..., 0] + 0.2).mean()
    orange = (picture[..., 0] > picture[..., 2] + 0.15).mean()
    assert blue > 0.02
    assert orange > 0.0001
    for edge in (picture[0], picture[-1], picture[:, 0], picture[:, -1]):
        assert np.all(edge == 1)


def test_more_kept_tokens_make_a_darker_map(tmp_path):
    def darkness(step):
        kept = [[list(range(0, 800, step)) for _ in range(4)] for _ in range(4)]
        path = draw_kept_map(tmp_path / f"{step}.png", [Panel("m", "", kept)], 800, "T")
        return 1 - pixels(path).mean()

    assert darkness(50) < darkness(10) < darkness(2)


def test_a_missing_matplotlib_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingPackage, match=r"winnow-kv\[plot\]"):
        draw_accuracy(tmp_path / "a.png", LINES, "Title")


LONG = "bundled model, 2,024 tokens, asked about the relic of the garden: " * 4


@pytest.mark.parametrize(
    ("title", "subtitle"), [("Title", LONG), ("A title that is long: " * 5, "subtitle"), (LONG, LONG)]
)
def test_long_titles_go_on_in_the_next_line(tmp_path, title, subtitle):
    """Nothing is cut, and what is below is drawn as ever."""
    maps = [HeadMap("table", "note", np.arange(12.0).reshape(4, 3), 0, 11)]
    short = pixels(draw_heatmap(tmp_path / "s.png", maps, "Title", "subtitle"))
    long = pixels(draw_heatmap(tmp_path / "l.png", maps, title, subtitle))
    taller = len(long) - len(short)
    assert taller > 0.1 * DPI
    assert long.shape[1] == short.shape[1]
    for edge in (long[0], long[-1], long[:, 0], long[:, -1]):
        assert np.all(edge == 1)
    # From below the title on; rounded inches move lines by a dot.
    below = round(1.0 * DPI)
    differing = (np.abs(long[taller + below :] - short[below:]).max(axis=-1) > 0.5).mean()
    assert differing < 0.02
    # The new lines are text.
    assert (long[: taller + below] < 0.9).any(axis=-1).sum() > (short[:below] < 0.9).any(axis=-1).sum()


def test_legends_and_several_axes_keep_their_places(tmp_path):
    short = pixels(draw_accuracy(tmp_path / "s.png", LINES, "Title", "subtitle"))
    long = pixels(draw_accuracy(tmp_path / "l.png", LINES, "Title", LONG))
    assert len(long) > len(short)
    below = round(0.8 * DPI)
    differing = (np.abs(long[len(long) - len(short) + below :] - short[below:]).max(axis=-1) > 0.5).mean()
    assert differing < 0.02


def test_dollars_are_no_formulas(tmp_path):
    """Two of them are no math, nor an error where that would be one."""
    lines = [Line(r"snapkv(file=$a\foo$) @ 5%", [(8, 0.5), (64, 1.0)])]
    draw_accuracy(tmp_path / "a.png", lines, r"Is it $HOME or \foo$?", "for $5^ or $6_{", 1.0, 64.0)
    draw_accuracy(tmp_path / "b.png", lines, "Is it", "for", 1.0, 64.0)
    assert (pixels(tmp_path / "a.png") != pixels(tmp_path / "b.png")).any()


def test_texts_of_budgets_do_not_run_into_each_other():
    assert _ticks([96, 100, 200, 1000], 1000.0) == ["96\n9.6%", "", "200\n20%", "1000\n100%"]
    assert _ticks([999, 1000], 1001.0) == ["999\n100%", "1000\n100%"], "nothing else is there"
    assert _ticks([8], None) == ["8"]


def test_lines_are_listed_by_their_means() -> None:
    lines = [accuracy.Line(label, [(8, value)]) for label, value in (("a", 0.2), ("b", 0.9), ("c", 0.5))]
    assert [line.label for line in accuracy._best_first(lines)] == ["b", "c", "a"]


def test_columns_of_a_long_prompt_are_all_of_it() -> None:
    starts = retention._starts(1000)
    assert (len(starts), starts[0]) == (480, 0)
    assert set(np.diff([*starts, 1000])) == {2, 3}
    image = keptmap._image([[[0, 999], [500]]], 1000)
    assert image.shape == (2, 560)
    assert [row.nonzero()[0].tolist() for row in image] == [[0, 559], [280]]


def test_a_column_shows_the_most_kept_token_and_the_share_of_tokens_kept_anywhere() -> None:
    counts = np.zeros((2, 960), dtype=np.int64)
    counts[0, 1], counts[1, 2] = 3, 1
    axes = new_figure(4, 3).add_axes((0, 0, 1, 1))
    retention._draw_layers(axes, retention.Strip("a", "", counts, 4), ())
    assert axes.images[0].get_array()[:, :3].tolist() == [[3, 0, 0], [0, 1, 0]]
    axes = new_figure(4, 3).add_axes((0, 0, 1, 1))
    retention._draw_any(axes, retention.Strip("a", "", counts, 4), last=True)
    assert axes.images[0].get_array()[0, :3].tolist() == [0.5, 0.5, 0]


def test_marked_heads_are_where_they_are_drawn() -> None:
    axes = new_figure(4, 3).add_axes((0, 0, 1, 1))
    heatmap._draw_cells(axes, heatmap.HeadMap("a", "", np.eye(3, 5), 0.0, 1.0, marked=[(2, 4)]))
    assert [patch.get_xy() for patch in axes.patches] == [(3.5, 1.5)]


def test_colors_of_divergences_end_where_most_pairs_do(monkeypatch, tmp_path) -> None:
    drawn = []
    monkeypatch.setattr(
        pairs, "draw_pairs", lambda path, matrices, notes, scale, *_: drawn.append((matrices, notes, scale))
    )
    matrix = np.full((21, 21), 0.02)
    matrix[0, 1] = 5.0
    pairs.draw_divergences(tmp_path / "a.png", [matrix], [0.02], "title")
    ((matrices, notes, scale),) = drawn
    assert scale.high == pytest.approx(20)
    assert notes == [": mean 20.0"]
    assert "10⁻³" in scale.label
    assert matrices[0][3, 4] == pytest.approx(20)
    spread = np.arange(1, 101.0).reshape(10, 10) / 100
    pairs.draw_divergences(tmp_path / "a.png", [spread], [0.5], "title")
    assert 0.9 < drawn[1][2].high / 100 < 0.97


def test_the_default_is_marked_once() -> None:
    for default, names in (("2", ["chosen, the default"]), ("3", ["default", "chosen"]), ("9", ["chosen"])):
        axes = new_figure(4, 3).add_axes((0, 0, 1, 1))
        tuning._mark(axes, ["1", "2", "3"], "2", default)
        assert [text.get_text() for text in axes.texts] == names
        assert len(axes.lines) == len(names)


def test_all_that_is_held_is_held() -> None:
    assert Cost("a", 1.0, 2.0, 4.0, None).held == 7.0
