"""Methods from objects, and the names that they get."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import winnow
from support.families import prompt
from support.own_parts import FirstLayers, Squared, TwoBits, ValueNorm
from support.ready import METHODS, UNBUDGETED, ready
from support.small_caches import made as small_model
from winnow import BudgetError, MethodError
from winnow.allocate import Ada, Global, HeadUnion, Pyramid, Uniform
from winnow.composition.names import method
from winnow.errors import UnknownParameter
from winnow.score import Critical, Full, KeyDiff, KVzip, SnapKV
from winnow.store import Bits, Dense, Kivi, Packed, Spark, Think

pytestmark = pytest.mark.usefixtures("names_of_this_test")


@pytest.mark.parametrize(
    ("scorer", "others", "name"),
    [
        (SnapKV(), {}, "snapkv"),
        (SnapKV(window=16, pool="avg"), {"allocator": Ada()}, "snapkv(window=16, pool=avg)+ada"),
        (KeyDiff(), {"allocator": Ada(floor=0.5, across=Pyramid())}, "keydiff+ada(floor=0.5)+pyramid"),
        (SnapKV(), {"allocator": Uniform("paper")}, "snapkv+uniform(rounding=paper)"),
        (Critical(base=KeyDiff()), {"store": Dense()}, "keydiff+critical"),
        (SnapKV(), {"store": Bits(4)}, "snapkv+bits(high=4)"),
        (SnapKV(), {"store": Packed(Spark(0.8), Bits(8))}, "snapkv+spark(ratio=0.8)+bits"),
        (SnapKV(), {"store": Packed(Think(), Kivi())}, "snapkv+think+kivi"),
        (KVzip(), {}, "kvzip+uniform"),
        (KVzip(chunk=64), {"allocator": Global()}, "kvzip(chunk=64)"),
        (KVzip(), {"allocator": Ada(across=Global())}, "kvzip+ada"),
        (KVzip(), {"allocator": Ada()}, "kvzip+ada+uniform"),
        (SnapKV(), {"allocator": HeadUnion(across=Ada(across=Pyramid()))}, "snapkv+ada+pyramid+union"),
        (KVzip(), {"allocator": HeadUnion(across=Global())}, "kvzip+union"),
    ],
)
def test_our_own_parts_are_named_so_that_the_name_reads_back(scorer: Any, others: Any, name: str) -> None:
    made = method(scorer, 64, **others)
    assert str(made) == f"{name} @ 64"
    again = method(str(made))
    assert again == made
    assert (again.scorer, again.allocator, again.store) == (scorer, made.allocator, made.store)


@pytest.mark.parametrize(
    "name", [name for name in METHODS if "headkv" not in name and name not in ("cokv", "duoattention")]
)
def test_the_parts_of_every_method_make_that_method(name: str) -> None:
    whole = ready(name, None if name in UNBUDGETED else 64)
    budget = None if name in UNBUDGETED else 64
    made = method(whole.scorer, budget, allocator=whole.allocator, store=whole.store)
    again = method(str(made))
    assert (again.scorer, again.allocator, again.store) == (whole.scorer, whole.allocator, whole.store)


def test_parts_of_others_are_named_after_their_classes() -> None:
    assert str(method(ValueNorm(), 64)) == "ValueNorm @ 64"
    assert str(method(ValueNorm(sinks=2), "2%")) == "ValueNorm(sinks=2) @ 2%"
    assert str(method(ValueNorm(sinks=2, power=0.5), 64)) == "ValueNorm(sinks=2, power=0.5) @ 64"
    made = method(Squared(base=ValueNorm(sinks=1)), 64, allocator=FirstLayers(2), store=TwoBits())
    assert made.name == "ValueNorm(sinks=1)+FirstLayers(layers=2)+Squared+TwoBits"


def test_registered_parts_are_named_as_registered() -> None:
    winnow.register("valuenorm", ValueNorm)
    winnow.register("firstlayers", FirstLayers)
    made = method(ValueNorm(sinks=2), 64, allocator=FirstLayers(2))
    assert made == method("valuenorm(sinks=2)+firstlayers(2)", 64)
    # What no parameter says is not in the registered name.
    assert method(ValueNorm(power=0.5), 64).name == "ValueNorm(power=0.5)"


def test_different_objects_have_different_names() -> None:
    parts: list[Any] = [
        ValueNorm(),
        ValueNorm(1),
        ValueNorm(power=2.0),
        SnapKV(),
        SnapKV(4),
        Squared(),
        Squared(SnapKV(4)),
    ]
    assert len({method(part, 64).name for part in parts}) == len(parts)


def test_a_method_of_objects_compresses() -> None:
    model = small_model()
    made = method(ValueNorm(sinks=2), 9, allocator=FirstLayers())
    context = winnow.compress(model, prompt(length=40), made)
    first, *others = context.stats().slots
    assert all(slots == 2 for layer in others for slots in layer)
    assert sum(first) == 9 * sum(map(len, context.stats().slots)) - 2 * sum(map(len, others))
    values = []
    observer = type(
        "Observer", (), {"queries": 0, "see": lambda self, view, prefix: values.append(view.values.clone())}
    )
    winnow.compress(model, prompt(length=40), made, observer=observer())
    best = values[0].double().norm(dim=-1)[0, 2:].topk(len(context.kept(0)[0]) - 2).indices + 2
    assert torch.equal(context.kept(0)[0].cpu(), torch.cat([torch.tensor([0, 1]), best.sort().values]))


def test_everything_is_kept_without_a_budget() -> None:
    assert method(Full()) == method("full")
    assert method(Full(), store=Bits(4)).name == "full+bits(high=4)"
    with pytest.raises(BudgetError, match="takes no budget"):
        method(Full(), 12)
    with pytest.raises(BudgetError, match="'ValueNorm' needs a budget"):
        method(ValueNorm())


@pytest.mark.parametrize(
    ("given", "others", "error", "message"),
    [
        (ValueNorm, {}, MethodError, r"ValueNorm is not a Scorer object; .*with parentheses: ValueNorm\(\)"),
        (Ada(), {}, MethodError, "Ada is not a Scorer"),
        (ValueNorm(), {"allocator": SnapKV()}, MethodError, "SnapKV is not an Allocator"),
        (ValueNorm(), {"allocator": Ada}, MethodError, r"with parentheses: Ada\(\)"),
        (ValueNorm(), {"store": "bits(4)"}, MethodError, "str is not a Store"),
        (SnapKV(), {"allocator": Ada(across=HeadUnion())}, MethodError, r"put it around: HeadUnion\(across=Ada\("),
        (ValueNorm(), {"sinks": 3}, UnknownParameter, "set sinks when you make it"),
        ("snapkv", {"allocator": Ada()}, MethodError, r"is a name: .*snapkv\+ada\+bits"),
        ("snapkv", {"store": Bits()}, MethodError, "is a name"),
    ],
)
def test_what_makes_no_method(given: Any, others: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        method(given, 64, **others)
