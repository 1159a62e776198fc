"""Parameters that begin with a cache line: which move, and that nothing else changes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from support.families import build
from winnow.bundled import MODEL_PATH
from winnow.models import few_rows, lines, load_model, open_model, read_weights_directly
from winnow.models.compiled import CompiledLinear
from winnow.models.lines import LINE, begin_with_lines
from winnow.models.transposed import TransposedLinear


def within_a_line(model):
    """The model with parameters that begin 8 bytes behind a cache line's start, as in many files."""
    for each in model.parameters():
        room = torch.empty(each.numel() + LINE, dtype=each.dtype)
        start = (8 - room.data_ptr()) % LINE // each.element_size()
        each.data = room[start : start + each.numel()].view(each.shape).copy_(each.detach())
    assert {each.data_ptr() % LINE for each in model.parameters()} == {8}
    return model


@pytest.fixture
def model():
    return within_a_line(build("llama", tie_word_embeddings=True).bfloat16())


def addresses(model):
    return [each.data_ptr() for each in model.parameters()]


def test_all_parameters_move_once_and_stay_what_they_are(model):
    before, names = copy.deepcopy(model), list(model.state_dict())
    begin_with_lines(model)
    assert {each.data_ptr() % LINE for each in model.parameters()} == {0}
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), before.parameters(), strict=True))
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert list(model.state_dict()) == names
    held = addresses(model)
    begin_with_lines(model)
    assert addresses(model) == held


def test_moved_parameters_are_written_saved_and_copied_as_others(model, tmp_path):
    begin_with_lines(model)
    with torch.no_grad():
        model.lm_head.weight.mul_(2)
    twin = copy.deepcopy(model)
    model.save_pretrained(tmp_path)
    for read in (twin, type(model).from_pretrained(tmp_path)):
        assert all(torch.equal(one, other) for one, other in zip(read.parameters(), model.parameters(), strict=True))
    del model
    assert float(twin.lm_head.weight.sum().isfinite())


def test_systems_without_pages_of_nobody(model, monkeypatch):
    monkeypatch.delattr(lines.mmap, "MAP_ANONYMOUS")
    before = copy.deepcopy(model)
    begin_with_lines(model)
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), before.parameters(), strict=True))
    assert {each.data_ptr() % LINE for each in model.parameters()} == {0}


def test_workers_share_the_memory_of_a_file(model, monkeypatch):
    monkeypatch.setattr(lines, "parent_process", lambda: object())
    held = addresses(model)
    begin_with_lines(model)
    assert addresses(model) == held


def test_nothing_moves_where_there_is_no_room(model, monkeypatch):
    held, needed = addresses(model), sum(each.nbytes for each in model.parameters())
    monkeypatch.setattr(lines, "available_memory", lambda device: needed - 1)
    begin_with_lines(model)
    assert addresses(model) == held
    monkeypatch.setattr(lines, "available_memory", lambda device: None)
    begin_with_lines(model)
    assert addresses(model) != held


def test_parameters_elsewhere_and_of_libraries_stay():
    class Wrapped(nn.Parameter):
        pass

    model = nn.Module()
    model.away = nn.Parameter(torch.empty(3, device="meta"))
    model.wrapped = Wrapped(torch.ones(LINE)[2:])
    held = model.wrapped.data_ptr()
    begin_with_lines(model)
    assert model.away.is_meta
    assert model.wrapped.data_ptr() == held
    assert held % LINE


@pytest.mark.parametrize("tiles", [True, False])
def test_models_move_where_tiles_read_them(model, monkeypatch, tiles):
    monkeypatch.setattr(few_rows, "layers_of_this_processor", lambda: TransposedLinear if tiles else CompiledLinear)
    read_weights_directly(model)
    assert all(each.data_ptr() % LINE == 0 for each in model.parameters()) == tiles


def test_a_loaded_model_begins_with_lines(monkeypatch):
    monkeypatch.setattr(few_rows, "layers_of_this_processor", lambda: TransposedLinear)
    loaded = load_model(open_model(MODEL_PATH), "cpu", "bfloat16")
    assert all(each.data_ptr() % LINE == 0 for each in loaded.parameters())
