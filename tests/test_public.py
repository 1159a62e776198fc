"""The names of the package itself: imported when they are used, and none of them hidden by a submodule."""

from __future__ import annotations

import ast
import pkgutil
from pathlib import Path

import pytest

import winnow
from support.launcher import BENEATH, launcher


def test_the_lists_of_names_agree():
    tree = ast.parse(Path(winnow.__file__).read_text(encoding="utf-8"))
    typed = {
        (alias.name, found.module)
        for block in tree.body
        if isinstance(block, ast.If)
        for found in block.body
        if isinstance(found, ast.ImportFrom)
        for alias in found.names
    }
    assert typed == set(winnow._HOMES.items())
    assert winnow.__all__ == sorted(winnow._HOMES)


@pytest.mark.parametrize("name", winnow.__all__)
def test_every_name_is_there(name):
    assert getattr(winnow, name) is not None
    assert name in dir(winnow)


def test_no_submodule_hides_a_name():
    submodules = {module.name for module in pkgutil.iter_modules(winnow.__path__)}
    assert not submodules & set(winnow.__all__)


def test_submodules_need_no_import_of_their_own():
    code = "import winnow; winnow.budget.Budget; winnow.heads.read_scores; winnow.cache.CompressedCache"
    found = launcher(BENEATH).python(code)
    assert found.returncode == 0, found.stderr


def test_errors_of_contexts_are_caught_as_those_of_caches():
    """As they were before they had a class of their own."""
    assert issubclass(winnow.ContextError, winnow.CacheError)


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="'winnow' has no attribute 'metod'"):
        _ = winnow.metod
    with pytest.raises(ImportError, match="cannot import name 'metod'"):
        from winnow import metod  # noqa: F401
