"""Weights in large pages: that they move, and stay what they are."""

from __future__ import annotations

import copy
import mmap
import pickle
from itertools import pairwise
from unittest.mock import patch

import pytest
import torch
from torch import nn

from support.families import build, prompt
from winnow.models import large_pages, quantize_weights, weights
from winnow.models.large_pages import LargePages
from winnow.models.lines import LINE
from winnow.models.quantized import QuantizedLinear

needs_large_pages = pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="no large pages on this system")


@pytest.fixture(autouse=True)
def small_regions(monkeypatch):
    """A region for a layer or two, so that several are needed."""
    monkeypatch.setattr(large_pages, "REGION", 1 << 14)


def layers() -> list[nn.Linear]:
    return [nn.Linear(width, 50).bfloat16() for width in (7, 30, 64, 300, 1)]


def moved(made: list[nn.Linear]) -> list[nn.Linear]:
    pages = LargePages()
    for layer in made:
        pages.move(layer)
    return made


@needs_large_pages
def test_parameters_move_and_stay_what_they_are():
    made = layers()
    before, held = copy.deepcopy(made), [each for layer in made for each in layer.parameters()]
    addresses = [each.data_ptr() for each in held]
    moved(made)
    parameters = [each for layer in made for each in layer.parameters()]
    assert all(one is other for one, other in zip(parameters, held, strict=True))
    assert all(each.data_ptr() != address for each, address in zip(held, addresses, strict=True))
    assert {each.data_ptr() % LINE for each in held} == {0}
    spans = sorted((each.data_ptr(), each.data_ptr() + each.nbytes) for each in held)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    for one, other in zip(made, before, strict=True):
        assert torch.equal(one.weight, other.weight)
        assert torch.equal(one.bias, other.bias)


@needs_large_pages
def test_each_has_a_storage_of_its_own_which_is_all_that_is_copied():
    layer = moved(layers())[1]
    assert layer.weight.untyped_storage().nbytes() == layer.weight.nbytes
    twin = copy.deepcopy(layer)
    with torch.no_grad():
        layer.weight.zero_()
    assert int(twin.weight.count_nonzero()) > 0
    assert len(pickle.dumps(twin)) < 4 * twin.weight.nbytes + 4096


@needs_large_pages
def test_memory_lives_as_long_as_a_parameter_does():
    made = moved(layers())
    weight, expected = made[3].weight, made[3].weight.detach().clone()
    del made
    moved([nn.Linear(300, 50) for _ in range(20)])
    assert torch.equal(weight, expected)


@needs_large_pages
def test_where_the_system_has_none_pages_are_of_the_usual_size():
    class Refusing(mmap.mmap):
        def madvise(self, *_):
            raise OSError

    made = layers()
    before = copy.deepcopy(made)
    with patch.object(large_pages.mmap, "mmap", Refusing):
        moved(made)
    assert all(torch.equal(one.weight, other.weight) for one, other in zip(made, before, strict=True))


def test_where_python_cannot_ask_for_them_parameters_stay(monkeypatch):
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    made = layers()
    addresses = [layer.weight.data_ptr() for layer in made]
    assert [layer.weight.data_ptr() for layer in moved(made)] == addresses


@pytest.mark.parametrize("name", ["int8", "int4"])
@pytest.mark.parametrize("compiled", [True, False])
def test_weights_of_few_bits_move_where_winnow_reads_them(name, compiled, monkeypatch):
    moved_layers, move = [], LargePages.move
    monkeypatch.setattr(LargePages, "move", lambda pages, layer: (moved_layers.append(layer), move(pages, layer)))
    monkeypatch.setattr(weights, "outruns_torch", lambda: compiled)
    model = build("llama", tie_word_embeddings=True).bfloat16()
    quantize_weights(model, name)
    made = [each for each in model.modules() if isinstance(each, QuantizedLinear)]
    assert made
    assert set(moved_layers) == set(made if compiled else [])
    with torch.no_grad():
        assert bool(model(prompt(1, 9)).logits.isfinite().all())
