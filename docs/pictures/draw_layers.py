"""The picture of the layers, `layers.png` beside this file, from the contract in pyproject.toml and the real imports.

    python docs/pictures/draw_layers.py

A package stands on its floor of the contract, and an arrow leads from it to every package that it imports, unless
other arrows lead there already (the transitive reduction). Arrows to one package join into one line. Imports that the
contract forbids, upward or between neighbors, are red.
"""

from __future__ import annotations

import ast
import random
import re
import textwrap
import tomllib
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path as File
from typing import NamedTuple

import grimp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Patch
from matplotlib.path import Path

from winnow.report.style import FAINT, INK, MARK, add_title, new_figure, save

ROOT = File(__file__).resolve().parents[2]
ROOM, ROLES, FLOOR, BOX, GAP = 8.0, 4.7, 0.96, 0.42, 0.24
"""Inches: what boxes may take in width, what the words beside them take, from floor to floor, a box's height, gaps."""
LIBRARIES = {"transformers": "#CFE3F3", "torch": "#D3EBDD", "neither": "#ECECEC"}
"""Fill of a package that imports this library itself, the first that applies."""
LINE = 0.135
"""Inches from line to line of the words beside the boxes."""
TRIALS = 200
"""Random orders that the search for few crossings starts from."""

Edge = tuple[str, str]


class Imports(NamedTuple):
    """The imports between packages, and of libraries."""

    counts: Counter[Edge]
    """(importer, imported) -> import statements."""
    libraries: dict[str, set[str]]
    """Package -> those of LIBRARIES that it imports."""


class Node(NamedTuple):
    """A box, or the place where the line to `name` passes a floor."""

    name: str
    floor: int
    passing: bool = False


def read_floors() -> list[list[str]]:
    """The packages of every floor, from top to bottom, as the contract lists them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    return [re.findall(r"\w+", line) for line in layers]


def read_imports() -> Imports:
    """All imports of the source, those for type checking included."""
    graph = grimp.build_graph("winnow", include_external_packages=True, cache_dir=None)
    counts: Counter[Edge] = Counter()
    libraries: dict[str, set[str]] = {}
    for module in graph.modules:
        importer = _package(module)
        for imported in graph.find_modules_directly_imported_by(module):
            if imported in LIBRARIES:
                libraries.setdefault(importer, set()).add(imported)
            elif "" not in (importer, _package(imported)) and importer != _package(imported):
                counts[importer, _package(imported)] += 1
    return Imports(counts, libraries)


def _package(module: str) -> str:
    """The package or module right below winnow; empty for winnow itself and for other libraries."""
    root, _, rest = module.partition(".")
    return rest.partition(".")[0] if root == "winnow" else ""


def count_lines(package: str) -> int:
    """Lines of Python in a package."""
    place = ROOT / "src" / "winnow" / package
    files = place.rglob("*.py") if place.is_dir() else [place.with_suffix(".py")]
    return sum(len(file.read_text().splitlines()) for file in files)


def role_of(package: str) -> str:
    """The first sentence of a package's docstring."""
    place = ROOT / "src" / "winnow" / package
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    text = " ".join((ast.get_docstring(ast.parse(file.read_text())) or "").split())
    return re.split(r"(?<=\w\w)\. |\.$", text)[0].replace("`", "")


def reduced(edges: set[Edge]) -> set[Edge]:
    """The edges of an acyclic graph that no path of others replaces."""
    following: dict[str, set[str]] = {}
    for importer, imported in edges:
        following.setdefault(importer, set()).add(imported)

    def reaches(start: str, goal: str) -> bool:
        return start == goal or any(reaches(each, goal) for each in following.get(start, ()))

    return {
        (importer, imported)
        for importer, imported in edges
        if not any(reaches(other, imported) for other in following[importer] - {imported})
    }


# --- the layout ---------------------------------------------------------------------------------------------------


class Graph(NamedTuple):
    """Nodes on floors, and links from one floor to the next."""

    floors: list[list[Node]]
    links: list[tuple[Node, Node]]


