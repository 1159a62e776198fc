"""The compiled kernels on every instruction set, in any number of threads, and where they are absent."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.dense_attention import (
    CASES,
    DTYPES,
    Case,
    any_case,
    assert_close,
    assert_solved,
    build,
    oracle,
    solved,
    widened,
)
from support.instruction_sets import needs_native
from winnow.kernels import AttentionSpec, DenseBlock, TailSegments, attend, backend, native
from winnow.kernels.reference import ReferencePlan


@pytest.mark.usefixtures("isa", "poison")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_native_matches_oracle(name: str, dtype: torch.dtype) -> None:
    problem, expected = solved(name, dtype)
    plan = native.NativePlan(problem.prefixes, problem.tail, problem.spec)
    assert_solved(plan.run(problem.query), problem, expected)


@pytest.mark.usefixtures("isa", "poison")
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=any_case(), dtype=st.sampled_from(DTYPES), seed=st.integers(0, 100))
def test_native_agrees_with_reference_on_any_shape(case: Case, dtype: torch.dtype, seed: int) -> None:
    problem = build(case, dtype, seed)
    query, *parts = problem
    wide_query, *wide_parts = widened(problem)
    expected = ReferencePlan(*wide_parts).run(wide_query).double()
    assert_solved(native.NativePlan(*parts).run(query), problem, expected)


@pytest.mark.usefixtures("isa", "threads")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_many_chunks_and_threads(dtype: torch.dtype) -> None:
    """Long and skewed heads: the work is cut, spread and merged."""
    problem = build(Case(4, 2, 64, 64, [[9000, 37, 0, 2500]], 40, [21], sinks=True), dtype)
    expected = oracle(problem)
    plan = native.NativePlan(problem.prefixes, problem.tail, problem.spec)
    for count in (1, 2, 5, 3):
        torch.set_num_threads(count)
        assert_solved(plan.run(problem.query), problem, expected)


@pytest.mark.usefixtures("isa")
def test_extreme_logits_stay_finite() -> None:
    problem = build(CASES["four"])
    problem = problem._replace(spec=AttentionSpec(scaling=300.0))
    out = native.NativePlan(problem.prefixes, problem.tail, problem.spec).run(problem.query)
    assert_close(out, oracle(problem), torch.float32)


@needs_native
@pytest.mark.parametrize("softcap", [None, 0.01, 2.0, 30.0])
def test_exponentials_are_accurate(softcap: float | None) -> None:
    """Two slots: the output is a logistic function of one logit."""
    logits = torch.cat([torch.linspace(-20, 20, 4001), torch.linspace(-0.1, 0.1, 401)])
    keys = torch.zeros(2, 16)
    keys[1, 0] = 1.0
    prefix = DenseBlock(keys, torch.eye(2, 16), torch.tensor([0, 2]))
    tail = TailSegments(torch.empty(1, 1, 0, 16), torch.empty(1, 1, 0, 16), torch.zeros(1, dtype=torch.int64))
    query = torch.zeros(1, len(logits), 1, 16)
    query[0, :, 0, 0] = logits
    out = attend(query, [prefix], tail, AttentionSpec(1.0, softcap))[0, 0, :, 1].double()
    capped = logits.double() if softcap is None else softcap * torch.tanh(logits.double() / softcap)
    torch.testing.assert_close(out, torch.sigmoid(capped), rtol=5e-6, atol=0)


@needs_native
def test_concurrent_calls() -> None:
    """ctypes releases the GIL: calls from several threads overlap, each with a team where threads are lent."""
    problems = [build(Case(4, 1, 64, 64, [[3000, 500]], 8, [8]), seed=seed) for seed in range(4)]
    plans = [native.NativePlan(problem.prefixes, problem.tail, problem.spec) for problem in problems]
    expected = [plan.run(problem.query) for plan, problem in zip(plans, problems, strict=True)]
    wrong: list[int] = []

    def repeat(index: int) -> None:
        for _ in range(100):
            if not torch.equal(plans[index].run(problems[index].query), expected[index]):
                wrong.append(index)

    workers = [threading.Thread(target=repeat, args=(index,)) for index in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


@needs_native
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_fork_gets_its_own_workers() -> None:
    problem = build(Case(4, 1, 64, 64, [[9000, 500]], 8, [8]))
    plan = native.NativePlan(problem.prefixes, problem.tail, problem.spec)
    expected = plan.run(problem.query).tolist()
    child = os.fork()
    if child == 0:
        os._exit(0 if all(plan.run(problem.query).tolist() == expected for _ in range(5)) else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert plan.run(problem.query).tolist() == expected


@needs_native
def test_process_ends_and_environment_chooses_isa() -> None:
    script = (
        "import torch; from winnow.kernels import *; torch.set_num_threads(3)\n"
        "prefix = DenseBlock(torch.ones(9000, 64), torch.ones(9000, 64), torch.tensor([0, 9000]))\n"
        "tail = TailSegments(torch.ones(1, 1, 1, 64), torch.ones(1, 1, 1, 64), torch.ones(1, dtype=torch.int64))\n"
        "out = attend(torch.ones(1, 2, 1, 64), [prefix], tail, AttentionSpec(0.1))\n"
        "print(backend(), float(out.min()), float(out.max()))"
    )
    source = str(Path(native.__file__).parents[2])
    run = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "WINNOW_ISA": "portable", "PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert run.stdout.strip() == "native (portable, 3 threads) 1.0 1.0"


@needs_native
def test_a_query_of_another_device_is_refused() -> None:
    problem = build(Case(2, 1, 64, 64, [[90, 50]], 8, [8]))
    plan = native.NativePlan(problem.prefixes, problem.tail, problem.spec)
    for _ in range(2):
        with pytest.raises(ValueError, match="query is on meta"):
            plan.run(problem.query.to("meta"))
        plan.run(problem.query)


@needs_native
@pytest.mark.usefixtures("unloaded")
@pytest.mark.parametrize(
    ("name", "value"), [("WINNOW_ISA", "AVX2"), ("WINNOW_KERNELS", "torch"), ("WINNOW_THREADS", "many")]
)
def test_a_choice_that_there_is_not_is_told(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.warns(RuntimeWarning, match=f"{name}={value} is not known: .* It takes "):
        assert native.library() is not None


@needs_native
@pytest.mark.usefixtures("unloaded")
def test_an_instruction_set_that_this_machine_does_not_have_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINNOW_ISA", "future")
    monkeypatch.setattr(native, "ISAS", ("future", *native.ISAS))
    with pytest.warns(RuntimeWarning, match="WINNOW_ISA=future is an instruction set that this machine does not have"):
        assert native.library() is not None


@needs_native
@pytest.mark.usefixtures("unloaded")
def test_a_library_by_its_name_in_this_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = [path for path in native.library_candidates() if path.exists()][:1]
    (tmp_path / "own.so").symlink_to(found)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WINNOW_NATIVE_LIBRARY", "own.so")
    assert native.library() is not None


FORKED = """
import os, signal, sys
import torch
import winnow.kernels
from winnow.kernels import AttentionSpec, DenseBlock, TailSegments, attend
torch.set_num_threads(2)
torch.ones(1 << 22).clone()  # OpenMP has its threads
prefix = DenseBlock(torch.ones(9000, 64), torch.ones(9000, 64), torch.tensor([0, 9000]))
tail = TailSegments(torch.ones(1, 1, 1, 64), torch.ones(1, 1, 1, 64), torch.ones(1, dtype=torch.int64))
child = os.fork()
if child == 0:
    signal.alarm(60)
    out = attend(torch.ones(1, 2, 1, 64), [prefix], tail, AttentionSpec(0.1))
    os._exit(0 if float(out.min()) == 1.0 else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@needs_native
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_fork_may_be_the_first_to_load_the_library() -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(native.__file__).parents[2]), "OMP_NUM_THREADS": "2"}
    run = subprocess.run(
        [sys.executable, "-c", FORKED], env=env, capture_output=True, text=True, timeout=120, check=True
    )
    assert run.stdout.strip() == "0", run.stderr


@pytest.mark.usefixtures("unloaded")
@pytest.mark.parametrize("broken", ["absent", "not a library", "other ABI"])
def test_without_library_one_warning_and_right_results(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if broken == "other ABI":
        monkeypatch.setattr(native, "ABI", native.ABI + 1)
    else:
        monkeypatch.setenv("WINNOW_NATIVE_LIBRARY", str(tmp_path / "library.so"))
    if broken == "not a library":
        (tmp_path / "library.so").write_bytes(b"text")
    problem = build(CASES["several rows"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            assert_close(attend(*problem), oracle(problem), torch.float32)
    assert len(caught) == 1
    assert "WINNOW_NATIVE_LIBRARY" in str(caught[0].message)
    assert backend() == "torch reference"


@needs_native
@pytest.mark.parametrize(("threads", "told"), [(1, "1 thread"), (2, "2 threads")])
def test_reports_count_threads(threads: int, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert backend() == f"native ({native.isa()}, {told})"
