"""pip, with the steps of the kernels' build, of which pip itself shows nothing for minutes.

python native/pip_with_steps.py install --editable ".[all]"
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections import deque

# CMake's trial of a compiler counts steps, too, without these words.
_STEP = re.compile(r"\s*\[(\d+)/(\d+)\] (?:Building|Linking) CXX ")
_FAILED = re.compile(r"\s*FAILED:")
_FAULT = re.compile(r"\s*FAILED:|.*\b(error|Error)\b[: ]|.*\bterminated\b")
_KEPT = 60
"""Last lines that are shown where pip fails."""
_AFTER = 3
"""Lines that belong to one that tells of a fault: CMake gives its reason below."""
_FAULTS = 20
"""Lines that are shown of a build that failed."""


class BuildSteps:
    """Steps as a line that changes on a terminal, as lines of their own elsewhere."""

    def __init__(self) -> None:
        self.step = self.steps = self._failed_at = 0
        self._begin = time.monotonic()
        self._on_terminal = sys.stdout.isatty()

    def show(self, step: int, steps: int) -> None:
        """The build is at a step of so many."""
        if step == 1:
            self._begin = time.monotonic()
            print("Building the kernels, a few minutes on two cores.", flush=True)
        self.step, self.steps = step, steps
        text = f"  step {step} of {steps}, {time.monotonic() - self._begin:.0f} s"
        print(text, end="\r" if self._on_terminal and step < steps else "\n", flush=True)

    def fail(self) -> None:
        """The step failed; those that run beside it still come to their end."""
        self._failed_at = self._failed_at or self.step

    @property
    def failed(self) -> str:
        """The end of a build that went wrong; empty where it came to its own."""
        if not self.steps:
            return "The kernels were not built, for want of a C++ compiler that works"
        if not self._failed_at and self.step == self.steps:
            return ""
        return f"The kernels were not built: step {self._failed_at or self.step} of {self.steps} failed"


def main(arguments: list[str]) -> int:
    """Exit code of pip."""
    steps, last, faults, belong = BuildSteps(), deque[str](maxlen=_KEPT), list[str](), 0
    command = [sys.executable, "-m", "pip", *arguments, "--verbose"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            last.append(line)
            belong = _AFTER + 1 if _FAULT.match(line) else belong - 1
            if belong > 0:
                faults.append(line)
            if _FAILED.match(line):
                steps.fail()
            if found := _STEP.match(line):
                steps.show(int(found[1]), int(found[2]))
    if pip.returncode:
        print("".join(last), file=sys.stderr)
    elif steps.failed:
        print("\n" + "".join(faults[:_FAULTS]), end="", file=sys.stderr)
        print(f"{steps.failed}. Winnow will use its torch reference, slower; make setup tries it again.", flush=True)
    return pip.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
