"""The warning of weights that take more memory than is free, by commands that load a model."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import PreTrainedConfig

from support.asked import ASK_RUN, QUESTION, write_asked
from support.quantized_checkpoints import write_mxfp4
from support.sources import source_in
from winnow.bundled import NAME
from winnow.cli import main
from winnow.commands import large_weights
from winnow.commands.formats import written_bytes
from winnow.commands.large_weights import warn_of_large_weights
from winnow.commands.loading import check_methods, load
from winnow.commands.options.shared import ModelOptions
from winnow.models import ModelSource, loading, open_skeleton
from winnow.models.needed import weight_bytes

pytestmark = pytest.mark.usefixtures("one_thread")
Run = Callable[..., tuple[int, str, str]]
FORMS = {
    "--dtype float32": ("float32", "auto"),
    "--dtype bfloat16": ("bfloat16", "auto"),
    "--weights int8": ("bfloat16", "int8"),
    "--weights int4": ("bfloat16", "int4"),
}
"""Options and what they make of the bundled model's weights, from the most bytes to the fewest."""
SMALLER = "Use a smaller model."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A document and its context."""
    folder: Path = tmp_path_factory.mktemp("large")
    write_asked(folder)
    text, out = str(folder / "document.txt"), str(folder / "context.safetensors")
    assert main(["compress", text, "-o", out, "--method", "adakv", "--dtype", "float32"]) == 0
    return folder


def needed(source: ModelSource, dtype: str, weights: str) -> int:
    found = weight_bytes(open_skeleton(source, "cpu", dtype, weights), weights)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def sizes(source: ModelSource) -> dict[str, int]:
    """Bytes of the bundled model's weights under FORMS."""
    return {option: needed(source, dtype, weights) for option, (dtype, weights) in FORMS.items()}


