"""Programs of `training`: what a run resumes from, and what the demo's files hold."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from support.launcher import COMMANDS, launcher
from winnow.bundled import MODEL_PATH

TRAINING = Path(__file__).resolve().parent.parent / "training"
TINY = ("--hidden", "16", "--intermediate", "16", "--tokens", "200", "--steps", "1", "--threads", "1")


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TRAINING / program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def train(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = f"""
import runpy, sys
sys.path.insert(0, {str(TRAINING)!r})
runpy.run_path({str(TRAINING / "train_bundled.py")!r}, run_name="__main__")
"""
    return launcher(COMMANDS).python(code, *arguments, *TINY)


def test_a_checkpoint_of_another_run_is_refused(tmp_path) -> None:
    where = ("--out", str(tmp_path / "out"), "--work", str(tmp_path / "work" / "checkpoints"))
    first = train(*where)
    assert first.returncode == 0, first.stderr
    again = train(*where)
    assert (again.returncode, '"resumed": 1' in again.stdout) == (0, True), again.stderr
    other = train(*where, "--seed", "2", "--muon-rate", "0.1")
    assert other.returncode == 1
    assert "different in --seed (there 1, now 2), --muon-rate (there 0.02, now 0.1)" in other.stderr


def test_the_demos_files_are_made_again(tmp_path) -> None:
    made = run("make_demo_document.py", "--out", str(tmp_path))
    assert made.returncode == 0, made.stderr
    for name in ("document.txt", "questions.jsonl"):
        assert (tmp_path / name).read_text() == (Path(MODEL_PATH) / name).read_text()
    assert set(json.loads((tmp_path / "questions.jsonl").read_text().splitlines()[0])) == {"kind", "text", "answer"}


def test_the_measurement_has_as_many_questions_as_the_table() -> None:
    table = json.loads((Path(MODEL_PATH) / "evaluation.json").read_text())
    asked = {cell["n"] for row in table.values() for cell in row.values()}
    source = (TRAINING / "evaluate_bundled.py").read_text()
    assert asked == {100}
    assert '"--questions", type=int, default=100' in source
