"""The files of a report, from the contents of its sections."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape  # jinja2's own

from winnow.report.numbers import written_bytes, written_seconds, written_share
from winnow.report.page.content import Content
from winnow.report.page.data import section_data
from winnow.report.page.folder import FILES, RESULTS
from winnow.report.page.methods import FULL, MethodName, budget_order
from winnow.report.page.plotly import plotly_script
from winnow.report.page.quantities import SCORE, Quantity
from winnow.version import __version__

FORM = 1
"""Version of the form of `results.json`."""
PAGE = "index.html"
_HERE = Path(__file__).parent


def render(title: str, contents: Sequence[Content]) -> dict[str, bytes]:
    """Every file by its name in the folder. Raises MissingPackage without plotly."""
    static = {path.name: path.read_bytes() for path in sorted((_HERE / "static").iterdir())}
    files = {"plotly.min.js": plotly_script(), **static}
    for content in contents:
        for number, each in enumerate(content.predictions):
            name = f"predictions-{content.number}-{number}.js"
            files[f"data/{name}"] = _script("predictions", {"file": name, **each._asdict()})
    date = datetime.now(UTC).isoformat(timespec="seconds")
    results = {
        "written_by": f"winnow {__version__}",
        "form": FORM,
        "title": title,
        "written": date,
        FILES: [*files, "data/results.js", RESULTS, PAGE],
        "sections": [section_data(content) for content in contents],
    }
    files["data/results.js"] = _script("results", results)
    files[RESULTS] = _json(results, indent=1)
    files[PAGE] = _page(title=title, contents=contents, version=__version__, written=date).encode(
        "utf-8", "backslashreplace"
    )
    return files


def _page(**given: Any) -> str:
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "bytes": written_bytes,
        "seconds": written_seconds,
        "value": written_value,
        "fact": written_fact,
        "short": written_short,
        "breakable": breakable,
        "counted": lambda number, one, several: f"{number:,} {one if number == 1 else several}",
        "pairs": pairs,
        "titles": titles,
        "budget_place": budget_place,
    }
    environment.globals |= {"share": written_share, "SCORE": SCORE, "FULL": FULL}
    return environment.get_template(PAGE).render(**given)


def written_value(value: float, quantity: Quantity) -> str:
    """A share in percent with one decimal, perplexity as `winnow eval` tells it, other numbers with three digits."""
    if quantity.percent:
        return f"{100 * value:.1f}"
    return f"{value:.3f}" if quantity.name == "nll" else f"{value:.3g}"


def written_fact(value: object) -> str:
    """A fact of a protocol, a request or an environment."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or value == "":
        return "–"
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(value, ensure_ascii=False) if value else "–"
    return str(value)


def written_short(tokens: float) -> str:
    """A length, in thousands of 1024 where it is such: 4096 -> "4k"."""
    return f"{tokens / 1024:g}k" if tokens >= 1024 and tokens % 512 == 0 else f"{tokens:g}"


def breakable(text: str) -> Markup:
    """A name that a narrow column may break behind underscores."""
    return Markup("_<wbr>").join(escape(text).split("_"))


def pairs(values: Iterable[object], form: str = "{}") -> list[tuple[object, str]]:
    """Values with their texts, for lists to choose from."""
    return [(value, form.format(value)) for value in values]


def titles(quantities: Iterable[Quantity]) -> list[tuple[object, str]]:
    """Names and titles of quantities."""
    return [(each.name, f"{each.title} {each.arrow}") for each in quantities]


def budget_place(method: MethodName) -> float:
    """A number that budgets are sorted by; methods without one come last."""
    unit, amount, _ = budget_order(method.budget)
    return unit * 1e15 + min(amount, 9e14)


def _script(name: str, value: object) -> bytes:
    """A script that hands a value to the page: pages from files may not read JSON."""
    return b"winnow." + name.encode() + b"(" + _json(value) + b");\n"


def _json(value: object, indent: int | None = None) -> bytes:
    separators = (",", ":") if indent is None else None
    return json.dumps(value, indent=indent, separators=separators, allow_nan=False).encode()