def graph_of(floors: Sequence[Sequence[str]], edges: set[Edge]) -> Graph:
    """Boxes and, for edges over several floors, places to pass, one for all edges to the same package."""
    floor_of = {name: index for index, names in enumerate(floors) for name in names}
    nodes = [[Node(name, index) for name in names] for index, names in enumerate(floors)]
    links: set[tuple[Node, Node]] = set()
    for importer, imported in sorted(edges):
        here = Node(importer, floor_of[importer])
        for floor in range(here.floor + 1, floor_of[imported]):
            there = Node(imported, floor, passing=True)
            if there not in nodes[floor]:
                nodes[floor].append(there)
            links.add((here, there))
            here = there
        links.add((here, Node(imported, floor_of[imported])))
    return Graph(nodes, sorted(links))


def ordered(graph: Graph) -> list[list[Node]]:
    """The floors in an order of few crossings: the best of many random ones, each improved by barycenters and swaps."""
    draw, best, fewest = random.Random(0), graph.floors, None
    for _ in range(TRIALS):
        floors = [draw.sample(floor, len(floor)) for floor in graph.floors]
        for turn in range(8):
            for index in range(len(floors)) if turn % 2 else reversed(range(len(floors))):
                floors[index] = _by_barycenter(floors, index, graph.links)
        found = _crossings(floors, graph.links)
        if fewest is None or found < fewest:
            best, fewest = floors, found
    return best


def _by_barycenter(floors: list[list[Node]], index: int, links: list[tuple[Node, Node]]) -> list[Node]:
    place = {node: (at + 0.5) / len(floor) for floor in floors for at, node in enumerate(floor)}

    def center(node: Node) -> float:
        near = [place[b if a == node else a] for a, b in links if node in (a, b)]
        return float(np.mean(near)) if near else place[node]

    return sorted(floors[index], key=center)


def _crossings(floors: list[list[Node]], links: list[tuple[Node, Node]]) -> tuple[int, float]:
    """Pairs of links that cross, and how far links lead sideways."""
    place = {node: at for floor in floors for at, node in enumerate(floor)}
    share = {node: (at + 0.5) / len(floor) for floor in floors for at, node in enumerate(floor)}
    crossing = sum(
        (place[a] - place[c]) * (place[b] - place[d]) < 0
        for index, (a, b) in enumerate(links)
        for c, d in links[index + 1 :]
        if a.floor == c.floor
    )
    return crossing, sum(abs(share[a] - share[b]) for a, b in links)


def placed(floors: list[list[Node]], links: list[tuple[Node, Node]], widths: dict[str, float]) -> dict[Node, float]:
    """The middle of every node, in inches: near its neighbors, without overlaps."""
    size = {node: 0.0 if node.passing else widths[node.name] for floor in floors for node in floor}
    x = {node: ROOM * (at + 0.5) / len(floor) for floor in floors for at, node in enumerate(floor)}
    for turn in range(200):
        for floor in floors if turn % 2 else reversed(floors):
            wanted = [_wanted(node, x, links) for node in floor]
            weights = [4.0 if node.passing else 1.0 for node in floor]
            steps = [0.0, *((size[a] + size[b]) / 2 + GAP for a, b in pairwise(floor))]
            left, right = size[floor[0]] / 2 + GAP, ROOM - size[floor[-1]] / 2 - GAP
            x |= dict(zip(floor, _spaced(wanted, weights, steps, left, right), strict=True))
    first = min(at - size[node] / 2 for node, at in x.items())
    return {node: at - first + GAP for node, at in x.items()}


def _wanted(node: Node, x: dict[Node, float], links: list[tuple[Node, Node]]) -> float:
    """The middle of a node's neighbors; for one that is passed, rather that of the whole line, to keep it straight."""
    near = [x[b if a == node else a] for a, b in links if node in (a, b)]
    middle = float(np.mean(near)) if near else x[node]
    if not node.passing:
        return middle
    line = [at for other, at in x.items() if other.passing and other.name == node.name]
    return 0.15 * middle + 0.85 * float(np.mean(line))


def _spaced(wanted: list[float], weights: list[float], steps: list[float], left: float, right: float) -> list[float]:
    """The places nearest to those wanted with at least `steps` between them, by pooling those that would collide."""
    ahead = np.cumsum(steps)
    pools: list[tuple[float, float, int]] = []  # mean, weight, members
    for want, weight in zip(np.array(wanted) - ahead, weights, strict=True):
        mean, total, members = float(want), weight, 1
        while pools and pools[-1][0] > mean:
            before, heavy, many = pools.pop()
            mean = (before * heavy + mean * total) / (heavy + total)
            total, members = heavy + total, members + many
        pools.append((mean, total, members))
    flat = np.concatenate([np.full(members, mean) for mean, _, members in pools])
    return list(np.clip(flat, left, right - ahead[-1]) + ahead)


