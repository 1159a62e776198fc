"""The page in a real Chromium without a network: no error, and every control does what it says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from support.browsers import Browser, chromium
from support.report_runs import HIDDEN, SEEN, TEXT, ruler_rows, text_rows
from winnow.report.page import content_of, render, sections_of, write_folder
from winnow.runs.folder import Run

pytest.importorskip("plotly")

METHODS = ("full", "adakv @ 2%", "adakv @ 10%", "h2o @ 2%", "h2o @ 10%", "full+bits(8)")
EVIL = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"
WIDTHS = (1280, 400)
THEMES = ("light", "dark")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of three sections, with answers that attack it."""
    seen = [replace(row, prediction=EVIL, answers=[EVIL]) if row.example == "1024-1" else row
            for row in ruler_rows(methods=METHODS)]  # fmt: skip
    hidden = ruler_rows(seen=False, methods=METHODS, examples=3)
    runs = [
        Run(Path("seen"), SEEN, tuple(seen)),
        Run(Path("hidden"), HIDDEN, tuple(hidden)),
        Run(Path("text"), TEXT, tuple(text_rows(METHODS))),
    ]
    contents = [content_of(section, number) for number, section in enumerate(sections_of(runs), start=1)]
    out = tmp_path_factory.mktemp("page") / "report"
    write_folder(out, render("A report", contents), force=False)
    return out / "index.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for all tests: starting it takes longer than they do."""
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def loaded(browser: Browser, page: Path) -> Browser:
    """The page, loaded once: its script of pictures is large."""
    browser.open(page)
    return browser


@pytest.fixture
def opened(loaded: Browser) -> Iterator[Browser]:
    """The page with all controls as at first; it must have said nothing at the end."""
    loaded.run(
        """for (const form of document.forms) {
             form.reset();
             form.dispatchEvent(new Event("input"));
           }
           for (const tabs of document.querySelectorAll(".tabs")) tabs.querySelector("a").click()"""
    )
    yield loaded
    assert loaded.errors() == []


def choose(browser: Browser, form: str, **values: str) -> None:
    """Sets controls of a form by their names, and lets the page answer."""
    browser.run(
        """for (const [name, value] of Object.entries(arguments[1])) {
             const control = document.querySelector(arguments[0]).elements.namedItem(name);
             control.value = value;
             if (control.value !== value) throw new Error(`no ${value} in ${name}`);
             control.dispatchEvent(new Event("input", {bubbles: true}));
           }
           await new Promise((answered) => setTimeout(answered, 30));""",
        form,
        values,
    )


def show(browser: Browser, section: int, part: str) -> None:
    """Opens a tab."""
    browser.run("document.querySelector(arguments[0]).click()", f"#section-{section} .tabs a[href$={part}]")


def rows(browser: Browser, table: str, column: int) -> list[str]:
    """Texts of a column, of the rows that are seen."""
    return list(
        browser.run(
            """return [...document.querySelectorAll(`${arguments[0]} tbody tr`)]
                 .filter((row) => row.checkVisibility()).map((row) => row.cells[arguments[1]].innerText.trim())""",
            table,
            column,
        )
    )


def traces(browser: Browser, section: int, part: str) -> list[dict[str, object]]:
    """Lines of a picture with a name: its color and its values."""
    return list(
        browser.run(
            """const box = document.getElementById(arguments[0]);
               await new Promise((drawn) => setTimeout(drawn, 30));
               const round = (value) => Math.round(10 * value) / 10;
               return box.data.filter((line) => line.name)
                 .map(({name, line, x, y}) => ({name, color: line.color, x, y: y.map(round)}))""",
            f"section-{section}-{part}-chart",
        )
    )


