"""Methods that somebody else registers, or brings in a package."""

from __future__ import annotations

import pickle
import warnings
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import winnow
from support.families import prompt
from support.own_parts import FirstLayers, Squared, TwoBits, ValueNorm, install
from support.small_caches import made as small_model
from winnow import MethodError
from winnow.allocate import Ada, Uniform
from winnow.composition.registry import PRESETS
from winnow.errors import BudgetError, UnknownMethod, UnknownParameter
from winnow.parameters import meaning
from winnow.score import Scorer, SnapKV
from winnow.store import Packed

pytestmark = pytest.mark.usefixtures("names_of_this_test")

SOURCE = "from support.own_parts import ValueNorm, FirstLayers"


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder that packages are installed in."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_registered_scorer_is_a_method_like_any_other() -> None:
    winnow.register("valuenorm", ValueNorm)
    made = winnow.method("valuenorm(sinks=2)+ada+bits(4)", 64)
    assert (made.scorer, made.allocator) == (ValueNorm(sinks=2), Ada())
    assert winnow.method(str(made)) == made == winnow.method("ValueNorm+ada+bits(4)", 64, sinks=2)
    assert pickle.loads(pickle.dumps(made)) == made
    with pytest.raises(BudgetError, match=r"always keeps|at least"):
        winnow.method("valuenorm", 3)
    with pytest.raises(UnknownParameter, match="did you mean 'sinks'"):
        winnow.method("valuenorm", 64, sink=3)
    with pytest.raises(MethodError, match="ValueNorm: more sinks than sense"):
        winnow.method("valuenorm", 640, sinks=101)
    with pytest.raises(UnknownMethod, match="did you mean 'valuenorm'"):
        winnow.method("valuenrm", 64)


def test_parts_of_every_kind_follow_others() -> None:
    winnow.register("firstlayers", FirstLayers(layers=2), summary="First layers get more.", paper="Nobody 2026")
    winnow.register("squared", Squared)
    winnow.register("twobits", TwoBits)
    made = winnow.method("keydiff+squared+twobits+firstlayers(1)", 64)
    assert made.name == "keydiff+firstlayers(layers=1)+squared+twobits"
    assert made.allocator == FirstLayers()
    assert made.store == Packed(precision=TwoBits())
    assert winnow.method(str(made)) == made
    with pytest.raises(MethodError, match="must follow a method"):
        winnow.method("squared", 64)
    with pytest.raises(MethodError, match="do the same work"):
        winnow.method("snapkv+pyramid+firstlayers", 64)


def test_a_registered_method_may_have_an_allocator() -> None:
    winnow.register("mine", ValueNorm(sinks=1), allocator=Ada(floor=0.5))
    made = winnow.method("mine", 64, floor=0.25)
    assert (made.scorer, made.allocator) == (ValueNorm(sinks=1), Ada(floor=0.25))
    assert winnow.method("mine+uniform", 64).allocator == Ada(floor=0.5)


def test_it_is_listed_with_its_parameters() -> None:
    winnow.register("valuenorm", ValueNorm)
    winnow.register("firstlayers", FirstLayers(layers=2), summary="First layers get more.", paper="Nobody 2026")
    method, part = winnow.methods()[-2:]
    assert (method.name, method.kind, method.summary) == ("valuenorm", "method", "Keeps tokens with large values.")
    assert next((p.name, p.default) for p in method.parameters) == ("sinks", 4)
    assert part[:4] == ("firstlayers", "allocator", "First layers get more.", "Nobody 2026")
    assert part.parameters == (("layers", 2, "layers that get more"),)


def test_a_registered_method_compresses() -> None:
    winnow.register("valuenorm", ValueNorm)
    model = small_model()
    context = winnow.compress(model, prompt(length=40), "valuenorm+ada @ 9")
    slots = context.stats().slots
    assert sum(map(sum, slots)) == 9 * sum(map(len, slots))
    assert all(head[:4].tolist() == [0, 1, 2, 3] for head in context.kept(0))


