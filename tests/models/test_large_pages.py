"""Tensors in large pages: where they lie, and how long; and weights of few bits there."""

from __future__ import annotations

import copy
import mmap
import pickle
from itertools import pairwise, product
from unittest.mock import patch

import pytest
import torch

from support.families import build, prompt
from winnow.models import large_pages, quantize_weights, rounding
from winnow.models.large_pages import LargePages
from winnow.models.lines import LINE
from winnow.models.quantized import QuantizedLinear

needs_large_pages = pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="no large pages on this system")


@pytest.fixture(autouse=True)
def small_regions(monkeypatch):
    """A region for a layer or two, so that several are needed."""
    monkeypatch.setattr(large_pages, "REGION", 1 << 14)


def rooms() -> list[torch.Tensor]:
    """Tensors of several shapes and dtypes in a few regions, each with a number of its own."""
    pages = LargePages()
    shapes = ((7, 50), (50,), (30, 50), (64, 3, 2), (300, 50), (1,))
    dtypes = (torch.int8, torch.bfloat16, torch.uint8, torch.float32)
    return [pages.room(shape, dtype).fill_(i) for i, (shape, dtype) in enumerate(product(shapes, dtypes))]


@needs_large_pages
def test_tensors_lie_apart_and_begin_with_a_cache_line():
    made = rooms()
    assert {each.data_ptr() % LINE for each in made} == {0}
    spans = sorted((each.data_ptr(), each.data_ptr() + each.nbytes) for each in made)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert all(bool((each == number).all()) for number, each in enumerate(made))


@needs_large_pages
def test_each_has_a_storage_of_its_own_which_is_all_that_is_copied():
    made = rooms()[4 * 4]
    assert made.untyped_storage().nbytes() == made.nbytes
    twin = copy.deepcopy(made)
    made.zero_()
    assert int(twin.count_nonzero()) == twin.numel()
    assert len(pickle.dumps(twin)) < 4 * twin.nbytes + 4096


@needs_large_pages
def test_memory_lives_as_long_as_a_tensor_does():
    one = rooms()[17]
    rooms()
    assert bool((one == 17).all())


@needs_large_pages
def test_where_the_system_has_none_pages_are_of_the_usual_size():
    class Refusing(mmap.mmap):
        def madvise(self, *_):
            raise OSError

    with patch.object(large_pages.mmap, "mmap", Refusing):
        assert all(bool((each == number).all()) for number, each in enumerate(rooms()))


def test_where_python_cannot_ask_for_them_memory_is_torchs(monkeypatch):
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    monkeypatch.setattr(large_pages, "_in_large_pages", lambda _: pytest.fail("a region was made"))
    assert all(bool((each == number).all()) for number, each in enumerate(rooms()))


def test_nothing_needs_no_room():
    assert LargePages().room((0, 5), torch.int8).shape == (0, 5)


@pytest.mark.parametrize("name", ["int8", "int4"])
@pytest.mark.parametrize("compiled", [True, False])
def test_weights_of_few_bits_lie_where_winnow_reads_them(name, compiled, monkeypatch):
    given, room = [], LargePages.room

    def noted(pages, shape, dtype):
        given.append(room(pages, shape, dtype))
        return given[-1]

    monkeypatch.setattr(LargePages, "room", noted)
    monkeypatch.setattr(rounding, "outruns_torch", lambda: compiled)
    model = build("llama", tie_word_embeddings=True).bfloat16()
    quantize_weights(model, name)
    made = [each for each in model.modules() if isinstance(each, QuantizedLinear)]
    assert made
    stored = {each.data_ptr() for layer in made for name, each in layer.named_parameters() if name != "bias"}
    assert stored == {each.data_ptr() for each in given} if compiled else not given
    with torch.no_grad():
        assert bool(model(prompt(1, 9)).logits.isfinite().all())
