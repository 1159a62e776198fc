"""Commands whose options are a dataclass, and whose job is imported when it is called.

What can be typed is known without torch; only a job, which does the work, needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from importlib import import_module
from inspect import Parameter, Signature, cleandoc
from typing import Any, get_type_hints

from winnow.commands.console import silence_libraries
from winnow.commands.interrupts import raise_again
from winnow.commands.plugins import run_plugins


def command(options: type[Any], job: str) -> Callable[..., None]:
    """A function as typer wants it: the fields of a dataclass are its parameters, the docstring is its help.

    job: "module:function"; the function takes an instance of the dataclass.
    Files that the command line names as `plugins` are run before it.
    """

    def call(**given: Any) -> None:
        module, _, name = job.partition(":")
        work = getattr(import_module(module), name)
        silence_libraries()
        raise_again()
        run_plugins(given.get("plugins") or ())
        work(options(**given))

    call.__doc__ = _in_paragraphs(options.__doc__ or "")
    call.__dict__["__signature__"] = Signature(_parameters(options))
    return call


def _in_paragraphs(text: str) -> str:
    """A docstring with every paragraph in one line: typer breaks the later ones where the source does."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in cleandoc(text).split("\n\n"))


def _parameters(options: type[Any]) -> list[Parameter]:
    """One for every field, those of the class before those of its bases."""
    annotations = get_type_hints(options, include_extras=True)
    by_name = {field.name: field for field in fields(options)}
    order = dict.fromkeys(name for kind in options.__mro__ for name in vars(kind).get("__annotations__", ()))
    return [
        Parameter(name, Parameter.KEYWORD_ONLY, default=_default(by_name[name]), annotation=annotations[name])
        for name in order
    ]


def _default(field: Field[Any]) -> Any:
    return Parameter.empty if field.default is MISSING else field.default