def test_a_context_of_it_is_read_where_it_is_not_known(tmp_path, monkeypatch) -> None:
    model = small_model()
    with monkeypatch.context() as registered:
        from winnow.composition import known

        registered.setattr(known, "_presets", dict(known._presets))
        winnow.register("valuenorm", ValueNorm)
        context = winnow.compress(model, prompt(length=40), "valuenorm @ 9")
        context.save(tmp_path / "mine.safetensors")
    with pytest.raises(UnknownMethod):
        winnow.method("valuenorm", 9)
    again = winnow.load_context(tmp_path / "mine.safetensors", model)
    assert str(again.method) == "valuenorm @ 9"
    assert all(torch.equal(one, other) for one, other in zip(again.kept(0), context.kept(0), strict=True))


def test_the_same_again_is_harmless_and_another_is_refused() -> None:
    winnow.register("valuenorm", ValueNorm)
    winnow.register("valuenorm", ValueNorm())
    before = winnow.methods()
    for other in (ValueNorm(sinks=3), SnapKV(), FirstLayers()):
        with pytest.raises(MethodError, match=r"'valuenorm' is taken by support\.own_parts\.ValueNorm"):
            winnow.register("valuenorm", other)
    assert winnow.methods() == before


def test_a_class_that_is_defined_anew_takes_the_place_of_the_old_one() -> None:
    def cell(default: int) -> type[Any]:
        @dataclass(frozen=True)
        class Notebook(ValueNorm):
            """A cell of a notebook."""

            sinks: int = default

        return Notebook

    first, second = cell(1), cell(2)
    winnow.register("notebook", first)
    winnow.register("notebook", second)
    assert type(winnow.method("notebook", 64).scorer) is second


def test_a_class_that_is_defined_anew_as_another_kind_is_known_once() -> None:
    def cell(base: type[Any]) -> type[Any]:
        @dataclass(frozen=True)
        class Notebook(base):  # type: ignore[misc]
            """A cell of a notebook."""

        return Notebook

    for bases in ((ValueNorm, Squared), (Squared, ValueNorm)):
        for base in bases:
            winnow.register("notebook", cell(base))
        assert [record.name for record in winnow.methods()].count("notebook") == 1
    assert isinstance(winnow.method("notebook", 64).scorer, ValueNorm)


def test_the_same_class_with_other_words_is_told_what_differs() -> None:
    winnow.register("valuenorm", ValueNorm)
    told = r"'valuenorm' is taken by support\.own_parts\.ValueNorm with summary 'Keeps .*', not 'x'; choose another"
    with pytest.raises(MethodError, match=told):
        winnow.register("valuenorm", ValueNorm, summary="x")


@dataclass
class Thawed(Scorer):
    """Not frozen."""

    def __call__(self, view):
        return view.keys


class Undecorated(ValueNorm):
    """Its field is none."""

    more: int = 3


@dataclass(frozen=True)
class Listed(ValueNorm):
    """Cannot be hashed."""

    items: Any = ()


@dataclass(frozen=True)
class Needy(ValueNorm):
    """Has no default."""

    def __init__(self, sinks: int) -> None:
        super().__init__(sinks)


@dataclass(frozen=True)
class Worded(ValueNorm):
    """Has a parameter that winnow.method could not be given."""

    budget: int = field(default=4, metadata=meaning("something else"))


@pytest.mark.parametrize(
    ("name", "part", "message"),
    [
        *[(name, ValueNorm, "cannot be a name") for name in ("", "Value", "a+b", "a@b", "2a", "a b", "é", 3)],
        *[(name, ValueNorm, "method or part of winnow") for name in ("snapkv", "ada", "cokv", "shapley", "full")],
        ("mine", 3, "int is not a part of a method"),
        ("mine", dict, "dict is not a part of a method"),
        ("mine", Scorer, "cannot be made without arguments.*abstract"),
        ("mine", Needy, "cannot be made without arguments.*sinks"),
        ("mine", Thawed, "must be a frozen dataclass"),
        ("mine", Undecorated, "must be a frozen dataclass"),
        ("mine", Listed(items=[1]), "cannot be hashed"),
        ("mine", Worded, "cannot be called 'budget'"),
    ],
)
def test_what_cannot_be_registered(name: Any, part: Any, message: str) -> None:
    before = winnow.methods()
    with pytest.raises(MethodError, match=message):
        winnow.register(name, part)
    assert winnow.methods() == before


