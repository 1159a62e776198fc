"""Checks before any work is done: where results go, lengths of prompts, memory."""

from __future__ import annotations

import os.path
from collections.abc import Iterable
from pathlib import Path

import typer

from winnow.commands.inputs import InputError
from winnow.commands.options.executors import ExecutorOptions
from winnow.composition.method import Method
from winnow.errors import BudgetError
from winnow.files import check_own, has_text_name, make_folder, prepare_target
from winnow.heads.storage import SUFFIX
from winnow.models import ModelSource, available_memory, pick_device


def prepare_output(path: Path, force: bool, suffix: str = "") -> None:
    """Makes the folder of a file to be written.

    suffix: of such files, in lower case; any for "". Raises InputError where the name is of another kind, FileError
    where it leads to no regular file, the file is there and not to be replaced, or it cannot be written.
    """
    if os.path.isdir(path):
        raise InputError(f"{path} is a directory; name a file in it.")
    if suffix and path.suffix.lower() != suffix:
        raise InputError(f"{path} is not a name for a {suffix} file: call it {path.with_suffix(suffix).name}.")
    if suffix == SUFFIX and not has_text_name(path):
        raise InputError(f"{path} is not a UTF-8 name, and safetensors cannot read files with other names: rename it.")
    if os.path.isfile(path) and not force:
        raise InputError(f"{path} exists; give another name, or --force to replace it.")
    prepare_target(path, overwrite=force)


def check_apart(**paths: Path | None) -> None:
    """Raises InputError where two options, by their names, lead to one file: one result would replace the other."""
    before: dict[str, str] = {}
    for name, path in paths.items():
        if path is not None and (first := before.setdefault(os.path.realpath(path), name)) != name:
            raise InputError(f"--{first} and --{name} are the same file, {path}; give two names.")


def prepare_folder(path: Path, names: Iterable[str], force: bool) -> None:
    """Makes a folder for results with these names.

    Raises FileError where that cannot be, or where one of the names is that of a file which winnow did not write and
    which is not to be replaced.
    """
    make_folder(path)
    for name in names:
        if force:
            prepare_target(path / name, overwrite=True)
        else:
            check_own(path / name)


def check_context(
    source: ModelSource, tokens: int, subject: str, room: int = 1, purpose: str = "an answer", can_cut: bool = False
) -> None:
    """Raises InputError where so many tokens, with room for more, are too many for the model.

    subject: what has the tokens ("The prompt"); room: tokens for the purpose; can_cut: the command has --truncate.
    """
    if source.context is None or tokens + room <= source.context:
        return
    needs = f" and needs room for {purpose}" if room else ""
    cut = " leave its middle out (--truncate middle)," if can_cut else ""
    raise InputError(
        f"{subject} has {tokens:,} tokens{needs}; the model reads {source.context:,} at most. Shorten the text,{cut} "
        "or use a model that reads more."
    )


def check_workers(options: ExecutorOptions, device_map: str | None) -> None:
    """Raises BadParameter for workers that could not do the work as it is asked for.

    That is a number of them where none are asked for, a device map that all would use, and plugins in a cluster.
    """
    if options.executor == "ray" and getattr(options, "plugins", None):
        raise typer.BadParameter(
            "the nodes of a Ray cluster may not have this file; use --executor processes, or put the method into a "
            "package that is installed on every node.",
            param_hint="--plugin",
        )
    if options.executor == "local":
        if options.workers is not None:
            raise typer.BadParameter(
                "it counts processes or Ray actors; also pass --executor processes or ray.",
                param_hint="--workers",
            )
    elif device_map is not None:
        raise typer.BadParameter(
            f"{options.executor} would spread several models over the same devices; use --executor local.",
            param_hint="--device-map",
        )


def check_memory(methods: Iterable[Method], device: str) -> None:
    """Raises BudgetError for a byte budget above what the device has free."""
    free = available_memory(pick_device(device))
    for method in methods:
        if free is not None and method.budget.unit == "bytes" and method.budget.amount > free:
            raise BudgetError(
                f"A budget of {method.budget} is more than the {free / 2**30:.1f} GiB of free memory; give a smaller "
                "one."
            )
