"""The page as text: nothing in it but what was said, and all numbers readable without a script."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from support.report_runs import HIDDEN, SEEN, ruler_rows
from support.runs import ABOUT, ROW
from winnow.files import OWN_MARKS
from winnow.report.page import Content, content_of, render, sections_of
from winnow.report.page.folder import RESULTS
from winnow.report.page.quantities import quantity
from winnow.report.page.render import written_fact, written_short, written_value
from winnow.report.style import COLORS, MissingPackage
from winnow.runs.folder import About, Run
from winnow.runs.rows import Row

pytest.importorskip("plotly")
EVIL = "</script><script>hacked()</script><img src=x onerror=hacked()>\"'&\u2028"
STATIC = Path(__file__).parents[3] / "src" / "winnow" / "report" / "page" / "static"


def contents(*runs: tuple[About, list[Row]]) -> list[Content]:
    sections = sections_of(Run(Path("run"), about, tuple(rows)) for about, rows in runs)
    return [content_of(section, number) for number, section in enumerate(sections, start=1)]


class Tags(HTMLParser):
    """Tags and texts of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_nothing_that_a_run_says_becomes_a_part_of_the_page() -> None:
    about = replace(
        ABOUT,
        benchmark=EVIL,
        model=replace(ABOUT.model, name=EVIL),
        protocol={"name": EVIL, "question_seen": True, "full_rows": {EVIL: 1}},
        request={EVIL: EVIL},
        measures={EVIL: "contains_all"},
        environment={"processor": EVIL, EVIL: EVIL},
        command=EVIL,
        started=EVIL,
    )
    row = replace(ROW, task=EVIL, example=EVIL, method=f"{EVIL} @ {EVIL}", prediction=EVIL, answers=[EVIL],
                  facts={"length": 8, "depth": 1, EVIL: EVIL})  # fmt: skip
    rows = [row, replace(row, cell="b", example="b", facts={"length": 8, "depth": 2})]
    files = render(EVIL, contents((about, rows), (ABOUT, [ROW])))
    page = Tags(files["index.html"].decode())
    assert [
        tag for tag, attributes in page.tags if tag == "img" or any(name.startswith("on") for name in attributes)
    ] == []
    scripts = [attributes for tag, attributes in page.tags if tag == "script"]
    assert [each["src"] for each in scripts] == ["report.js", "data/results.js", "plotly.min.js"]
    assert page.text.count("hacked()") > 10
    for name, content in files.items():
        if name.startswith("data/"):
            assert content.isascii()
            assert b"hacked" in content or name != RESULTS


def test_every_number_is_in_the_page_itself() -> None:
    (found,) = contents((SEEN, list(ruler_rows(examples=2))))
    text = Tags(render("title", [found])["index.html"].decode()).text
    for each in found.results:
        measured = found.quantity(each.quantity)
        low, high = (written_value(end, measured) for end in (each.estimate.low, each.estimate.high))
        assert f"{low} – {high}" in text
    assert SEEN.command in text
    assert SEEN.environment["processor"] in text


def test_sections_of_two_protocols_share_no_table() -> None:
    found = contents(
        (SEEN, list(ruler_rows(examples=1))), (HIDDEN, list(ruler_rows(False, 1, ["full", "own @ 3%"][:1])))
    )
    page = render("title", found)["index.html"].decode()
    ids = re.findall(r'<table class="data[^"]*" id="([^"]+)"', page)
    assert len(ids) == len(set(ids)) == 6
    bodies = dict(zip(ids, re.findall(r'<table class="data.*?</table>', page, flags=re.DOTALL), strict=True))
    assert "adakv" in bodies["section-1-matrix"]
    assert "adakv" not in bodies["section-2-matrix"]


def test_a_picture_of_times_per_token_is_offered_only_where_there_are_some() -> None:
    alone, beside = (
        render("title", contents((ABOUT, [replace(ROW, decode_steps=4, together=together)])))["index.html"].decode()
        for together in (1, 12)
    )
    assert '<option value="token_milliseconds">' in alone
    assert '<option value="token_milliseconds">' not in beside
    assert '<option value="prefill_seconds">' in beside
    assert "There are no times per token" in beside


def test_results_are_told_as_winnow_s_and_scripts_hold_the_same() -> None:
    files = render("title", contents((ABOUT, [ROW])))
    results = json.loads(files[RESULTS])
    assert any(mark in files[RESULTS][:512] for mark in OWN_MARKS)
    assert set(results["files"]) == set(files)
    script = re.fullmatch(rb"winnow\.results\((.*)\);\n", files["data/results.js"], flags=re.DOTALL)
    assert script is not None
    assert json.loads(script[1]) == results


def test_the_page_loads_nothing_from_anywhere() -> None:
    files = render("title", contents((ABOUT, [ROW])))
    for name in ("index.html", "report.css", "report.js"):
        assert not re.search(rb"https?://|url\(|@import|fetch\(", files[name])


def test_lines_have_the_colors_of_other_pictures() -> None:
    css = (STATIC / "report.css").read_text(encoding="utf-8")
    found = dict(reversed(re.findall(r"--line-(\d): (#\w+)", css)))
    assert [found[str(number)] for number in range(len(COLORS))] == [color.lower() for color in COLORS]


def test_without_plotly_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("winnow.report.page.plotly.find_spec", lambda name: None)
    with pytest.raises(MissingPackage, match=r"winnow-kv\[report\]"):
        render("title", contents((ABOUT, [ROW])))


def test_values_are_written_by_their_quantity() -> None:
    assert written_value(0.8333, quantity("score")) == "83.3"
    assert written_value(12.3456, quantity("nll")) == "12.346"  # as winnow eval tells it
    assert written_value(0.00123, quantity("kl")) == "0.00123"
    assert [written_fact(value) for value in (True, None, {}, "", {"a": [1]}, 3)] == [
        "yes",
        "–",
        "–",
        "–",
        '{"a": [1]}',
        "3",
    ]
    assert [written_short(value) for value in (500, 4096, 1536, 1500)] == ["500", "4k", "1.5k", "1500"]