def test_allocators_come_with_scorers_only() -> None:
    with pytest.raises(MethodError, match="only a scorer can have an allocator"):
        winnow.register("mine", FirstLayers, allocator=Uniform())


# --- installed packages --------------------------------------------------------------------------------------------


def test_an_installed_package_brings_methods(site) -> None:
    source = (
        f"{SOURCE}\nfrom winnow.composition.registry import Preset\n"
        'RECORD = Preset("recorded", "In words.", "Nobody 2026", ValueNorm(sinks=3), FirstLayers())\n'
    )
    entries = {"valuenorm": "brings:ValueNorm", "Firstlayers": "brings:FirstLayers", "recorded": "brings:RECORD"}
    install(site, "brings", entries, source)
    assert winnow.method("valuenorm+firstlayers @ 64").scorer == ValueNorm()
    assert winnow.method("recorded", 64).allocator == FirstLayers()
    assert {"valuenorm", "firstlayers", "recorded"} <= {record.name for record in winnow.methods()}
    with pytest.raises(UnknownMethod, match="did you mean 'valuenorm'"):
        winnow.method("valuenom", 64)


def test_a_module_that_an_installed_package_names_may_register_the_name(site) -> None:
    source = (
        f"import winnow\n{SOURCE}\nwinnow.register('registers', ValueNorm, allocator=FirstLayers(), summary='Mine.')"
    )
    install(site, "registers_itself", {"registers": "registers_itself:ValueNorm"}, source)
    made = winnow.method("registers", 64)
    assert (made.scorer, made.allocator) == (ValueNorm(), FirstLayers())
    assert next(each.summary for each in winnow.methods() if each.name == "registers") == "Mine."


def test_packages_are_not_loaded_for_other_methods(site) -> None:
    install(site, "fails_when_loaded", {"fails": "fails_when_loaded:Missing"}, "raise RuntimeError('broken')")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert winnow.method("snapkv+ada", 64).name == "snapkv+ada"
        with pytest.raises(UnknownMethod, match="fails"):
            winnow.method("failx", 64)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("fails", "fails_{}:Missing", "RuntimeError: broken"),
        ("elsewhere", "no_module_{}:Missing", "ModuleNotFoundError"),
        ("number", "json:decoder", "module is not a part of a method"),
        ("snapkv", "json:decoder", "winnow has a method or part of this name"),
    ],
)
def test_what_a_package_brings_and_cannot_be_used_is_named(site, name, value, reason) -> None:
    package = f"fails_{name}"
    install(site, package, {name: value.format(name)}, "raise RuntimeError('broken')")
    told = rf"package {package} 1\.2 names a method '{name}' that cannot be used: .*{reason}"
    with pytest.warns(UserWarning, match=told):
        listed = winnow.methods()
    assert [record.name for record in listed[: len(PRESETS)]] == [preset.name for preset in PRESETS]
    if name != "snapkv":
        with pytest.raises(MethodError, match=told):
            winnow.method(name, 64)
    assert winnow.method("snapkv", 64).scorer == SnapKV()


def test_what_can_be_no_name_is_not_proposed(site) -> None:
    install(site, "odd", {"odd name": "json:decoder"}, "")
    with pytest.raises(UnknownMethod) as told:
        winnow.method("odd-name", 64)
    assert "odd name" not in str(told.value)


def test_a_reason_that_ends_in_a_dot_is_not_given_another(site) -> None:
    install(site, "fails_in_words", {"fails": "fails_in_words:Missing"}, "raise RuntimeError('It is broken.')")
    with pytest.raises(MethodError, match=r"It is broken\.$"):
        winnow.method("fails", 64)


def test_what_is_registered_comes_before_what_is_installed(site) -> None:
    install(site, "other", {"valuenorm": "json:decoder"}, "")
    winnow.register("valuenorm", ValueNorm)
    assert winnow.method("valuenorm", 64).scorer == ValueNorm()
