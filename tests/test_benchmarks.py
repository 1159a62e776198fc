"""Benchmarks: what is kept of earlier runs, and what is told of noise."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import winnow
from support.launcher import COMMANDS, launcher
from winnow.bundled import MODEL_PATH

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS / "papers")]

import end_to_end  # noqa: E402
import few_rows  # noqa: E402
import gpu_sizes  # noqa: E402
import growth  # noqa: E402
import latency  # noqa: E402
from claims import CLAIMS, METHODS  # noqa: E402
from evaluated import Study  # noqa: E402
from examined import Examined  # noqa: E402
from reporting import machine, software  # noqa: E402
from winnow.estimate.errors import JournalError  # noqa: E402
from winnow.estimate.journal import Journal  # noqa: E402
from winnow.heads import HeadScores  # noqa: E402
from winnow.models.high_bits import HighBitsLinear  # noqa: E402

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


def test_sizes_in_miniature_are_not_mixed_with_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, both are of one machine."""
    kept: list[str] = []

    def others(folder: Path, layer: tuple[str, int], machine: str) -> list[dict[str, Any]]:
        kept.append(machine)
        return []

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(gpu_sizes, "measured", lambda *_: [])
    monkeypatch.setattr(gpu_sizes, "compile_ahead", lambda *_: None)
    monkeypatch.setattr(gpu_sizes, "others", others)
    monkeypatch.setattr(gpu_sizes.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu_sizes, "_machine", lambda: "a GPU.")
    for options in ([], ["--tiny"]):
        chosen = ["gpu_sizes.py", "--dims", "64", "--stores", "full", "--out", str(tmp_path), *options]
        monkeypatch.setattr(sys, "argv", chosen)
        gpu_sizes.main()
    assert len(set(kept)) == 2


def test_kernels_of_two_compilers_do_not_stand_in_one_table() -> None:
    pytest.importorskip("triton.backends.nvidia")
    import gpu_resources

    here = gpu_resources.Table()
    assert gpu_resources.going_on(here) is here
    with pytest.raises(SystemExit, match=r"The table is of Triton 0\.0.*compile all cases"):
        gpu_resources.going_on(gpu_resources.Table(triton="0.0"))


PLACES = argparse.Namespace(contexts=[2048, 4096, 8192], batches=[1], layers=[2], tokens=500, turns=1)


def test_a_place_that_was_measured_in_part_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of the table stand under their own place, however often the run was stopped."""
    asked: list[tuple[str, int]] = []

    def found(key: str, at: int, ways: tuple[growth.Way, ...]) -> list[growth.Record]:
        asked.append((key, at))
        return [{"growth": key, "at": at, "cache": way.name, "ms": at / 1000, "mib": float(at)} for way in ways]

    monkeypatch.setattr(growth, "prompted", lambda key, at, **_: found(key, at, growth.PROMPTED))
    monkeypatch.setattr(
        growth, "generated", lambda tokens: (found("output", at, growth.GENERATING) for at in (250, tokens))
    )
    path = tmp_path / "growth.jsonl"
    # In the midst of 4096, twice, and of the last stretch of the output.
    for room in (len(growth.PROMPTED) + 2, 3, 4 + 4 + 4 + 4 + 4 + 1):
        with pytest.raises(OSError, match="full"):
            growth.measure(_nearly_full(path, room, monkeypatch), PLACES)
    asked.clear()
    journal = Journal.open(path, {})
    records = growth.measure(journal, PLACES)
    assert asked == [("output", 250), ("output", 500)]
    assert len(records) == 7 * 4
    table = growth.table(growth.GROWTHS[0], growth.lines(records, "context"))
    rows = [[cell.strip() for cell in line.split("|")[2:-1]] for line in table.splitlines()[2:]]
    assert rows == [["2.05", "4.10", "8.19", "1.00", "2048.00", "4096.00", "8192.00"]] * 4
    assert growth.measure(journal, PLACES) == records


def _nearly_full(path: Path, room: int, monkeypatch: pytest.MonkeyPatch) -> Journal:
    """A journal on a disk with room for so many records."""
    journal = Journal.open(path, {})
    append = journal.append
    written: list[growth.Record] = []

    def writing(record: growth.Record) -> None:
        if len(written) == room:
            journal.close()
            raise OSError("the disk is full")
        append(record)
        written.append(record)

    monkeypatch.setattr(journal, "append", writing)
    return journal


AS_A_PROGRAM = """
import os, runpy, sys

del sys.argv[0]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


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
    done = launcher(COMMANDS).python(AS_A_PROGRAM, str(BENCHMARKS / program), *options)
    assert done.returncode
    # Without a GPU, or with one: a miniature never replaces results.
    assert said in done.stderr


def test_findings_on_other_prompts_are_not_taken_for_these(tmp_path: Path) -> None:
    study = Study.of(f"toy={MODEL_PATH}", tmp_path)
    study.begin()
    Examined(study, "kept", {}, 512, 2)._journal._journal.close()
    with pytest.raises(JournalError, match="prompts"):
        Examined(study, "kept", {}, 512, 4)


