"""Commands made of dataclasses."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from winnow.commands.app import app
from winnow.commands.command import command


@dataclass(frozen=True, kw_only=True)
class Shared:
    """Options of several commands."""

    device: Annotated[str, typer.Option(help="Where.")] = "auto"


@dataclass(frozen=True, kw_only=True)
class Greeting(Shared):
    """Greet people.

    Whom one greets is up to oneself; those who are
    not named are not greeted.
    """

    names: Annotated[list[str], typer.Argument(help="Whom.")]
    count: Annotated[int, typer.Option("--times", min=1)] = 1


def greet(options: Greeting) -> None:
    print(options)


@pytest.fixture
def program(monkeypatch):
    monkeypatch.setitem(sys.modules, "greetings", sys.modules[__name__])
    made = typer.Typer()
    made.command()(command(Greeting, "greetings:greet"))
    return made


def test_a_job_gets_its_options(program):
    found = CliRunner().invoke(program, ["Ann", "Bob", "--times", "2"])
    assert found.output.strip() == str(Greeting(names=["Ann", "Bob"], count=2, device="auto"))


def test_help_and_checks_are_those_of_the_fields(program):
    text = CliRunner().invoke(program, ["--help"]).output
    assert "Greet people." in text
    # No line ends where one of the source does.
    assert "those who are not named" in text
    # The command's own options stand before shared ones.
    assert 0 < text.index("--times") < text.index("--device")
    assert CliRunner().invoke(program, ["Ann", "--times", "0"]).exit_code == 2
    assert CliRunner().invoke(program, []).exit_code == 2


def commands(group, *names):
    for name, found in group.commands.items():
        yield from commands(found, *names, name) if hasattr(found, "commands") else [" ".join((*names, name))]


def options(group):
    for found in group.commands.values():
        yield from options(found) if hasattr(found, "commands") else found.params


def test_no_placeholder_is_an_options_name_in_capitals():
    """Typer 0.27 took such a one for the name: there was no --device, but a --DEVICE."""
    written = [each for each in options(typer.main.get_command(app)) if each.opts[0].startswith("--")]
    assert len(written) > 100
    assert [each.name for each in written if each.metavar == each.name.upper()] == []


@pytest.mark.parametrize("name", list(commands(typer.main.get_command(app))))
def test_every_command_has_its_job(name, monkeypatch):
    taken = []
    monkeypatch.setattr("winnow.commands.command.import_module", lambda module: taken.append(module) or {}[module])
    found = CliRunner().invoke(app, [*name.split(), *REQUIRED.get(name, ())])
    assert taken, found.output
    monkeypatch.undo()
    module = __import__(taken[0], fromlist=["job"])
    assert callable(getattr(module, name.split()[-1]))


OUT = ("--out", "a.safetensors")
REQUIRED = {
    "compress": ("document.txt", "--out", "c"),
    "ask": ("c", "Why?"),
    "compare": ("run",),
    "eval": ("facts", "--out", "run"),
    "export": ("run", "--to", "csv", "--out", "a.csv"),
    "report": ("a",),
    "heads fetch": ("llama-3-8b", "headkv-r2"),
    "heads show": ("a.json",),
    "heads convert": ("a.json", "-o", "a.safetensors"),
    "heads needle": ("--kind", "r", *OUT),
    "heads cokv": OUT,
    "heads kvzip": OUT,
    "heads curves": OUT,
    "heads centers": ("document.txt", "-o", "a.safetensors"),
    "heads merge": ("a.jsonl", *OUT),
    "heads tune": ("--method", "cokv", "--out", "a.json"),
    "heads verify": ("a.safetensors",),
}
