"""Methods that a model cannot serve are refused before its weights are loaded."""

from __future__ import annotations

import pytest
import torch

import winnow
from support.asked import encoded
from support.ready import random_scores
from winnow.errors import BudgetError, MethodError, ModelError
from winnow.evaluate.answering import read_with_question
from winnow.evaluate.checking import check_modules, check_shapes
from winnow.models import load_model, open_skeleton

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def skeleton(source):
    return open_skeleton(source)


@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
def test_a_skeleton_has_the_shapes_of_the_model_and_no_weights(source, dtype):
    skeleton, model = open_skeleton(source, dtype=dtype), load_model(source, dtype=dtype)
    assert all(parameter.is_meta for parameter in skeleton.parameters())
    assert [(p.shape, p.dtype) for p in skeleton.parameters()] == [(p.shape, p.dtype) for p in model.parameters()]


def test_methods_that_serve_the_model_pass(skeleton, model):
    names = ["full", "adakv@16", "cokv@10%", "headkv-r2@64KiB", "expectedattention@16", "criticalkv@16", "kvec@16"]
    methods = [winnow.method(name) for name in names]
    check_shapes(skeleton, methods, [50, 300])
    check_modules(model, methods)


def test_head_scores_of_no_model_or_of_another_shape_are_refused(skeleton):
    with pytest.raises(MethodError, match="duoattention"):
        check_shapes(skeleton, [winnow.method("duoattention")], [300])
    other = winnow.method("headkv-r2", 64, scores=random_scores((2, 2), "headkv-r2"))
    with pytest.raises(MethodError):
        check_shapes(skeleton, [winnow.method("adakv", 16), other], [300])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("name", "fold"), [("snapkv", None), ("snapkv+bits(4)", None), ("adakv", None), ("adakv", 8), ("h2o", 8)]
)
def test_bytes_are_refused_exactly_where_the_prompt_would_refuse_them(source, name, fold, dtype):
    skeleton, model = open_skeleton(source, dtype=dtype), load_model(source, dtype=dtype)
    prompt = encoded(source)

    def refused(amount, check):
        try:
            check(winnow.method(name, f"{amount}B"))
        except BudgetError:
            return True
        return False

    def before(method):
        check_shapes(skeleton, [method], [prompt.shape[1]], fold)

    low, high = 1, 1 << 20
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if refused(middle, before) else (low, middle)
    for amount in (low, high):
        with torch.no_grad():
            assert refused(amount, lambda m: read_with_question(model, m, prompt, fold_every=fold)) == (amount == low)


def test_modules_that_do_not_show_what_a_method_asks_for_are_refused(skeleton):
    skeleton.set_attn_implementation("winnow")
    with pytest.raises(ModelError, match="cannot tell how"):
        check_modules(skeleton, [winnow.method("snapkv", 16), winnow.method("expectedattention", 16)])
