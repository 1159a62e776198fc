"""Files of contexts: their text and method, shared between processes, replaced, and never half read."""

from __future__ import annotations

import copy
import json
import os
from datetime import date, timedelta
from pathlib import Path

import pytest
import torch
import transformers

import winnow
from support.contexts import answer, mapped, prefix_tensors, refused, rollup
from support.families import prompt
from support.launcher import COMMANDS, launcher
from support.ready import random_scores
from support.small_caches import N, compress, made, method
from winnow.cache.disk import ContextFile


def test_a_loaded_context_can_be_saved_again_and_files_are_reproducible(model, saved, tmp_path):
    again = winnow.load_context(saved, model).save(tmp_path / "again")
    assert again.read_bytes() == saved.read_bytes()


def test_the_text_of_the_document_can_be_saved_with_it(context, tmp_path):
    path = context.save(tmp_path / "c", document="Äpfel\n何?")
    assert ContextFile.open(path).document == "Äpfel\n何?"


def test_what_the_file_says_of_the_method(model, tmp_path):
    scores = random_scores((3, 2), "headkv-r2")
    chosen = winnow.method("headkv-r2", budget="50%", scores=scores)
    context = winnow.compress(model, prompt(length=N), chosen)
    path = context.save(tmp_path / "c")
    loaded = winnow.load_context(path, model)
    assert str(loaded.method) == str(chosen)
    described = ContextFile.open(path).container.facts["method"]["head_scores"]
    assert described == [{**scores.facts(), "shape": [3, 2]}]
    again = loaded.save(tmp_path / "again")
    assert ContextFile.open(again).container.facts["method"]["head_scores"] == described
    cache = loaded.cache()
    cache.reset()
    with pytest.raises(winnow.CacheError, match="cannot compress another prompt"), torch.no_grad():
        model(prompt(length=N), past_key_values=cache)


def test_the_file_says_when_and_by_what_it_was_made(context, model, tmp_path, monkeypatch):
    """A context that is loaded and saved by later software, on a later day, keeps what it said."""
    path = context.save(tmp_path / "c")
    made = ContextFile.open(path).container.facts["made"]
    assert date.today() - date.fromisoformat(made.pop("date")) <= timedelta(days=1)
    assert made == {
        "winnow": winnow.__version__,
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
    }
    monkeypatch.setattr("winnow.cache.facts.__version__", "9")
    again = copy.deepcopy(winnow.load_context(path, model)).save(tmp_path / "again")
    assert again.read_bytes() == path.read_bytes()


def test_files_of_earlier_versions_do_not_say_when_they_were_made(context, model, tmp_path, monkeypatch):
    """They open, and saved again they say no more."""
    with monkeypatch.context() as earlier:
        earlier.setattr("winnow.cache.disk._made_here", lambda _: None)
        path = context.save(tmp_path / "c")
    assert "made" not in ContextFile.open(path).container.facts
    loaded = winnow.load_context(path, model)
    assert torch.equal(loaded.input_ids, context.input_ids)
    assert loaded.save(tmp_path / "again").read_bytes() == path.read_bytes()


def test_a_tilde_is_the_home_folder(model, context, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    context.save("~/c")
    assert (tmp_path / "c").is_file()
    assert torch.equal(winnow.load_context("~/c", model).input_ids, context.input_ids)


def test_tokens_of_another_integer_type(model, tmp_path):
    ids = prompt(length=N)
    path = winnow.compress(model, ids.int(), method()).save(tmp_path / "c")
    assert torch.equal(winnow.load_context(path, model).input_ids, ids)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"document": "a\ud800b"}, "character 1 of the document is half a surrogate pair"),
        ({"prompt": {"temperature": float("nan")}}, "cannot be written as JSON"),
        ({"prompt": {"system": "a\ud800b"}}, "cannot be written as JSON"),
        ({"prompt": "plain"}, "prompt is a str; give the result of"),
    ],
)
def test_what_no_file_could_give_back_is_not_written(context, tmp_path, given, told):
    with pytest.raises(winnow.ContextError, match=told):
        context.save(tmp_path / "c", **given)
    assert not list(tmp_path.iterdir())


