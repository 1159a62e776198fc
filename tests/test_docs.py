"""The documentation's code runs as printed, its links lead somewhere, and the files that it names exist."""

from __future__ import annotations

import json
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from support.families import EVERY
from support.launcher import COMMANDS, launcher
from winnow.bundled import MODEL_PATH
from winnow.cli import main

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "winnow"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "benchmarks/README.md")),
    *sorted((ROOT / "docs").glob("**/*.md")),
]

GUIDE = ROOT / "docs" / "adding-a-method.md"
MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
"""The name that pages load a model by; in a page's folder it leads to a small one."""
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
PUBLISHED = "Meta-Llama-3-8B-Instruct_retrieval_reasoning_heads.json"


class Block(NamedTuple):
    """Code of a page."""

    line: int
    """Lines of the page before it."""
    code: str


def blocks(page: Path, language: str) -> list[Block]:
    """Blocks of code in a language, in order."""
    text = page.read_text(encoding="utf-8")
    found = re.finditer(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    return [Block(text[: each.start(1)].count("\n"), each[1]) for each in found]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with what pages find beside them: a clone's examples, a model, somebody's head scores."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    model = tmp_path / MODEL
    model.mkdir(parents=True)
    for file in MODEL_PATH.iterdir():
        (model / file.name).symlink_to(file)
    # Those that pages ask know turns of a chat.
    (model / "chat_template.jinja").write_text(TEMPLATE)
    heads = {f"{layer}-{head}": [0.1 * layer, 0.2 * head] for layer in range(32) for head in range(32)}
    (tmp_path / PUBLISHED).write_text(json.dumps(heads))
    return tmp_path


def file_name(block: Block) -> str | None:
    """The name of a file that a block begins with, as a comment."""
    found = re.match(r"# (\w+\.py)\n", block.code)
    return found and found[1]


def write_files(page: Path) -> None:
    """Writes the files that blocks of a page are into the current folder."""
    for block in blocks(page, "python"):
        if name := file_name(block):
            Path(name).write_text(block.code, encoding="utf-8")


def run_python(page: Path) -> dict[str, Any]:
    """Runs the other blocks of a page in one namespace, and gives that."""
    module = ModuleType(page.stem.replace("-", "_"))
    for block in blocks(page, "python"):
        if file_name(block) is None:
            lines = "\n" * block.line  # so that tracebacks name the page's own
            exec(compile(lines + block.code, str(page), "exec", dont_inherit=True), vars(module))
    return vars(module)


@pytest.fixture
def here(folder, monkeypatch) -> Iterator[None]:
    """The folder is the current one, and modules in it can be imported; those of pages are forgotten afterwards."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    yield
    for path in folder.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.mark.usefixtures("here", "names_of_this_test", "one_thread")
class TestCode:
    @pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.stem)
    def test_the_python_of_every_page_runs_as_printed(self, page):
        write_files(page)
        found = run_python(page)
        if page == GUIDE:
            stats = found["answer"].stats
            assert str(found["answer"].method) == "valuenorm+ada @ 128"
            assert sum(map(sum, stats.slots)) == 128 * sum(map(len, stats.slots))
            fewer = found["fewer"].stats
            assert [heads[0] for heads in fewer.slots] == [3 * heads[1] for heads in fewer.slots]
            # Besides dense tokens of the answer.
            assert fewer.used_bytes < 0.65 * stats.used_bytes

    def test_the_commands_of_the_guide_run_as_printed(self, folder, capsys):
        write_files(GUIDE)
        commands = "\n".join(block.code for block in blocks(GUIDE, "sh")).replace("\\\n", " ").splitlines()
        listing, answering, testing = (shlex.split(line) for line in commands if line.strip())
        assert main(listing[1:]) == 0
        assert re.search(r"sinks +4 +first tokens that are always kept", capsys.readouterr().out)
        assert main(answering[1:]) == 0
        assert "valuenorm(sinks=2)+ada @ 256" in capsys.readouterr().out
        code = f"import runpy, sys; sys.path.insert(0, ''); runpy.run_module({testing[0]!r}, run_name='__main__')"
        status = launcher(COMMANDS).run(code, testing[1:], folder)
        said = (folder / "out.txt").read_text()
        assert (status, "1 passed" in said) == (0, True), said + (folder / "err.txt").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_local_links_and_named_files_exist(page):
    text = page.read_text()
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    missing = [link for link in links if not leads_somewhere(page, link)]
    named = re.findall(r"`((?:src|tests|benchmarks|docs|examples|native|training)/[\w./-]+\.\w+)`", text)
    missing += [name for name in named if not (ROOT / name).exists()]
    packages = "|".join(sorted(path.name for path in PACKAGE.iterdir() if path.is_dir()))
    inside = re.findall(rf"`((?:{packages})/[\w/]+\.py)`", text)
    missing += [name for name in inside if not (PACKAGE / name).exists() and not (ROOT / name).exists()]
    assert not missing


def leads_somewhere(page: Path, link: str) -> bool:
    """True if the linked file exists and has the heading that the link names."""
    name, _, heading = link.partition("#")
    target = page.parent / name if name else page
    if not target.exists():
        return False
    titles = re.findall(r"^#+ (.+)$", target.read_text(), flags=re.MULTILINE) if heading else []
    return not heading or heading in {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles}


def test_pages_count_the_families_that_are_tested():
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES}
    told = {
        (page.name, int(count)) for page, text in texts.items() for count in re.findall(r"(\d+) model families", text)
    }
    assert {name for name, _ in told} >= {"README.md", "contexts.md", "methods.md"}
    assert {count for _, count in told} == {len(EVERY)}


def test_every_extra_is_told():
    """The table of the page on installing has what pip knows, but for what developers need."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE)) == set(extras) - {"dev"}