class TestTables:
    def test_a_click_sorts_and_another_turns_the_order(self, opened: Browser) -> None:
        def click(column: int) -> str:
            return str(
                opened.run(
                    """const heading = document.querySelectorAll("#section-1-matrix thead th")[arguments[0]];
                       heading.querySelector("button").click();
                       return heading.getAttribute("aria-sort")""",
                    column,
                )
            )

        assert click(3) == "descending"
        down = [float(text) for text in rows(opened, "#section-1-matrix", 3)]
        assert down == sorted(down, reverse=True)
        assert click(3) == "ascending"
        assert [float(text) for text in rows(opened, "#section-1-matrix", 3)] == sorted(down)
        # Names go up first; budgets are ordered as numbers.
        assert click(0) == "ascending"
        assert rows(opened, "#section-1-matrix", 0) == sorted(rows(opened, "#section-1-matrix", 0))
        assert (click(1), click(1)) == ("descending", "ascending")
        assert rows(opened, "#section-1-matrix", 1) == ["2%", "2%", "10%", "10%", "–", "–"]

    def test_filters_hide_rows(self, opened: Browser) -> None:
        show(opened, 1, "table")
        form, table = '[data-filters="section-1-results"]', "#section-1-results"
        assert rows(opened, table, 2) == ["all tasks"] * len(METHODS)
        choose(opened, form, task="vt", method="h2o")
        assert set(zip(rows(opened, table, 0), rows(opened, table, 2), strict=True)) == {("h2o", "vt")}
        choose(opened, form, method="", budget="10%", length="2048")
        # Methods without a budget stay, to be compared with.
        assert sorted(rows(opened, table, 0)) == ["adakv", "full", "full+bits(8)", "h2o"]
        choose(opened, form, text="ADA")
        assert rows(opened, table, 0) == ["adakv"]
        assert opened.run("return document.querySelector(arguments[0]).querySelector('output').value", form) == (
            "1 of 90 shown"
        )
        choose(opened, form, text="nothing has this")
        assert rows(opened, table, 0) == []

    def test_heatmaps_are_filtered(self, opened: Browser) -> None:
        show(opened, 1, "heatmaps")
        choose(opened, '[data-filters="section-1-maps"]', budget="2%")
        captions = """return [...document.querySelectorAll("#section-1-maps figure")]
                        .filter((map) => map.checkVisibility())
                        .map((map) => map.querySelector("figcaption").innerText)"""
        assert opened.run(captions) == ["full", "full+bits(8)", "adakv @ 2%", "h2o @ 2%"]


class TestPictures:
    def test_a_picture_has_the_numbers_of_the_table(self, opened: Browser) -> None:
        (line,) = (each for each in traces(opened, 1, "scores") if each["name"] == "adakv")
        show(opened, 1, "table")
        choose(opened, '[data-filters="section-1-results"]', method="adakv")
        assert [float(text) for text in rows(opened, "#section-1-results", 3)] == line["y"]

    def test_controls_change_what_is_drawn(self, opened: Browser) -> None:
        form = '#section-1 [data-chart="scores"]'
        before = traces(opened, 1, "scores")
        choose(opened, form, task="vt")
        assert [each["y"] for each in traces(opened, 1, "scores")] != [each["y"] for each in before]
        choose(opened, form, x="share")
        (line,) = (each for each in traces(opened, 1, "scores") if each["name"] == "adakv")
        assert line["x"] == pytest.approx([0.02, 0.1], abs=0.01)
        choose(opened, form, length="2048", x="slots")
        (line,) = (each for each in traces(opened, 1, "scores") if each["name"] == "adakv")
        assert line["x"] == pytest.approx([0.02 * 2048, 0.1 * 2048])

    def test_intervals_can_be_left_out(self, opened: Browser) -> None:
        bands = "return document.getElementById('section-1-scores-chart').data.filter((line) => line.fill).length"
        assert opened.run(bands) == 2
        opened.run("document.querySelector('#section-1 [name=intervals]').click()")
        assert opened.run(bands) == 0

    def test_a_method_that_is_not_chosen_turns_gray(self, opened: Browser) -> None:
        def color() -> object:
            (line,) = (each for each in traces(opened, 1, "scores") if each["name"] == "h2o")
            return line["color"]

        before = color()
        opened.run("document.querySelector('#section-1-scores .legend input[value=h2o]').click()")
        assert color() == opened.run("return getComputedStyle(document.documentElement).getPropertyValue('--quiet')")
        opened.run("document.querySelector('#section-1-scores .legend button').click()")
        assert color() == before

    def test_costs_and_fidelity_are_drawn(self, opened: Browser) -> None:
        show(opened, 1, "costs")
        names = {"full", "full+bits(8)", "adakv", "h2o"}
        assert {each["name"] for each in traces(opened, 1, "costs")} == names
        title = "return document.querySelector(arguments[0]).layout.yaxis.title.text"
        assert opened.run(title, "#section-1-costs-chart") == "ms per decoded token (lower is better)"
        assert opened.run(title, "#section-3-scores-chart") == "perplexity (lower is better)"
        choose(opened, '#section-3 [data-chart="scores"]', quantity="agreement")
        assert opened.run(title, "#section-3-scores-chart") == "agreement, % (higher is better)"

    def test_a_point_says_its_number_as_the_table_does_and_its_unit(self, opened: Browser) -> None:
        text = """return document.getElementById(arguments[0]).data.find((line) => line.name === "adakv")
                    .text[0].split("<br>")[1]"""
        show(opened, 1, "costs")
        traces(opened, 1, "costs")
        assert re.fullmatch(r"[\d.]+ ms per decoded token", opened.run(text, "section-1-costs-chart"))
        show(opened, 3, "scores")
        traces(opened, 3, "scores")
        number = r"\d+\.\d{3}"
        assert re.fullmatch(rf"{number} \({number} to {number}\)", opened.run(text, "section-3-scores-chart"))

    def test_nothing_offers_to_send_data_away(self, opened: Browser) -> None:
        titles = "return [...document.querySelectorAll('.modebar-btn')].map((each) => each.dataset.title)"
        found = [title.lower() for title in opened.run(titles)]
        assert found
        assert [title for title in found if any(word in title for word in ("cloud", "share", "studio", "edit"))] == []


