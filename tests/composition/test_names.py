"""Methods by name: parts put together, parameters, canonical names, errors."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import winnow
from support.ready import METHODS, UNBUDGETED, random_scores
from winnow.allocate import Ada, Pyramid, Uniform
from winnow.composition.names import NamedMethod, as_method, method
from winnow.errors import BudgetError, MethodError, UnknownMethod, UnknownParameter
from winnow.score import KeyDiff, Knorm, SnapKV


def test_parameters_go_where_they_belong() -> None:
    made = method("snapkv", budget=64, window=16, pool="avg")
    assert made.scorer == SnapKV(window=16, pool="avg")
    made = method("ada-pyramidkv", budget=128, floor=0.3, window=32, beta=10)
    assert made.scorer == SnapKV(window=32)
    assert made.allocator == Ada(floor=0.3, across=Pyramid(beta=10))
    made = method("adakv", budget=128, rounding="paper")
    assert made.allocator == Ada(rounding="paper", across=Uniform("paper"))


@pytest.mark.parametrize(
    ("text", "scorer", "allocator", "canonical"),
    [
        ("snapkv+ada", SnapKV(), Ada(), "snapkv+ada"),
        ("knorm+ada", Knorm(), Ada(), "knorm+ada"),
        ("keydiff+pyramid", KeyDiff(), Pyramid(), "keydiff+pyramid"),
        ("snapkv+uniform", SnapKV(), Uniform(), "snapkv+uniform"),
        (
            "snapkv+ada(0.3)+pyramid",
            SnapKV(),
            Ada(floor=0.3, across=Pyramid()),
            "snapkv+ada(floor=0.3)+pyramid",
        ),
        (
            " SnapKV( 16, pool = avg ) + pyramid(10) + ada ",
            SnapKV(window=16, pool="avg"),
            Ada(across=Pyramid(beta=10)),
            "snapkv(window=16, pool=avg)+ada+pyramid(beta=10)",
        ),
        ("snapkv(pool_first=true)", SnapKV(pool_first=True), Uniform(), "snapkv(pool_first=true)"),
        ("snapkv(pool_first=queries)", SnapKV(pool_first="queries"), Uniform(), "snapkv(pool_first=queries)"),
        ("pyramidkv+ada", SnapKV(), Ada(across=Pyramid()), "pyramidkv+ada"),
        ("ada-pyramidkv+uniform", SnapKV(), Ada(), "ada-pyramidkv+uniform"),
        ("adakv(window=8)", SnapKV(), Ada(), "adakv"),
    ],
)
def test_composed_names(text: str, scorer: object, allocator: object, canonical: str) -> None:
    made = method(text, 64)
    assert (made.scorer, made.allocator, made.name) == (scorer, allocator, canonical)
    assert str(made) == f"{canonical} @ 64"
    assert method(str(made)) == made
    assert hash(method(str(made))) == hash(made)
    assert pickle.loads(pickle.dumps(made)) == made


def test_text() -> None:
    assert str(method("adakv", budget=128, window=16)) == "adakv(window=16) @ 128"
    assert str(method("snapkv", budget="2%")) == "snapkv @ 2%"
    assert str(method("snapkv @ 64MiB")) == "snapkv @ 64MiB"
    assert str(method("full")) == "full"
    assert method("full").full
    assert not method("snapkv", "100%").full


@pytest.mark.parametrize(
    ("text", "parameters", "error", "message"),
    [
        ("snapvk", {}, UnknownMethod, "did you mean 'snapkv'"),
        ("nonsense", {}, UnknownMethod, "there are ada-pyramidkv, adakv"),
        ("adakv+sprak(0.8)", {}, UnknownMethod, "did you mean .spark"),
        ("snapkv+knorm", {}, UnknownMethod, "no part 'knorm'"),
        ("ada", {}, MethodError, r"snapkv\+ada"),
        ("snapkv", {"windw": 3}, UnknownParameter, "did you mean 'window'"),
        ("snapkv(floor=0.3)", {}, UnknownParameter, "'snapkv' has no parameter 'floor'"),
        ("snapkv+ada(window=3)", {}, UnknownParameter, "'ada' has no parameter 'window'"),
        ("pyramidkv(beta=3)+uniform", {}, UnknownParameter, "beta"),
        ("snapkv(16, window=16)", {}, MethodError, "twice"),
        ("snapkv(window=16)", {"window": 16}, MethodError, "given twice"),
        ("ada-pyramidkv+ada+ada", {}, MethodError, "keep one"),
        ("snapkv+uniform+pyramid", {}, MethodError, "keep one"),
        ("knorm(paper, 2)", {}, MethodError, "at most 1 arguments: rounding"),
        ("snapkv", {"window": 2.5}, MethodError, "window must be a whole number"),
        ("snapkv", {"window": 65}, BudgetError, "use at least 65"),
        ("snapkv @ 32", {}, MethodError, "budget is given twice"),
        ("full", {}, BudgetError, "takes no budget"),
    ],
)
def test_errors(text: str, parameters: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        method(text, 64, **parameters)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", METHODS)
def test_whether_a_method_takes_a_budget(name: str) -> None:
    assert NamedMethod(name).takes_budget == (name not in UNBUDGETED)
    assert not NamedMethod(f"{name}+masking").takes_budget if name != "full" else True


def test_budgets_are_needed_where_something_is_evicted() -> None:
    with pytest.raises(BudgetError, match="'snapkv' needs a budget"):
        method("snapkv")
    with pytest.raises(MethodError, match="nothing to allocate"):
        method("full+ada")
    with pytest.raises(UnknownParameter, match="there are none"):
        method("full", window=3)


def test_a_text_with_its_budget_is_a_method() -> None:
    made = method("adakv", budget=128, window=16)
    assert as_method(made) is made
    assert as_method(str(made)) == made
    assert as_method("full").full
    with pytest.raises(BudgetError, match=r"'snapkv' needs a budget.*'snapkv @ 128'"):
        as_method("snapkv")
    with pytest.raises(MethodError, match="given twice"):
        method("adakv @ 128", 64)
    with pytest.raises(MethodError, match=r'its text \("adakv @ 128"\).*not a SnapKV'):
        as_method(SnapKV())  # type: ignore[arg-type]


def test_scores_from_a_file_are_part_of_the_name(tmp_path: Path) -> None:
    path = random_scores((2, 2), "cokv").save(tmp_path / "mine.safetensors")
    made = winnow.method("cokv", 64, scores=str(path), alpha=2)
    assert str(made) == f"cokv(scores={path}, alpha=2) @ 64"
    assert winnow.method(str(made)) == made
    assert hash(winnow.method(str(made))) == hash(made)
    assert pickle.loads(pickle.dumps(made)) == made
    with pytest.raises(winnow.WinnowError):
        winnow.method("cokv", 64, scores=str(tmp_path / "missing.safetensors"))


def test_order_of_parts_does_not_matter() -> None:
    one, other = winnow.method("adakv+bits(4)+spark(0.8)", 60), winnow.method("adakv+spark(0.8)+bits(4)", 60)
    assert one == other
    assert str(one) == "adakv+spark(ratio=0.8)+bits(high=4) @ 60"


def test_words_with_hyphens_are_values() -> None:
    made = winnow.method("snapkv+spark(0.5, recovery=gaussian-printed, norm=group-mean, saliency=squared)", 60)
    assert winnow.method(str(made)) == made
    assert winnow.method("snapkv+spark-g(4, by=segments)", 60) == winnow.method(
        "snapkv+spark-g", 60, groups=4, by="segments"
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("snapkv+spark+kivi", "combine spark with bits, or kivi with think"),
        ("snapkv+kivi(2)+spark-p", "combine spark with bits, or kivi with think"),
        ("snapkv+spark+think", "do the same work .choose channels.; keep one of them"),
        ("snapkv+spark+spark-g", "spark and spark-g do the same work"),
        ("snapkv+bits+kivi", "bits and kivi do the same work .choose bits.; keep one of them"),
        ("snapkv+bits(4, 8)", r"low must be below high.*bits\(8, 4\)"),
        ("snapkv+bits(8, 8)", "low must be below high"),
        ("snapkv+bits(16)", "leave it out, or give fewer bits"),
        ("snapkv+bits(5)", "high must be one of 16, 8, 6, 4, 3, 2"),
        ("snapkv+bits(4, group=16)", "group must be one of 0, 32, 64"),
        ("snapkv+spark+bits(4, group=32)", "leave group out"),
        ("snapkv+kivi(16)", "width must be one of 8, 6, 4, 3, 2"),
        ("snapkv+mixedbits(1)", "mean must be a number between 2 and 16"),
        ("snapkv+spark(0)", r"spark\(0.8\) drops 80 %"),
        ("snapkv+spark(1)", r"spark\(0.8\) drops 80 %"),
        ("snapkv+spark(0.5, 1)", "values below 1"),
        ("snapkv+spark(1.5)", "ratio must be a number between 0 and 1"),
        ("snapkv+spark(sign=true)", "sign must be one of 'stored', 'query', 'none'"),
        ("snapkv+spark(queries=0)", "queries must be a whole number of at least 1"),
        ("snapkv+spark-g(3)", "groups must be one of 4, 5"),
        ("snapkv+spark(recovery=normal)", "recovery must be one of 'degenerate', 'gaussian', 'exponential', "),
        ("snapkv+spark(fill=-1)", "fill must be a number between 0 and 65504"),
        ("snapkv+spark-g(5, by=lot)", "by must be one of 'published', 'segments', 'lowest'"),
        ("snapkv+spark-p(1.1)", "share must be a number between 0 and 1"),
        ("snapkv+think(1)", "0.5 drops half of the channels"),
        ("spark", r"'snapkv\+spark'"),
        ("full+ada", "only spark, think, bits … follow it"),
        ("full+ada+spark", "only spark, think, bits … follow it"),
    ],
)
def test_what_is_refused_and_what_to_do_instead(name: str, message: str) -> None:
    with pytest.raises(MethodError, match=message):
        winnow.method(name, None if name.startswith("full") else 60)


def test_earlier_names_keep_working() -> None:
    present = method("h2o(normalize=true)+ada", 64)
    assert method("h2o(normalise=true)+ada", 64) == method("h2o+ada", 64, normalise=True) == present
    assert "normalise" not in str(present)
    assert str(method("snapkv+shapley(alpha=3)", 64)) == str(method("snapkv+cokv(alpha=3)", 64))
    with pytest.raises(MethodError, match="'normalise' is the earlier name of 'normalize'; keep one"):
        method("h2o(normalise=true, normalize=true)", 64)
    with pytest.raises(MethodError, match="'shapley' must follow a method"):
        method("shapley", 64)