@pytest.fixture
def leave(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    """Has so many bytes be free."""
    return lambda free: monkeypatch.setattr(large_weights, "available_memory", lambda _: free)


def put_on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has every device of a name be there."""
    for module in (large_weights, loading):
        monkeypatch.setattr(module, "pick_device", torch.device)


def told(sizes: dict[str, int], asked: str, free: int, advised: str | None) -> str:
    """The line that is expected. advised: an option; None where none would do."""
    form = "as " + asked.split()[1] if "weights" in asked else "in " + asked.split()[1]
    advice = SMALLER if advised is None else f"With {advised} they take {written_bytes(sizes[advised])}."
    return (
        f"Warning: the weights of {NAME} take {written_bytes(sizes[asked])} {form}, and {written_bytes(free)} of "
        f"memory are free: loading may end in swapping, or be stopped by the system. {advice}\n"
    )


@pytest.mark.parametrize(
    ("asked", "free", "advised"),
    [
        ("--dtype float32", "--dtype bfloat16", "--dtype bfloat16"),
        ("--dtype bfloat16", "--weights int8", "--weights int8"),
        ("--dtype bfloat16", "--weights int4", "--weights int4"),
        ("--weights int8", "--weights int4", "--weights int4"),
        ("--weights int8", None, None),
        ("--weights int4", None, None),
    ],
)
def test_the_largest_form_that_fits_is_advised(
    winnow_run: Run,
    leave: Callable[[int | None], None],
    sizes: dict[str, int],
    asked: str,
    free: str | None,
    advised: str | None,
) -> None:
    left = 1000 if free is None else sizes[free]  # exactly what that form takes
    leave(left)
    code, out, err = winnow_run(*ASK_RUN, *asked.split(), "--device", "cpu", "--json")
    assert (code, err) == (0, told(sizes, asked, left, advised))
    assert json.loads(out)["new_tokens"] > 0


@pytest.mark.parametrize("asked", FORMS)
def test_weights_that_fit_are_loaded_without_a_word(
    winnow_run: Run, leave: Callable[[int | None], None], sizes: dict[str, int], asked: str
) -> None:
    for free in (sizes[asked], None):
        leave(free)
        assert winnow_run(*ASK_RUN, *asked.split(), "--device", "cpu")[::2] == (0, "")


@pytest.mark.parametrize(
    "command",
    [
        ("compress", "document.txt", "-o", "other.safetensors", "--method", "keydiff", "--force"),
        ("chat", "--document", "document.txt", "--method", "keydiff"),
        ("heads", "centers", "document.txt", "--tokens", "64", "-o", "centers.safetensors", "--force"),
        ("eval", "facts", "--lengths", "300", "--examples", "1", "--allow-zero", "--methods", "full", "--out", "run"),
    ],
    ids=lambda command: command[0],
)
def test_commands_warn_once(
    winnow_run: Run,
    leave: Callable[[int | None], None],
    sizes: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
) -> None:
    leave(1000)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(), isatty=lambda: False))
    code, _, err = winnow_run(*command, "--device", "cpu", "--dtype", "float32")
    assert code == 0, err
    assert err.count("the weights of") == 1
    assert told(sizes, "--dtype float32", 1000, None) in err


def test_nothing_else_is_advised_where_a_file_says_what_weights_are(
    winnow_run: Run, leave: Callable[[int | None], None], sizes: dict[str, int]
) -> None:
    leave(sizes["--weights int8"])
    code, out, err = winnow_run("ask", "context.safetensors", QUESTION.text, "--device", "cpu", "--json")
    assert code == 0, err
    assert err.endswith(": loading may end in swapping, or be stopped by the system.\n")
    assert json.loads(out)["answer"]


def test_a_skeleton_that_is_there_serves_again(
    source: ModelSource, leave: Callable[[int | None], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(1000)
    skeleton = check_methods(source, ModelOptions(device="cpu"), [])
    monkeypatch.setattr(large_weights, "open_skeleton", lambda *_: pytest.fail("another one was made"))
    assert warn_of_large_weights(source, ModelOptions(device="cpu"), skeleton, can_choose=False)


@pytest.mark.parametrize(
    ("dtype", "end"), [("float32", "With --dtype bfloat16 they take 2.1 MiB."), ("bfloat16", SMALLER)]
)
def test_on_a_gpu_its_own_memory_counts_and_layers_keep_their_bits(
    source: ModelSource,
    capsys: pytest.CaptureFixture[str],
    leave: Callable[[int | None], None],
    sizes: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
    dtype: Any,
    end: str,
) -> None:
    skeleton = open_skeleton(source, "cpu", dtype)
    put_on_gpu(monkeypatch)
    leave(sizes[f"--dtype {dtype}"] - 1)
    assert warn_of_large_weights(source, ModelOptions(device="cuda", dtype=dtype), skeleton)
    said = capsys.readouterr().err
    assert said.endswith(f" of the GPU's memory are free: loading may fail. {end}\n")


def test_nothing_is_said_of_models_that_are_spread_over_devices(
    source: ModelSource, leave: Callable[[int | None], None]
) -> None:
    leave(1)
    assert not warn_of_large_weights(source, ModelOptions(device_map="auto"))


def test_bits_of_a_library_are_not_known(source: ModelSource, leave: Callable[[int | None], None]) -> None:
    leave(1)
    config: Any = copy.deepcopy(source.config)
    config.quantization_config = {"quant_method": "gptq"}
    assert not warn_of_large_weights(replace(source, config=config), ModelOptions(device="cpu"))


def test_a_checkpoint_that_is_written_out_on_a_cpu_counts_as_what_it_becomes(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    leave: Callable[[int | None], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_mxfp4(tmp_path)
    source = source_in(tmp_path)
    free = needed(source, "bfloat16", "int4")
    leave(free)
    assert warn_of_large_weights(source, ModelOptions(device="cpu", dtype="bfloat16"))
    assert f"With --weights int4 they take {written_bytes(free)}." in capsys.readouterr().err
    put_on_gpu(monkeypatch)
    assert not warn_of_large_weights(source, ModelOptions(device="cuda"))


def test_what_is_wrong_with_a_model_is_told_when_it_is_loaded(
    source: ModelSource, leave: Callable[[int | None], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(1)
    broken = replace(source, config=PreTrainedConfig())
    monkeypatch.setattr("winnow.commands.loading.load_model", lambda *_: "told")
    assert load(broken, ModelOptions(device="cpu", dtype="float32")) == "told"
