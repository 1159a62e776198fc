"""Words on a build of the kernels, of which pip shows nothing."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "native" / "pip_with_steps.py"

STARTED = ["  [1/22] Building CXX object a.o", "  [2/22] Building CXX object b.o"]
LINKED = "  [22/22] Linking CXX shared library libwinnow_native.so"
FULL = ["  FAILED: [code=1] libwinnow_native.so", "  ld: error: No space left on device"]
KILLED = [
    "  FAILED: [code=1] b.o",
    "  g++: fatal error: Killed signal terminated program cc1plus",
    "  compilation terminated.",
]
ABSENT = ["  CMake Error at CMakeLists.txt:3 (project):", "    No CMAKE_CXX_COMPILER could be found."]
BROKEN = [
    "  CMake Error at CMakeTestCXXCompiler.cmake:71 (message):",
    "    The C++ compiler",
    "",
    '      "/usr/bin/false"',
    "",
    "    is not able to compile a simple test program.",
    "",
    "      [1/2] /usr/bin/false -o testCXXCompiler.cxx.o -c testCXXCompiler.cxx",
    "      FAILED: [code=1] testCXXCompiler.cxx.o",
]


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Output of the script for a pip that prints some lines."""
    spec = importlib.util.spec_from_file_location("pip_with_steps", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)

    def call(lines, code=0):
        python = tmp_path / "python"
        said = "\n".join(lines)
        python.write_text(f"#!{sys.executable}\nprint({said!r})\nraise SystemExit({code})\n")
        python.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(python))
        status = script.main(["install"])
        return status, *capsys.readouterr()

    return call


def test_a_build_that_came_to_its_end(run):
    status, out, err = run([*STARTED, LINKED])
    assert (status, err) == (0, "")
    assert "not built" not in out


@pytest.mark.parametrize(
    ("lines", "told", "why"),
    [
        ([*STARTED, *KILLED], "step 2 of 22 failed", "Killed signal"),
        ([*STARTED, *KILLED, "  [3/22] Building CXX object c.o"], "step 2 of 22 failed", "Killed signal"),
        ([*STARTED, LINKED, *FULL], "step 22 of 22 failed", "No space left"),
        (ABSENT, "for want of a C++ compiler that works", "No CMAKE_CXX_COMPILER"),
        (BROKEN, "for want of a C++ compiler that works", "/usr/bin/false"),
        ([], "for want of a C++ compiler that works", ""),
    ],
)
def test_a_build_that_failed_says_why(run, lines, told, why):
    status, out, err = run(lines)
    assert status == 0, "winnow is there, with its reference"
    assert told in out
    assert "make setup tries it again" in out
    assert why in err


def test_pip_that_failed_shows_its_end(run):
    status, _, err = run(["nothing to be had"], code=2)
    assert status == 2
    assert "nothing to be had" in err
