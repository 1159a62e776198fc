"""Head scores as methods ask for them: given or shipped, of the right kind, of the model and its shape."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import winnow
from support.families import build, prompt
from support.packed_caches import BUDGET, HEADS, LAYERS, N, composed, fed, filled
from support.ready import random_scores, ready
from winnow import CompressedCache, HeadScores
from winnow.allocate import HeadKV, SlotPlan
from winnow.bundled import HEADS_PATH, MODEL_PATH, NAME
from winnow.errors import HeadScoresError, MethodError
from winnow.heads.resolve import check_shape, given_scores, highest, same_model, scores_of_model
from winnow.models import load_model, open_model

MODEL = build("llama", num_hidden_layers=2)
MODEL.set_attn_implementation("winnow")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HeadKV([[1, 2]]), "scores must be a file of head scores or a winnow.HeadScores"),
    ],
)
def test_wrong_parameters_are_refused(make: object, message: str) -> None:
    with pytest.raises(MethodError, match=message):
        make()  # type: ignore[operator]


def test_scores_are_needed_and_must_fit() -> None:
    with pytest.raises(MethodError, match=r"HeadKV needs 'headkv-r2' head scores of this model: give scores=FILE"):
        winnow.CompressedCache(MODEL, winnow.method("headkv-r2", 64))
    with pytest.raises(MethodError, match="CoKV needs head scores"):
        winnow.CompressedCache(MODEL, winnow.method("snapkv+shapley", 64))
    wrong = winnow.method("cokv", 64, scores=random_scores((3, 2), "cokv"))
    with pytest.raises(MethodError, match="3 layers with 2 KV heads, but the model has 2 compressed layers"):
        winnow.CompressedCache(MODEL, wrong)
    per_query = HeadScores(torch.rand(2, 4) + 0.1, "headkv-r", heads="query")
    with pytest.raises(MethodError, match=r"average its groups with scores.grouped\(2\)"):
        winnow.CompressedCache(MODEL, winnow.method("headkv-r", 64, scores=per_query))
    winnow.CompressedCache(MODEL, winnow.method("headkv-r", 64, scores=per_query.grouped(2)))
    with pytest.raises(MethodError, match="HeadKV needs head scores"):
        winnow.CompressedCache(MODEL, winnow.method("snapkv+raba+headkv", 64))


def test_grouping_is_advised_only_for_scores_of_query_heads() -> None:
    per_kv_head = HeadScores(torch.rand(2, 4) + 0.1, "headkv-r", heads="kv")
    with pytest.raises(MethodError, match="KV heads, but the model has 2 compressed layers with 2 KV heads; give"):
        check_shape(per_kv_head, (2, 2))


def test_a_waiting_prompt_checks_each_method(tmp_path: Path) -> None:
    waiting = winnow.CompressedCache(MODEL, winnow.method("full"), defer=True)
    with torch.no_grad():
        MODEL(prompt(length=30), past_key_values=waiting)
    with pytest.raises(MethodError, match="needs 'cokv' head scores"):
        waiting.compressed_by(winnow.method("cokv", 20))
    fork = waiting.compressed_by(winnow.method("cokv", 20, scores=random_scores((2, 2), "cokv")))
    assert sum(map(sum, fork.stats().slots)) == 80


def test_scores_that_are_shipped_with_a_model() -> None:
    source = open_model(MODEL_PATH)
    bundled = load_model(source, "cpu", "float32")
    ids = source.tokenizer("The favorite fruit of Alice is mango. " * 12, return_tensors="pt").input_ids
    for name in ("headkv-r", "headkv-er", "headkv-r2"):
        plain = winnow.method(name, 20)
        assert str(plain) == f"{name} @ 20"
        cache = winnow.CompressedCache(bundled, plain)
        with torch.no_grad():
            bundled(ids, past_key_values=cache)
        scores = HeadScores.load(HEADS_PATH / f"{name}.safetensors")
        plan = SlotPlan(20 * 16, (4,) * 4, ids.shape[1], 8)
        assert [sum(layer) for layer in cache.stats().slots] == HeadKV(scores).layer_totals(plan)
        assert cache.method.allocator == HeadKV(scores, expects=name)


def test_scores_of_another_model_are_pointed_out() -> None:
    scores = HeadScores(torch.rand(2, 2) + 0.1, "cokv", model="meta-llama/Llama-3-8B")
    named = build("llama", num_hidden_layers=2)
    named.set_attn_implementation("winnow")
    named.config.name_or_path = "somewhere/Mistral-7B"
    with pytest.warns(UserWarning, match=r"for meta-llama/Llama-3-8B, but the model is somewhere/Mistral-7B"):
        winnow.CompressedCache(named, winnow.method("cokv", 64, scores=scores))
    named.config.name_or_path = "copies/llama-3-8b/"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        winnow.CompressedCache(named, winnow.method("cokv", 64, scores=scores))


@pytest.mark.parametrize("name", ["snapkv+bits(8, 4)", "snapkv+mixedbits(5)", "full+bits(8, 4)"])
def test_bits_by_head_need_scores_of_the_model(packed_model: Any, name: str) -> None:
    chosen = winnow.method(name, None if name.startswith("full") else 60)
    with pytest.raises(MethodError, match=r"need head scores.*scores=FILE.*winnow heads cokv.*bits\(4\)"):
        CompressedCache(packed_model, chosen)
    with pytest.raises(MethodError, match=r"3 layers with 4 KV heads, but the model has 3 compressed layers"):
        CompressedCache(packed_model, ready(name, 60 if "snapkv" in name else None, (3, 4)))
    CompressedCache(packed_model, ready(name, 60 if "snapkv" in name else None, (LAYERS, HEADS)))


def test_scores_can_be_a_file(packed_model: Any, tmp_path: Path) -> None:
    method = composed("snapkv+bits(8, 4)")
    path = random_scores((LAYERS, HEADS)).save(tmp_path / "scores.safetensors")
    named = winnow.method(f"snapkv+bits(8, 4, scores={path})", BUDGET)
    ids = prompt(length=N)
    past, other = filled(packed_model, ids, method), filled(packed_model, ids, named)
    assert past.stats().bytes == other.stats().bytes
    assert torch.equal(fed(packed_model, past, prompt(length=1)), fed(packed_model, other, prompt(length=1)))


def test_scores_can_be_a_path(tmp_path: Path) -> None:
    path = random_scores((LAYERS, HEADS)).save(tmp_path / "scores.safetensors")
    options: dict[str, Any] = {"scores": path}
    assert winnow.method("snapkv+headkv", BUDGET, **options)
    assert winnow.method("snapkv+bits(8, 4)", BUDGET, **options)


def test_given_scores_are_a_file_an_object_or_nothing(tmp_path: Path) -> None:
    scores = random_scores((2, 2), "cokv")
    path = scores.save(tmp_path / "mine.safetensors")
    assert given_scores(str(path), "CoKV") == given_scores(path, "CoKV") == scores
    assert given_scores(scores, "CoKV") is scores
    assert given_scores(None, "CoKV") is None


@pytest.mark.parametrize("owner", ["HeadKV", "bits"])
@pytest.mark.parametrize("value", [0, 1.5, True, [[1.0, 2.0]], torch.ones(2, 2), b"scores"], ids=repr)
def test_given_scores_of_a_wrong_kind_name_what_takes_them(value: object, owner: str) -> None:
    with pytest.raises(MethodError, match=rf"^{owner}: scores must be a file of head scores or a winnow.HeadScores"):
        given_scores(value, owner)


def test_files_that_cannot_be_read_are_no_scores(tmp_path: Path) -> None:
    (tmp_path / "empty.safetensors").write_bytes(b"")
    for name, says in (("missing.safetensors", "There is no file"), ("empty.safetensors", "is empty")):
        with pytest.raises(HeadScoresError, match=says):
            given_scores(tmp_path / name, "CoKV")


def test_given_scores_come_before_shipped_ones() -> None:
    given = random_scores((4, 4), "headkv-r2")
    assert scores_of_model(given, "headkv-r2", str(MODEL_PATH), (4,) * 4, "none") is given


@pytest.mark.parametrize("kind", ["headkv-r", "headkv-er", "headkv-r2", "cokv"])
def test_shipped_scores_are_found_by_kind(kind: str) -> None:
    found = scores_of_model(None, kind, str(MODEL_PATH), (4,) * 4, "none")
    assert found == HeadScores.load(HEADS_PATH / f"{kind}.safetensors")


@pytest.mark.parametrize(
    ("kind", "model"), [("", str(MODEL_PATH)), ("nonsense", str(MODEL_PATH)), ("cokv", "another"), ("cokv", "")]
)
def test_where_there_are_no_scores_the_callers_text_says_so(kind: str, model: str) -> None:
    with pytest.raises(MethodError, match=r"^give some$"):
        scores_of_model(None, kind, model, (4,) * 4, "give some")


def test_shipped_scores_of_another_shape_are_refused() -> None:
    with pytest.raises(MethodError, match="4 layers with 4 KV heads, but the model has 3 compressed layers"):
        scores_of_model(None, "cokv", str(MODEL_PATH), (4,) * 3, "none")


@pytest.mark.parametrize(
    ("named", "model", "warned"),
    [
        ("meta-llama/Llama-3-8B", "somewhere/Mistral-7B", True),
        ("meta-llama/Llama-3-8B", "copies/llama-3-8b/", False),
        ("meta-llama/Llama-3-8B", "C:\\models\\Llama-3-8B", False),
        ("", "somewhere/Mistral-7B", False),
        ("meta-llama/Llama-3-8B", "", False),
        (NAME, str(MODEL_PATH), False),
    ],
)
def test_only_scores_of_another_model_warn(named: str, model: str, warned: bool) -> None:
    scores = replace(random_scores((2, 2), "cokv"), model=named)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert scores_of_model(scores, "cokv", model, (2, 2), "none") is scores
    assert [str(each.message) for each in seen] == [f"The head scores are for {named}, but the model is {model}."][
        : int(warned)
    ]


@pytest.mark.parametrize(
    ("shape", "heads", "of_model", "says"),
    [
        ((3, 2), "kv", (2, 2), r"3 layers with 2 KV heads, but the model has 2 compressed layers with 2"),
        ((2, 2), "query", (2, 2), r"2 layers with 2 query heads, .*average its groups with scores.grouped\(2\)"),
        ((2, 4), "query", (2, 2), r"average its groups with scores.grouped\(2\)"),
        ((2, 3), "query", (2, 2), "give scores of this model"),
        ((3, 4), "query", (2, 2), "give scores of this model"),
        ((2, 4), "kv", (2, 4), "the model has 2 compressed layers with 2 or 4 KV heads; give scores of this model"),
    ],
)
def test_scores_of_another_shape_name_both_and_a_remedy(
    shape: tuple[int, int], heads: str, of_model: tuple[int, ...], says: str
) -> None:
    with pytest.raises(MethodError, match=says):
        check_shape(HeadScores(torch.ones(shape), "random", heads=heads), of_model)


def test_scores_of_the_models_shape_pass() -> None:
    check_shape(random_scores((3, 2)), (2, 2, 2))


def test_highest_gives_equal_scores_to_the_lower_layer_and_head() -> None:
    scores = torch.tensor([[1.0, 5.0, 3.0], [5.0, 3.0, 3.0]])
    chosen = [highest(scores, count).int().tolist() for count in range(7)]
    assert chosen == [
        [[0, 0, 0], [0, 0, 0]],
        [[0, 1, 0], [0, 0, 0]],
        [[0, 1, 0], [1, 0, 0]],
        [[0, 1, 1], [1, 0, 0]],
        [[0, 1, 1], [1, 1, 0]],
        [[0, 1, 1], [1, 1, 1]],
        [[1, 1, 1], [1, 1, 1]],
    ]
    assert highest(scores, 2).dtype == torch.bool


def test_layers_of_other_heads_do_not_fit_however_the_first_does() -> None:
    table = HeadScores(torch.ones(2, 4), "random")
    check_shape(table, (4, 4))
    with pytest.raises(MethodError, match="2 compressed layers with 4 or 8 KV heads"):
        check_shape(table, (4, 8))


def test_names_of_one_model() -> None:
    names = ("owner/Some-Model", "/models/some-model/", r"C:\models\Some-Model.gguf", "some-model.GGUF")
    assert all(same_model(names[0], each) for each in names)
    assert not same_model("owner/Some-Model", "owner/Some-Model-2")
