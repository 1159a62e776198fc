"""Settings that a command line shows load neither torch nor transformers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import winnow

CODE = """
import importlib, sys, types
# The package without its own imports.
package = sys.modules["winnow"] = types.ModuleType("winnow")
package.__path__ = [sys.argv[1]]
importlib.import_module(sys.argv[2])
print(sorted({"torch", "transformers"} & sys.modules.keys()))
"""


@pytest.mark.parametrize(
    "module",
    [
        "estimate.cokv.examples",
        "estimate.cokv.settings",
        "estimate.executors.base",
        "estimate.journal",
        "estimate.needle.examples",
        "estimate.needle.haystack",
        "estimate.needle.settings",
        "estimate.tune.knobs",
        "estimate.tune.questions",
        "estimate.tune.settings",
        "estimate.verify.settings",
    ],
)
def test_light_modules_stay_light(module: str) -> None:
    package = str(Path(winnow.__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", CODE, package, f"winnow.{module}"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