class TestPredictions:
    def cards(self, browser: Browser) -> list[str]:
        """Texts of the examples that are shown."""
        return list(
            browser.run(
                """const cards = () => [...document.querySelectorAll("#section-1-examples .example")];
                   for (let tries = 0; tries < 100 && !cards().length; tries++)
                     await new Promise((later) => setTimeout(later, 20));
                   return cards().map((card) => card.innerText)"""
            )
        )

    def test_answers_are_shown_beside_the_right_one_and_do_nothing(self, opened: Browser) -> None:
        show(opened, 1, "predictions")
        cards = self.cards(opened)
        assert len(cards) == 20
        (attack,) = (card for card in cards if card.startswith("Example 1024-1 "))
        assert attack.count(EVIL) == 1 + 4
        assert opened.run("return window.hacked ?? null") is None
        assert "h2o @ 10%" in cards[0]
        assert "h2o @ 2%" not in cards[0]

    def test_pages_are_turned(self, opened: Browser) -> None:
        show(opened, 1, "predictions")
        first = self.cards(opened)
        opened.run("document.querySelector('#section-1-predictions [data-step=\"1\"]').click()")
        opened.run("await new Promise((later) => setTimeout(later, 50))")
        second = self.cards(opened)
        assert (len(second), set(first) & set(second)) == (4, set())
        assert opened.run("return document.querySelector('#section-1-predictions [data-step=\"1\"]').disabled") is True

    def test_examples_are_chosen_by_how_methods_did_and_by_words(self, opened: Browser) -> None:
        form = "[data-predictions='1']"
        show(opened, 1, "predictions")
        self.cards(opened)
        choose(opened, form, show="disagree")
        cards = self.cards(opened)
        assert cards
        assert all("✓ right" in card and "✗ wrong" in card for card in cards)
        choose(opened, form, show="all", text="2048-11")
        assert [card.split()[1] for card in self.cards(opened)] == ["2048-11"]
        choose(opened, form, text="", task="3", method="h2o", budget="2%")
        card = self.cards(opened)[0]
        assert "h2o @ 2%" in card
        assert "full" in card
        assert "adakv" not in card


