"""Benchmarks: what is kept of earlier runs, and what is told of noise."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from winnow.bundled import MODEL_PATH

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS / "papers")]

import end_to_end  # noqa: E402
import gpu_sizes  # noqa: E402
from evaluated import Study  # noqa: E402
from examined import Examined  # noqa: E402
from reporting import machine  # noqa: E402
from winnow.estimate.errors import JournalError  # noqa: E402

ROW = end_to_end.Row("small", 512, "snapkv", 1.0, None, 2.0, 3.0, None, 0.02)


def test_rows_of_another_share_are_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "page.json"
    without = {name: value for name, value in asdict(ROW).items() if name != "share"}
    path.write_text(json.dumps({"machine": machine(), "results": [asdict(ROW), without]}))
    assert end_to_end.earlier(path, 0.02) == [ROW]
    assert end_to_end.earlier(path, 0.05) == []


def test_a_cost_within_its_spread_is_left_empty() -> None:
    assert end_to_end.told_from_noise([1.0, 1.1, 0.9]) == 1.0
    assert end_to_end.told_from_noise([-0.5, 0.1, 0.6]) is None
    assert ROW.overhead == ""


def test_sizes_of_another_machine_are_not_mixed_in(tmp_path: Path) -> None:
    found = [{"store": store, "dim": 64} for store in ("full", "bits(8)")]
    (tmp_path / "gpu_sizes.json").write_text(json.dumps({"machine": "an H200", "results": found}))
    assert gpu_sizes.others(tmp_path, ("full", 64), "an H200") == found[1:]
    with pytest.raises(SystemExit, match="of another machine"):
        gpu_sizes.others(tmp_path, ("full", 64), "a CPU")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("gpu_sizes.py", "--tiny"), "an --out of its own"),
        (("growth.py", "--tokens", "100"), "100 is no multiple of 250"),
        (("packed_attention.py", "--formats", "8 bit"), "invalid choice: '8 bit'"),
    ],
)
def test_senseless_options_are_refused_before_any_work(arguments: tuple[str, ...], said: str) -> None:
    program, *options = arguments
    done = subprocess.run([sys.executable, str(BENCHMARKS / program), *options], capture_output=True, text=True)
    assert done.returncode
    # Without a GPU, or with one: a miniature never replaces results.
    assert said in done.stderr


def test_findings_on_other_prompts_are_not_taken_for_these(tmp_path: Path) -> None:
    study = Study.of(f"toy={MODEL_PATH}", tmp_path)
    study.folder.mkdir(parents=True)
    Examined(study, "kept", {}, 512, 2)._journal._journal.close()
    with pytest.raises(JournalError, match="prompts"):
        Examined(study, "kept", {}, 512, 4)
