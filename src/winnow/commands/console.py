"""Consoles: results go to stdout, everything else to stderr."""

from __future__ import annotations

import logging
import sys
import warnings
from contextlib import suppress
from typing import Any

from rich.console import Console


def output() -> Console:
    """For results. Wide when it is not a terminal, so that tables are not cut in files and pipes."""
    return Console(highlight=False, emoji=False, width=None if sys.stdout.isatty() else 120)


class Messages(Console):
    """Standard error. Where nobody reads it any more, or it is full or closed, the work goes on."""

    def on_broken_pipe(self) -> None:
        """Nothing: rich would give up standard output, too, and end the program."""

    def print(self, *objects: Any, **settings: Any) -> None:
        """As a console's, as far as it can be written."""
        with suppress(OSError, ValueError):
            super().print(*objects, **settings)


def messages() -> Console:
    """For progress and errors; spinners and bars appear on terminals only."""
    return Messages(stderr=True, highlight=False, emoji=False)


def silence_libraries() -> None:
    """Keeps warnings and loading bars of the libraries underneath, as far as they are loaded, out of the output."""
    transformers = sys.modules.get("transformers")
    if transformers is not None:
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"(transformers|torch|huggingface_hub)(\.|$)")
