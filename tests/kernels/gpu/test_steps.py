"""The host's part of a decode step: as many launches whatever the rows and heads, and nothing that waits."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import winnow
from support.dense_attention import Case, build
from support.gpu import DEVICE, TritonPlan
from support.launches import Operators, counted_launches
from support.packed_attention import KEYS, VALUES, Layer
from support.packed_attention import build as build_packed
from winnow.cache.tail import Tail
from winnow.kernels import AttentionSpec, TailSegments, native
from winnow.kernels.gpu import plan as plan_of_a_step
from winnow.kernels.gpu import support
from winnow.kernels.interface import backend


def launches_of(rows: int, heads: int) -> list[str]:
    case = Case(4, 1, 64, 64, [[5 + row + head for head in range(heads)] for row in range(rows)], 8, [3] * rows)
    query, prefixes, tail, spec = build(case)
    plan = TritonPlan(prefixes, tail, spec)
    with counted_launches() as launches:
        plan.run(query)
    return launches


def test_launches_do_not_depend_on_rows_and_heads() -> None:
    assert launches_of(1, 1) == launches_of(8, 64) == ["attend_chunks", "join_chunks"]


def test_dense_parts_and_the_tail_are_one_launch() -> None:
    problem = build_packed(Layer([[(KEYS["rotated 4"], VALUES["8"]), None]], [[[3, 0], [0, 4]]], [0]))
    plan = TritonPlan(problem.prefixes, problem.tail, problem.spec)
    with counted_launches() as launches:
        plan.run(problem.query)
    assert launches == ["prepare_queries", "attend_chunks", "attend_chunks", "join_chunks"]


def test_a_long_tail_is_work_for_all_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a prefix is: two chunks for each."""
    monkeypatch.setattr(plan_of_a_step, "_processors", lambda device: 8)
    room = torch.zeros(1, 2, 4096, 16, device=DEVICE)
    lengths = torch.full((1,), 4000)
    tail = TailSegments(room, room.clone(), lengths, lengths.to(DEVICE))
    ((launch,),) = TritonPlan([None], tail, AttentionSpec(1.0))._branches
    assert len(launch.chunks) == 16


def test_a_warm_step_asks_torch_for_its_output_only() -> None:
    query, prefixes, tail, spec = build(Case(4, 1, 64, 64, [[40, 7]], 8, [3]))
    plan = TritonPlan(prefixes, tail._replace(lengths_there=tail.lengths), spec)
    with counted_launches():
        plan.run(query)
        with Operators() as operators:
            plan.run(query)
    assert set(operators.names) <= {"new_empty", "empty"}


def test_tokens_are_appended_without_waiting() -> None:
    keys, values = torch.randn(2, 3, 1, 16, device=DEVICE), torch.randn(2, 3, 1, 8, device=DEVICE)
    tail = Tail(keys, values)
    tail.append(keys, values)
    with Operators() as operators:
        tail.append(keys, values)
    assert operators.waiting == []
    assert set(operators.names) <= {"slice", "copy_", "detach", "add_", "alias"}


def test_rows_of_different_length_are_appended_to_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "library", lambda: None)

    def operators_of(rows: int) -> list[str]:
        new = torch.randn(rows, 3, 2, 16, device=DEVICE)
        tail = Tail(new, new)
        tail.restore(torch.arange(rows))
        with Operators() as operators:
            tail.append(new, new)
        for row in range(rows):
            assert torch.equal(tail.row(row)[0][:, row:], new[row])
        assert operators.waiting == []
        return operators.names

    assert operators_of(2) == operators_of(8)


@pytest.fixture
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, head_dim=16,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128)  # fmt: skip
    made = LlamaForCausalLM(config).eval().to(DEVICE)
    made.set_attn_implementation("winnow")
    return made


@pytest.mark.parametrize("mask", [False, True], ids=["without mask", "with mask"])
@torch.no_grad()
def test_a_step_of_a_model_does_not_wait(model: LlamaForCausalLM, mask: bool) -> None:
    ids = torch.arange(40, device=DEVICE).reshape(2, 20)
    cache = winnow.CompressedCache(model, "adakv @ 12")
    model(ids, past_key_values=cache, use_cache=True)
    elsewhere = mock.patch.object(native, "supports", return_value=False)
    here = mock.patch.object(support, "supports", return_value=True)
    with elsewhere, here, counted_launches() as launches:
        for step in range(3):
            given = {"attention_mask": torch.ones(2, 21 + step, dtype=torch.int64, device=DEVICE)} if mask else {}
            position = torch.full((2, 1), 20 + step, device=DEVICE)
            launches.clear()
            with Operators() as operators:
                model(ids[:, :1], past_key_values=cache, use_cache=True, position_ids=position, **given)
            # Tables are made at the first step.
            assert step == 0 or operators.waiting == []
            assert launches == ["attend_chunks", "join_chunks"] * 2


def test_kernels_of_a_gpu_are_named_and_missed_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda")
    assert backend(cuda).startswith("triton ")
    assert backend(torch.device("mps")) == "torch reference"
    monkeypatch.setattr(support, "_triton_version", lambda: "3.3.1")
    support._has_triton.cache_clear()
    with pytest.warns(RuntimeWarning, match=r"Triton 3\.3\.1 is too old.*Install torch 2\.8 or newer"):
        assert backend(cuda) == "torch reference"
    monkeypatch.setattr(support, "find_spec", lambda name: None)
    support._has_triton.cache_clear()
    with pytest.warns(RuntimeWarning, match="pip install triton"):
        assert backend(cuda) == "torch reference"
    assert backend(cuda) == "torch reference"
    support._has_triton.cache_clear()
