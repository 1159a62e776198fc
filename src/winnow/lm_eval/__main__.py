"""The command line of lm-evaluation-harness, with the model "winnow"."""

from __future__ import annotations

import sys

from lm_eval.__main__ import cli_evaluate

from winnow.errors import WinnowError


def main() -> int:
    """Runs what the process was asked for. Returns its exit code; errors of winnow are one line."""
    try:
        cli_evaluate()
    except WinnowError as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