# --- the drawing --------------------------------------------------------------------------------------------------


def ports(
    x: dict[Node, float], links: list[tuple[Node, Node]], widths: dict[str, float]
) -> dict[tuple[Node, Node], tuple[float, float]]:
    """Places where links leave and arrive, side by side in the order of the other ends."""
    leaves: dict[tuple[Node, Node], float] = {}
    arrives: dict[tuple[Node, Node], float] = {}
    for node in x:
        for ends, mine, other in ((leaves, 0, 1), (arrives, 1, 0)):
            own = sorted((link for link in links if link[mine] == node), key=lambda link: x[link[other]])
            spread = 0.0 if node.passing else min(0.6 * widths[node.name], 0.22 * (len(own) - 1))
            for link, shift in zip(own, np.linspace(-spread / 2, spread / 2, len(own)), strict=True):
                ends[link] = x[node] + (float(shift) if len(own) > 1 else 0.0)
    return {link: (leaves[link], arrives[link]) for link in links}


def draw(path: File) -> None:
    """Writes the picture."""
    floors, imports = read_floors(), read_imports()
    names = [name for floor in floors for name in floor]
    if missing := {name for edge in imports.counts for name in edge} - set(names):
        raise SystemExit(f"not in the contract of pyproject.toml: {', '.join(sorted(missing))}")
    floor_of = {name: index for index, floor in enumerate(floors) for name in floor}
    wrong = {(a, b) for a, b in imports.counts if floor_of[a] >= floor_of[b]}
    lines = {name: count_lines(name) for name in names}
    widths = {name: max(0.095 * len(name) + 0.24, 0.72, lines[name] / 1500) for name in names}

    graph = graph_of(floors, reduced(set(imports.counts) - wrong))
    x = placed(ordered(graph), graph.links, widths)

    top = 1.0
    height = top + FLOOR * len(floors) + 0.55
    right = max(at + (0 if node.passing else widths[node.name] / 2) for node, at in x.items())
    width = right + ROLES
    figure = new_figure(width, height)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    middle = [top + FLOOR * (index + 0.5) for index in range(len(floors))]
    for index, y in enumerate(middle):
        if index % 2 == 0:
            axes.axhspan(y - FLOOR / 2, y + FLOOR / 2, color="#F7F7F7", zorder=0, lw=0)
    for link, (leave, arrive) in ports(x, graph.links, widths).items():
        _draw_link(axes, link, leave, arrive, x, middle)
    for node, at in x.items():
        if not node.passing:
            found = imports.libraries.get(node.name, set())
            fill = next((LIBRARIES[library] for library in LIBRARIES if library in found), LIBRARIES["neither"])
            _draw_box(axes, node.name, at, middle[node.floor], widths[node.name], lines[node.name], fill)
    for floor, y in zip(floors, middle, strict=True):
        _draw_roles(axes, sorted(floor, key=lambda name: x[Node(name, floor_of[name])]), right, y)
    for a, b in sorted(wrong):
        _draw_wrong(axes, Node(a, floor_of[a]), Node(b, floor_of[b]), x, middle)
    _draw_words(figure, axes, (width, height), imports, wrong, len(floors))
    save(figure, path)


def _draw_link(
    axes: Axes, link: tuple[Node, Node], leave: float, arrive: float, x: dict[Node, float], middle: list[float]
) -> None:
    start, end = link
    begin, stop = middle[start.floor] + BOX / 2, middle[end.floor] - BOX / 2
    bend = (stop - begin) * 0.55
    points = [(leave, begin), (leave, begin + bend), (arrive, stop - bend), (arrive, stop)]
    codes = [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4]
    if end.passing:
        points, codes = [*points, (arrive, stop + BOX)], [*codes, Path.LINETO]
    curve = Path(points, codes)
    style = "-" if end.passing else "-|>,head_length=4.5,head_width=2.2"
    axes.add_patch(
        FancyArrowPatch(
            path=curve, arrowstyle=style, color="#7A8793", lw=1.1, shrinkA=0, shrinkB=0, zorder=1, capstyle="round"
        )
    )