def test_a_name_that_could_not_be_read_is_not_written(context, tmp_path):
    with pytest.raises(winnow.ContextError, match="not a UTF-8 name"):
        context.save(tmp_path / os.fsdecode(b"x\xff"))
    assert not list(tmp_path.iterdir())


def test_a_device_without_room_is_no_damage(model, saved, monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr("winnow.cache.layer_state.on_device", full)
    with pytest.raises(torch.OutOfMemoryError):
        winnow.load_context(saved, model)


CHILD = """
import json, sys
import torch, winnow
from support.families import build
from support.contexts import answer, mapped, prefix_tensors, rollup
torch.set_num_threads(1)
model = build("llama")
model.set_attn_implementation("winnow")
context = winnow.load_context(sys.argv[1], model)
sums = [float(tensor.double().sum()) for tensor in prefix_tensors(context)]
print(json.dumps({"answer": answer(model, context).tolist(), "sums": sums, "pages": rollup(sys.argv[1])}))
"""


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux's /proc")
def test_processes_share_one_mapping_and_answer_alike(model, tmp_path):
    """Another process recognizes the model, gives the same answer, and its pages are the same memory."""
    document = prompt(length=400)
    context = winnow.compress(model, document, method(budget=300))
    path = context.save(tmp_path / "context")
    loaded = winnow.load_context(path, model)
    tensors = prefix_tensors(loaded)
    ranges = mapped(path)
    assert all(any(a <= tensor.data_ptr() < b for a, b in ranges) for tensor in tensors), "a prefix was copied"
    assert all(tensor.data_ptr() % tensor.element_size() == 0 for tensor in tensors)
    sums = [float(tensor.double().sum()) for tensor in tensors]  # touches every page
    before = path.read_bytes()

    child = launcher(COMMANDS).python(CHILD, str(path))
    assert child.returncode == 0, child.stderr
    told = json.loads(child.stdout)
    assert told["answer"] == answer(model, context).tolist()
    assert told["sums"] == sums
    held = sum(tensor.nbytes for tensor in tensors) // 1024
    assert told["pages"]["Shared_Clean"] >= held - 8
    assert told["pages"]["Private_Dirty"] == told["pages"]["Shared_Dirty"] == 0
    # Two processes, half of every page each.
    assert told["pages"]["Pss"] <= 0.6 * told["pages"]["Rss"]

    answer(model, loaded)
    assert rollup(path)["Private_Dirty"] == 0, "decoding writes to the prefix"
    assert path.read_bytes() == before


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's /proc")
def test_windows_are_copied_out_of_the_file(tmp_path):
    """They are written to with every token; prefixes are not."""
    model = made("gemma2")
    path = compress(model).save(tmp_path / "c")
    layers = winnow.load_context(path, model)._cache.layers
    windows = [part for layer in layers if layer.is_sliding for part in (layer.keys, layer.values)]
    ranges = mapped(path)
    assert windows
    assert ranges
    assert not any(start <= window.data_ptr() < stop for window in windows for start, stop in ranges)


def test_rows_of_a_loaded_batch_have_their_own_slots(model, tmp_path):
    context = winnow.compress(model, prompt(rows=3, length=N), method())
    loaded = winnow.load_context(context.save(tmp_path / "c"), model)
    for layer in range(3):
        for row in range(3):
            assert all(map(torch.equal, loaded.kept(layer, row), context.kept(layer, row)))


def test_content_that_cannot_be_read_back_is_no_crash(model, context, tmp_path, monkeypatch):
    monkeypatch.setattr("winnow.cache.disk._named", lambda states: {})
    refused(context.save(tmp_path / "c"), model, "a prefix has no positions")


def test_a_mapped_context_survives_being_replaced(model, context, saved):
    loaded = winnow.load_context(saved, model)
    winnow.compress(model, prompt(length=30, seed=4), method()).save(saved, overwrite=True)
    assert torch.equal(answer(model, loaded), answer(model, context))
