"""Lines of a chat: typed on a terminal, or read from standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress

from winnow.commands.console import messages, output
from winnow.errors import Ended


def on_terminal() -> bool:
    """True if somebody types, and sees what is printed."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def typed_lines() -> Iterator[str]:
    """Lines that are not empty, until Ctrl-D. Ctrl-C begins the line again."""
    with suppress(ImportError):
        # Arrow keys and history in `input`.
        import readline  # noqa: F401
    while True:
        try:
            line = input("> ").strip()
            line.encode("utf-8")
        except EOFError:
            output().print()
            return
        except Ended:
            raise
        except KeyboardInterrupt:
            output().print("\nCtrl-D or /quit ends the chat.", style="dim")
            continue
        except UnicodeError:
            messages().print("That is not UTF-8 text.", style="red")
            continue
        if line:
            yield line
