"""Trials of grammars in a process of their own: some short schemas take llguidance hours, or all memory."""

from __future__ import annotations

import subprocess
import sys

from winnow.serve.refusals import Refused

SECONDS = 3.0
"""Time that a grammar may take to be compiled; most take milliseconds."""
_PROGRAM = """
import sys
from llguidance import LLMatcher, LLTokenizer
LLMatcher(LLTokenizer("byte"), sys.stdin.read(), log_level=0).compute_bitmask()
"""


def check_affordable(grammar: str, field: str) -> None:
    """Raises Refused for a grammar that takes too long to be compiled, or ends the process that does so."""
    try:
        subprocess.run(
            # Nothing is imported from where the server happens to stand.
            [sys.executable, "-P", "-c", _PROGRAM],
            input=grammar.encode(),
            capture_output=True,
            timeout=SECONDS,
            check=True,
        )
    except subprocess.TimeoutExpired:
        raise Refused(
            f"{field} takes longer than {SECONDS:g} seconds to compile; use a simpler schema.", field
        ) from None
    except subprocess.CalledProcessError:
        raise Refused(f"{field} cannot be compiled; use a simpler schema.", field) from None
