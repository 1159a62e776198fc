"""The Makefile: the test files that it names, and what sets up an environment."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PYTHON = """#!/bin/sh
echo "$@" >> calls
case "$*" in
  "-m venv .venv") touch has-pip ;;
  "-m pip"*) test -e has-pip ;;
esac
"""

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The Makefile in a folder with a space, with an environment whose Python writes down how it is called."""
    folder = tmp_path / "a clone"
    (folder / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(ROOT / "Makefile", folder)
    (folder / "pyproject.toml").touch()
    for python in (folder / ".venv" / "bin" / "python", folder / "python"):
        python.write_text(PYTHON)
        python.chmod(0o755)
    return folder


def make(folder: Path, *arguments: str) -> str:
    """Output of make, which does not see that another make runs the tests."""
    env = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    command = ["make", "PYTHON=./python", *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True, timeout=60).stdout


def calls(folder: Path) -> list[str]:
    """Calls of Python so far."""
    return (folder / "calls").read_text().splitlines() if (folder / "calls").exists() else []


@pytest.mark.parametrize("library", ["libwinnow_native.so", "libwinnow_native.dylib", None])
def test_setup_builds_again_where_the_kernels_are_missing(clone: Path, library: str | None) -> None:
    kernels = clone / ".venv" / "lib" / "python3.11" / "site-packages" / "winnow" / "kernels"
    kernels.mkdir(parents=True)
    (clone / "has-pip").touch()
    if library:
        (kernels / library).touch()
    (clone / ".venv" / ".ready").touch()
    built = clone / "build" / "native"
    built.mkdir(parents=True)
    make(clone, "setup")
    assert any("pip_with_steps.py install" in call for call in calls(clone)) == (library is None)
    assert built.exists() == (library is not None)


def test_what_only_needs_winnow_does_not_build_again(clone: Path) -> None:
    (clone / ".venv" / ".ready").touch()
    (clone / ".venv" / "bin" / "winnow").symlink_to("python")
    make(clone, "demo")
    assert calls(clone) == ["demo --out demo-output --force"]


def test_tests_need_all_instruction_sets_and_the_demo_the_best_one(clone: Path) -> None:
    """Whatever is asked for first, and nothing is built again for what needs less."""
    (clone / "has-pip").touch()

    def built(*arguments: str) -> list[str]:
        before = len(calls(clone))
        make(clone, *arguments)
        return re.findall(r"INSTRUCTION_SETS=(\w+)", "\n".join(calls(clone)[before:]))

    assert built("setup") == ["best"]
    assert built("dev") == ["here"]
    assert built("dev") == built("catalog") == []
    (clone / "pyproject.toml").touch()
    assert built("setup") == ["here"]  # tests still find all
    assert built("-B", "setup", "INSTRUCTION_SETS=all") == ["all"]
    assert built("dev") == []


def test_what_a_build_needs_is_what_pip_would_fetch() -> None:
    (needs,) = re.findall(r"^BUILD_NEEDS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert shlex.split(needs) == project["build-system"]["requires"]


def test_developers_do_not_build_twice(clone: Path) -> None:
    (clone / "has-pip").touch()
    make(clone, "dev")
    assert re.findall(r"INSTRUCTION_SETS=(\w+)", "\n".join(calls(clone))) == ["here"]


@pytest.mark.parametrize("pip", [True, False])
def test_an_environment_without_pip_is_made_again(clone: Path, pip: bool) -> None:
    if pip:
        (clone / "has-pip").touch()
    make(clone, "setup")
    assert ("-m venv .venv" in calls(clone)) != pip


def test_a_folder_may_have_a_space(clone: Path) -> None:
    lines = make(clone, "--dry-run", "aarch64").splitlines()
    (configure,) = [line for line in lines if "--toolchain" in line]
    assert str(clone / "fuzz" / "aarch64.cmake") in shlex.split(configure)


@pytest.mark.parametrize("target", ["test-low", "test-gpu"])
def test_every_test_file_of_a_target_is_there(target: str) -> None:
    recipe = subprocess.run(
        ["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    files = re.findall(r"tests/[\w/]+(?:\.py)?", recipe)
    assert files
    assert [name for name in files if not (ROOT / name).exists()] == []
