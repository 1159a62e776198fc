"""The lookup of known vulnerabilities: what could not be looked up is never taken for safe."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / ".ci" / "audit.py"


@pytest.fixture
def audit(monkeypatch, capsys):
    spec = importlib.util.spec_from_file_location("audit", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def run(stdout, stderr=""):
        found = subprocess.CompletedProcess([], 0, stdout, stderr)
        monkeypatch.setattr(module.subprocess, "run", lambda *_, **__: found)
        return module.main("folder"), capsys.readouterr().out

    return run


SAFE = {"name": "safe", "version": "1", "vulns": []}
OWN = {"name": "winnow-kv", "skip_reason": "not on the index"}
UNKNOWN = {"name": "unknown", "skip_reason": "not on the index"}
KNOWN = {"name": "weak", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]}


@pytest.mark.parametrize(
    ("packages", "code", "said"),
    [
        ([SAFE, OWN], 0, "1 dependencies checked, 0 known vulnerabilities"),
        ([SAFE, OWN, UNKNOWN], 1, "1 of 2 dependencies were NOT CHECKED"),
        ([SAFE, KNOWN], 1, "weak 2: CVE-1, fixed in 3"),
    ],
)
def test_what_was_found(audit, packages, code, said):
    found, out = audit(json.dumps({"dependencies": packages, "fixes": []}))
    assert found == code
    assert said in out


def test_a_service_that_is_not_reached(audit):
    assert audit("", "Traceback\nConnectionError: no route\n") == (
        1,
        "Dependencies were NOT CHECKED: ConnectionError: no route\n",
    )


def test_the_sdist_has_the_script_beside_its_tests():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert ".ci" not in settings["tool"]["scikit-build"]["sdist"]["exclude"]