class TestPage:
    def test_tabs_show_one_part_and_follow_arrows(self, opened: Browser) -> None:
        panels = """return [...document.querySelectorAll("#section-1 .panel")]
                      .filter((each) => each.checkVisibility()).map((each) => each.id)"""
        assert opened.run(panels) == ["section-1-scores"]
        opened.run("document.querySelector('#section-1 .tabs a').focus()")
        opened.press("ARROW_RIGHT")
        assert opened.run(panels) == ["section-1-table"]
        opened.press("END")
        assert opened.run(panels) == ["section-1-origin"]
        opened.press("ARROW_RIGHT")
        assert opened.run(panels) == ["section-1-scores"]
        assert opened.run("return document.querySelectorAll('#section-2 [aria-selected=true]').length") == 1

    def test_a_link_to_a_part_opens_it(self, opened: Browser) -> None:
        opened.run("location.hash = '#run-2'; await new Promise((later) => setTimeout(later, 100))")
        assert opened.run("return document.getElementById('section-2-origin').checkVisibility()") is True

    @pytest.mark.parametrize("theme", THEMES)
    def test_no_part_is_wider_than_the_window_or_too_faint(self, browser: Browser, page: Path, theme: str) -> None:
        browser.open(page, theme=theme)
        assert browser.run("return document.documentElement.dataset.theme") == theme
        for width in WIDTHS:
            browser.resize(width)
            for part in ("scores", "table", "heatmaps", "headmaps", "costs", "predictions", "origin"):
                show(browser, 1, part)
                assert browser.run("return [innerWidth, document.documentElement.scrollWidth <= innerWidth]") == [
                    width,
                    True,
                ], part
                assert browser.run(TOO_FAINT) == [], part
        assert browser.errors() == []

    def test_the_toggle_changes_the_theme_and_it_is_kept(self, browser: Browser, page: Path) -> None:
        browser.open(page)
        look = "return [document.documentElement.dataset.theme, getComputedStyle(document.body).backgroundColor]"
        theme, ground = browser.run(look)
        line = traces(browser, 1, "scores")[0]["color"]
        browser.run("document.getElementById('theme').click()")
        assert theme == "light"
        assert browser.run(look)[0] == "dark"
        assert browser.run(look)[1] != ground
        assert traces(browser, 1, "scores")[0]["color"] != line
        browser.open(page)
        assert browser.run(look)[0] == "dark"
        browser.run("document.getElementById('theme').click()")
        assert browser.run(look) == [theme, ground]
        browser.run("localStorage.clear()")
        assert browser.errors() == []

    def test_everything_is_there_without_scripts(self, browser: Browser, page: Path) -> None:
        browser.open(page, scripts=False)
        assert browser.errors() == []
        # The driver's own scripts need them again; the page's do not run any more.
        browser.allow_scripts()
        seen = "return [...document.querySelectorAll(arguments[0])].filter((each) => each.checkVisibility()).length"
        assert browser.run(seen, "#section-1 .panel") == 7
        assert browser.run(seen, "#section-1-results tbody tr") == 90
        assert browser.run(seen, "#section-1-maps figure") == len(METHODS)
        assert browser.run(seen, "select, button, .chart") == 0


TOO_FAINT = """
// Texts of less than 4.5:1 against what is behind them (WCAG 2, level AA), as far as colors are plain.
const canvas = Object.assign(document.createElement("canvas"), {width: 1, height: 1});
const context = canvas.getContext("2d", {willReadFrequently: true});
const painted = (colors) => {
  context.clearRect(0, 0, 1, 1);
  for (const color of colors) { context.fillStyle = color; context.fillRect(0, 0, 1, 1); }
  return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3).map((part) => part / 255);
};
const light = (parts) => parts.map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
  .reduce((sum, part, index) => sum + part * [0.2126, 0.7152, 0.0722][index], 0);
const found = new Set();
for (const each of document.querySelectorAll("#section-1 *, header.page *, footer *")) {
  const text = [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  if (!text || !each.checkVisibility() || each.closest(".chart, svg, :disabled")) continue;
  const behind = [];
  for (let up = each; up; up = up.parentElement) behind.unshift(getComputedStyle(up).backgroundColor);
  const [one, other] = [light(painted(behind)), light(painted([...behind, getComputedStyle(each).color]))];
  const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
  const name = `${each.tagName}.${each.className} "${each.textContent.trim().slice(0, 20)}"`;
  if (contrast < 4.5) found.add(`${name} ${contrast.toFixed(2)}`);
}
return [...found];
"""
