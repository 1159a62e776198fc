"""The command line that is run, for those who write down where a result comes from."""

from __future__ import annotations

from contextvars import ContextVar

LINE: ContextVar[tuple[str, ...]] = ContextVar("line", default=("winnow",))
"""The program and its arguments: of the process, or those that `winnow.cli.main` was given."""