def _draw_wrong(axes: Axes, start: Node, end: Node, x: dict[Node, float], middle: list[float]) -> None:
    """An arrow from the top of a box to the bottom of a higher one, or over the floor to a neighbor."""
    upward = start.floor > end.floor
    begin = (x[start], middle[start.floor] - BOX / 2)
    stop = (x[end], middle[end.floor] + (BOX / 2 if upward else -BOX / 2))
    bend = 0.0 if upward else -0.4 if x[start] < x[end] else 0.4
    arc = f"arc3,rad={bend}"
    style = "-|>,head_length=4.5,head_width=2.2"
    axes.add_patch(
        FancyArrowPatch(
            begin, stop, connectionstyle=arc, arrowstyle=style, color=MARK, lw=1.8, shrinkA=0, shrinkB=0, zorder=4
        )
    )


def _draw_box(axes: Axes, name: str, x: float, y: float, width: float, lines: int, fill: str) -> None:
    box = FancyBboxPatch(
        (x - width / 2, y - BOX / 2),
        width,
        BOX,
        boxstyle="round,pad=0,rounding_size=0.06",
        facecolor=fill,
        edgecolor="#5B6670",
        lw=0.9,
        zorder=2,
    )
    axes.add_patch(box)
    axes.text(x, y - 0.07, name, ha="center", va="center", fontsize=10.5, fontweight="bold", color=INK, zorder=3)
    axes.text(x, y + 0.115, f"{lines:,}", ha="center", va="center", fontsize=8, color="#555555", zorder=3)


def _draw_roles(axes: Axes, floor: list[str], x: float, y: float) -> None:
    """Names and docstrings of a floor, right of `x`, in the order of the boxes."""
    texts = [_wrapped(role_of(name), 1 if len(floor) > 3 else 2) for name in floor]
    at = y - LINE * (sum(map(len, texts)) - 1) / 2
    for name, text in zip(floor, texts, strict=True):
        axes.text(x + 0.95, at, name, ha="right", va="center", fontsize=7.5, fontweight="bold", color=INK)
        for line in text:
            axes.text(x + 1.03, at, line, ha="left", va="center", fontsize=7.5, color="#555555")
            at += LINE


def _wrapped(text: str, most: int) -> list[str]:
    """At most so many lines; a text that is too long ends at its first colon, or else comma by comma."""
    for cut in (":", *("," for _ in range(text.count(",")))):
        if len(textwrap.wrap(text, 58)) > most:
            text = text.partition(cut)[0] if cut == ":" else text.rpartition(cut)[0] or text
    return textwrap.wrap(text, 58)[:most]


def _draw_words(
    figure: Figure, axes: Axes, size: tuple[float, float], imports: Imports, wrong: set[Edge], floors: int
) -> None:
    width, height = size
    total = sum(imports.counts.values())
    broken = sum(imports.counts[edge] for edge in wrong)
    add_title(
        figure,
        "The layers of winnow",
        f"{total} imports between {len({n for e in imports.counts for n in e})} packages of winnow on {floors} floors; "
        + (f"{broken} break the contract (red)." if broken else "none leads up, or to a neighbor on its floor."),
        0.25 / width,
    )
    handles = [Patch(facecolor=fill, edgecolor="#5B6670", lw=0.9, label=name) for name, fill in LIBRARIES.items()]
    axes.legend(
        handles=handles,
        title="a package's own imports",
        loc="upper right",
        bbox_to_anchor=(1 - 0.15 / width, 1 - 0.12 / height),
        frameon=False,
        fontsize=8.5,
        title_fontsize=8.5,
        ncols=len(handles),
        handlelength=1.2,
        columnspacing=1.2,
    )
    note = (
        "Numbers are lines of Python, and wide boxes have many. An arrow that others imply is left out; arrows to one "
        "package join.\nFloors are those of the contract in pyproject.toml. Drawn from the source by "
        "docs/pictures/draw_layers.py."
    )
    axes.text(0.25, height - 0.14, note, fontsize=8, color=FAINT, va="bottom", linespacing=1.4)


if __name__ == "__main__":
    target = File(__file__).with_name("layers.png")
    draw(target)
    print(target)
