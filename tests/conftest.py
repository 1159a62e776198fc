"""Fixtures of several test files."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import settings

if not torch.cuda.is_available():
    # Triton's interpreter, for tests without a GPU: asked for before transformers imports Triton.
    os.environ["TRITON_INTERPRET"] = "1"

from transformers import PreTrainedTokenizerBase

from support.turns import one_of_each
from winnow.bundled import MODEL_PATH
from winnow.cli import main
from winnow.composition import known
from winnow.evaluate import answer_reader
from winnow.models import ModelSource, open_model

# Machines are busy now and then: no test fails for being slow.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests that all stay are not looked through for garbage while they are collected."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--one-in", type=int, default=1, metavar="N", help="one in N parameters of every test")


@pytest.hookimpl(trylast=True)  # of those that markers leave
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (count := config.getoption("--one-in")) > 1:
        chosen = set(one_of_each(items, count))
        config.hook.pytest_deselected(items=[each for each in items if each not in chosen])
        items[:] = [each for each in items if each in chosen]


def pytest_collection_finish() -> None:
    """No collection of garbage in a test looks through what is imported, which takes half a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def several_at_once() -> Iterator[None]:
    """Candidates are tried as on processors with AVX-512, whichever this one is."""
    with mock.patch.object(answer_reader, "multiplies_several", return_value=True):
        yield


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Small models are faster on one thread, above all beside other tests; ask for it with `usefixtures`."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def source() -> ModelSource:
    """The bundled model, its weights not loaded yet."""
    return open_model(MODEL_PATH)


@pytest.fixture(scope="module")
def tokenizer(source: ModelSource) -> PreTrainedTokenizerBase:
    """The bundled model's tokenizer."""
    return source.tokenizer


@pytest.fixture(scope="module")
def packed_model() -> Any:
    """A model whose heads are wide enough for packed caches."""
    from support.packed_caches import made

    return made()


@pytest.fixture
def names_of_this_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that are registered in the test are forgotten after it."""
    for names in ("_presets", "_parts"):
        monkeypatch.setattr(known, names, dict(getattr(known, names)))


@pytest.fixture
def winnow_run(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """Runs a command line in the `folder` of the test's own file; returns its exit code, stdout and stderr."""
    monkeypatch.chdir(folder)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