def test_findings_on_the_text_of_another_python_are_not_taken_for_these(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = Study.of(f"toy={MODEL_PATH}", tmp_path)
    study.begin()
    Examined(study, "kept", {}, 512, 2)._journal._journal.close()
    monkeypatch.setattr("examined.reference", lambda: "Another text.")
    with pytest.raises(JournalError, match="reference"):
        Examined(study, "kept", {}, 512, 2)


def test_journals_know_all_versions_that_a_page_names() -> None:
    known = software()
    for version in (torch.__version__, transformers.__version__, winnow.__version__):
        assert version in known.values()
    assert {known["torch"], known["transformers"], known["winnow"], known["kernels"]} == set(known.values())


@pytest.mark.parametrize("differing", [{"model": "another"}, {"machine": "Another machine."}, {"model": ""}])
def test_latency_of_another_model_or_machine_is_measured_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, differing: dict[str, Any]
) -> None:
    """That of this one is kept."""
    study = Study.of(f"toy={MODEL_PATH}", tmp_path)
    study.begin()
    costs = [latency.Cost(setting.label, 0.1, 0.01) for setting in latency.SETTINGS]
    own = latency.Latency(machine(), 512, 1.0, costs, study.identity)
    path = study.folder / "latency-512.json"

    def measuring(*_: object) -> None:
        raise InterruptedError

    monkeypatch.setattr(latency, "Examined", measuring)
    path.write_text(json.dumps(asdict(own)))
    assert latency.measured(study, 512) == own
    path.write_text(json.dumps(asdict(own) | differing))
    with pytest.raises(InterruptedError):
        latency.measured(study, 512)


def test_headkv_is_timed_where_a_table_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs that were measured with it serve who gives none; those without one, or with another, are measured anew."""
    study = Study.of(f"toy={MODEL_PATH}", tmp_path)
    study.begin()
    scores = HeadScores(torch.rand(4, 4), "headkv-r2").save(tmp_path / "it's scores.safetensors")
    monkeypatch.setattr(latency, "STEPS", 2)
    monkeypatch.setattr(latency, "REPEATS", 1)
    without = latency.measured(study, 512)
    assert "HeadKV" not in [cost.label for cost in without.costs]
    found = latency.measured(study, 512, scores)
    assert [cost.label for cost in found.costs][:3] == ["SnapKV", "HeadKV", "AdaKV"]
    assert all(cost.step > 0 for cost in found.costs)
    assert latency.measured(study, 512) == latency.measured(study, 512, scores) == found
    HeadScores(torch.rand(4, 4), "headkv-r2").save(scores)
    assert latency.measured(study, 512, scores).scores != found.scores
    header, *rows = [line.split("|") for line in latency.section(found).splitlines() if line.startswith("|")]
    columns = [cell.strip() for cell in header if cell.startswith(" prompt + ")]
    assert columns == [f"prompt + {tokens} tokens s" for tokens in (8, 16, 32, 64)]
    assert len(rows) == 1 + len(found.costs)


def test_claims_name_methods() -> None:
    """Table 4 of ApertureKV varies nothing but the strength of the diversification."""
    made = {name: winnow.method(name, 64) for name in METHODS}
    (strengths,) = (claim for claim in CLAIMS if "Table 4" in claim.title)
    for setting in strengths.settings:
        found = made[setting.method]
        assert found.scorer.diversify == float(setting.label)  # type: ignore[attr-defined]
        assert found == winnow.method("snapkv(over=prefix)+ada", 64, diversify=float(setting.label))
    assert [setting.paper for setting in strengths.settings] == [22.91, 24.84, 26.48, 25.68, 26.32, 26.69, 25.96]


def test_few_rows_meet_weights_of_few_bits() -> None:
    """Weights of 8 and 4 bits are the nearest to the layer's; 6 and 5 bits are there where the processor reads them."""
    torch.manual_seed(0)
    layer, inputs = torch.nn.Linear(64, 128, bias=False, dtype=torch.bfloat16), torch.randn(3, 64).bfloat16()
    with torch.no_grad():
        found = {name: multiply(inputs) for name, multiply in few_rows.contenders(layer).items()}
    exact = inputs.double() @ layer.weight.detach().double().T
    allowed = {"8 bits": 0.02, "6 bits, as Q6_K": inf, "5 bits, as Q5_0": inf, "4 bits": 0.2}
    reads = HighBitsLinear.serves(layer.weight.shape, torch.bfloat16)
    assert [name for name in found if "bits" in name] == (list(allowed) if reads else [])
    for name in allowed if reads else ():
        product = found[name]
        assert isinstance(product, torch.Tensor)
        assert product.shape == exact.shape
        assert float((product.double() - exact).norm() / exact.norm()) < allowed[name]


def test_programs_that_a_benchmark_started_end_with_it() -> None:
    """The neighbor holds the other end of a pipe, which is closed when nobody has it any more."""
    code = (
        "from busy_machine import neighbor\n"
        "from reporting import end_in_order\n"
        "import time\n"
        "end_in_order()\n"
        "with neighbor():\n"
        "    print('begun', flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=BENCHMARKS, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.terminate()
        assert process.communicate(timeout=60)[0] == ""
    assert process.returncode == 128 + signal.SIGTERM
