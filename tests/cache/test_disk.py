"""Contexts on disk: the same answers from a file, shared between processes, and every way for a file to be wrong."""

from __future__ import annotations

import errno
import gc
import json
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from transformers import AutoTokenizer

import winnow
from support.contexts import answer, mapped, prefix_tensors, rollup
from support.families import build, prompt
from support.ready import random_scores
from winnow.bundled import MODEL_PATH
from winnow.cache import container, layer_state
from winnow.cache.disk import ContextFile
from winnow.cache.fingerprint import ModelFingerprint, hash_tokenizer

N = 40
PADDING = (0, 13, N)  # the last row is nothing but padding
TESTS = Path(__file__).parents[1]
SOURCES = Path(winnow.__file__).parents[1]


def made(family: str = "llama", seed: int = 0, **overrides):
    model = build(family, seed, **overrides)
    model.set_attn_implementation("winnow")
    return model


@pytest.fixture(scope="module")
def model():
    return made()


def method(budget: int = 9):
    return winnow.method("adakv", budget=budget, window=3, floor=0.0)


def compress(model, **options):
    return winnow.compress(model, prompt(length=N), method(), **options)


@pytest.fixture(scope="module")
def context(model):
    return compress(model)


@pytest.fixture
def saved(context, tmp_path):
    return context.save(tmp_path / "context.safetensors")


def kept(context, rows: int = 1):
    layers = [i for i, layer in enumerate(context.cache().layers) if hasattr(layer, "prefixes")]
    return [[head.tolist() for head in context.kept(i, row)] for i in layers for row in range(rows)]


FAMILIES = {
    "grouped queries": ("llama", {}),
    "as many KV heads as queries": ("gpt2", {}),
    "soft-capping and sliding layers": ("gemma2", {}),
    "sinks": ("gpt_oss", {}),
    "shared layers": ("gemma3n_text", {}),
    "chunked layers": ("llama4_text", {}),
    "linear layers": ("qwen3_next", {}),
    "convolutions": ("lfm2", {}),
    "linear state and full attention in one layer": ("falcon_h1", {}),
}


@pytest.mark.parametrize("case", FAMILIES)
def test_a_file_answers_as_the_context_that_it_was_saved_from(case, tmp_path):
    family, overrides = FAMILIES[case]
    model = made(family, **overrides)
    context = compress(model)
    loaded = winnow.load_context(context.save(tmp_path / "c"), model)
    assert torch.equal(loaded.input_ids, context.input_ids)
    assert kept(loaded) == kept(context)
    assert loaded.stats() == context.stats()
    assert torch.equal(answer(model, loaded), answer(model, context))
    assert torch.equal(answer(model, loaded), answer(model, context)), "the second fork sees the first"


def test_a_padded_batch(model, tmp_path):
    ids, mask = prompt(rows=3, length=N), torch.ones(3, N, dtype=torch.int64)
    for row, padding in enumerate(PADDING):
        mask[row, :padding] = 0
    context = winnow.compress(model, ids, method(), attention_mask=mask)
    loaded = winnow.load_context(context.save(tmp_path / "c"), model)
    assert loaded.cache().compressed_layers()[0].prefixes[2] is None
    assert kept(loaded, rows=3) == kept(context, rows=3)
    assert loaded.stats() == context.stats()
    assert torch.equal(answer(model, loaded, mask), answer(model, context, mask))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_in_chunks(dtype, tmp_path):
    model = made().to(dtype)
    context = compress(model, chunk_size=7)
    loaded = winnow.load_context(context.save(tmp_path / "c"), model)
    assert loaded.cache().compressed_layers()[0].prefixes[0].block.keys.dtype == dtype
    assert torch.equal(answer(model, loaded), answer(model, context))


def test_rows_that_share_a_prefix_share_it_again(model, tmp_path):
    context = compress(model)
    context._cache.batch_repeat_interleave(3)
    loaded = winnow.load_context(context.save(tmp_path / "c"), model)
    layer = loaded.cache().compressed_layers()[1]
    assert len(layer.prefixes) == 3
    assert len(layer.distinct_prefixes()) == 1
    assert loaded.stats() == context.stats()


def test_a_loaded_context_can_be_saved_again_and_files_are_reproducible(model, saved, tmp_path):
    again = winnow.load_context(saved, model).save(tmp_path / "again")
    assert again.read_bytes() == saved.read_bytes()


def test_the_file_is_plain_safetensors_and_aligned(context, saved):
    tensors = safetensors.torch.load_file(saved)
    prefix = context.cache().compressed_layers()[1].prefixes[0]
    assert torch.equal(tensors["layers.1.prefixes.0.keys"], prefix.block.keys)
    assert torch.equal(tensors["layers.1.prefixes.0.positions"], prefix.positions)
    assert ContextFile.open(saved).container.start % container.ALIGNMENT == 0


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
    cache = loaded.cache()
    cache.reset()
    with pytest.raises(winnow.CacheError, match="cannot compress another prompt"), torch.no_grad():
        model(prompt(length=N), past_key_values=cache)


# --- sharing -------------------------------------------------------------------------------------------------------

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


def start(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(filter(None, [str(SOURCES), str(TESTS), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux's /proc")
def test_processes_share_one_mapping_and_answer_alike(model, tmp_path):
    """Another process recognises the model, gives the same answer, and its pages are the same memory."""
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

    child = start(CHILD, path)
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


# --- refusals ------------------------------------------------------------------------------------------------------


def refused(path, model, expected: str, **options) -> None:
    with pytest.raises(winnow.CacheError, match=expected):
        winnow.load_context(path, model, **options)


def test_files_that_are_no_contexts(model, tmp_path):
    refused(tmp_path / "nowhere", model, "no file .*nowhere")
    refused(tmp_path, model, "is a directory")
    refused(random_scores((3, 2)).save(tmp_path / "scores.safetensors"), model, "not a context")
    for name, content in {
        "empty": b"",
        "text": b"The lemon is yellow. " * 9,
        "short": b"abc",
        "zeros": bytes(99),
    }.items():
        (tmp_path / name).write_bytes(content)
        refused(tmp_path / name, model, "not a context")


@pytest.mark.parametrize("left", [0.999, 0.5, 0.1])
def test_a_truncated_file_is_noticed_without_reading_it(model, saved, left):
    whole = saved.read_bytes()
    saved.write_bytes(whole[: int(left * len(whole))])
    refused(saved, model, "damaged .*bytes", verify=False)


def test_a_longer_file_is_damaged(model, saved):
    saved.write_bytes(saved.read_bytes() + b"x")
    refused(saved, model, "damaged", verify=False)


HEADERS = {
    "facts": (rb'\\"seen\\": 40', rb'\\"seen\\": 41'),
    "table": (rb'"shape":\[18,16\]', rb'"shape":[16,18]'),
    "checksum of the content": (rb'payload_blake2b":"(.)', rb'payload_blake2b":"x'),
    "checksum of the header": (rb'header_blake2b":"(.)', rb'header_blake2b":"x'),
}


@pytest.mark.parametrize("case", HEADERS)
def test_a_changed_header_is_noticed_without_reading_the_file(model, saved, case):
    before = saved.read_bytes()
    after = re.sub(*HEADERS[case], before, count=1)
    assert after != before
    assert len(after) == len(before)
    saved.write_bytes(after)
    refused(saved, model, "its header was changed", verify=False)


def test_changed_content_is_noticed_unless_that_is_left_out(model, saved):
    content = bytearray(saved.read_bytes())
    content[ContextFile.open(saved).container.start] ^= 1
    saved.write_bytes(content)
    refused(saved, model, "content was changed")
    winnow.load_context(saved, model, verify=False)


def test_no_change_of_a_single_byte_passes(model, saved):
    whole, numbers = saved.read_bytes(), random.Random(0)
    start = ContextFile.open(saved).container.start
    places = [*range(64), *numbers.sample(range(64, start), 120), *numbers.sample(range(start, len(whole)), 60)]
    for place in places:
        changed = bytearray(whole)
        changed[place] ^= 1 << numbers.randrange(8)
        saved.write_bytes(changed)
        refused(saved, model, "damaged|not a context|newer|format version")


def test_a_newer_format_is_named(model, context, tmp_path, monkeypatch):
    monkeypatch.setattr(container, "VERSION", 2)
    path = context.save(tmp_path / "c")
    monkeypatch.undo()
    refused(path, model, "format version 2, this Winnow reads version 1: upgrade")


def test_content_that_cannot_be_read_back_is_no_crash(model, context, tmp_path, monkeypatch):
    monkeypatch.setattr("winnow.cache.disk._named", lambda states: {})
    refused(context.save(tmp_path / "c"), model, "cannot be read back")


MODELS = {
    "other layers": ({"num_hidden_layers": 2}, "num_hidden_layers 3, not 2"),
    "other heads": ({"num_key_value_heads": 4}, "num_key_value_heads 2, not 4"),
    "other positions": ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}, "rope_param"),
    "other weights": ({"seed": 1}, "same shape but other weights"),
}


@pytest.mark.parametrize("case", MODELS)
def test_another_model_is_refused(saved, case):
    overrides, expected = MODELS[case]
    refused(saved, made(**overrides), expected)


def test_another_family_dtype_or_a_fine_tune_is_refused(saved):
    refused(saved, made("mistral"), "model_type 'llama', not 'mistral'")
    refused(saved, made().to(torch.bfloat16), "load it with dtype=torch.float32")
    tuned = made()
    with torch.no_grad():
        tuned.model.layers[1].mlp.up_proj.weight.add_(1e-6)
    refused(saved, tuned, "other weights")
    plain = build("llama")
    plain.set_attn_implementation("sdpa")
    refused(saved, plain, "attention implementation")


def test_a_fingerprint_survives_saving_the_model(model, tmp_path):
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    first, second = ModelFingerprint.of(model), ModelFingerprint.of(again)
    assert (first.weights, first.architecture, first.dtype) == (second.weights, second.architecture, second.dtype)
    assert (first.name, second.name) == ("", str(tmp_path.resolve()))


def test_offloaded_weights_are_named(tmp_path):
    model = made()
    context = compress(model)
    model.to("meta")
    with pytest.raises(winnow.ModelError, match="offloaded"):
        context.save(tmp_path / "c")


def test_another_tokenizer_is_refused(model, context, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(MODEL_PATH)
    path = context.save(tmp_path / "c", tokenizer=tokenizer)
    before = hash_tokenizer(tokenizer)
    tokenizer(["a b c", "a"], padding=True, truncation=True, max_length=2)
    assert hash_tokenizer(tokenizer) == before, "padding is no part of a tokenizer"
    winnow.load_context(path, model, tokenizer=tokenizer)
    for change in (lambda t: t.add_tokens(["⟨new⟩"]), lambda t: setattr(t, "chat_template", "{{ messages }}")):
        other = AutoTokenizer.from_pretrained(MODEL_PATH)
        change(other)
        refused(path, model, "another tokenizer", tokenizer=other)


def test_layers_that_cannot_be_written_are_named(tmp_path, monkeypatch):
    model = made("qwen3_next")
    context = compress(model)
    kinds = {kind: made for kind, made in layer_state._KINDS.items() if kind != "linear"}
    monkeypatch.setattr(layer_state, "_KINDS", kinds)
    with pytest.raises(winnow.CacheError, match="LinearAttentionLayer layers cannot be written"):
        context.save(tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


def test_a_context_whose_model_is_gone_cannot_be_saved(tmp_path):
    model = made()
    context = compress(model)
    del model
    gc.collect()
    with pytest.raises(winnow.CacheError, match="the model of this context is gone"):
        context.save(tmp_path / "c")


def test_a_cache_with_later_tokens_is_no_context(model, tmp_path):
    context = compress(model)
    with torch.no_grad():
        model(prompt(length=3), past_key_values=context._cache)
    with pytest.raises(winnow.CacheError, match="nothing after it"):
        context.save(tmp_path / "c")


# --- writing -------------------------------------------------------------------------------------------------------


def test_nothing_is_overwritten_unless_asked(context, model, saved, tmp_path):
    before = saved.read_bytes()
    with pytest.raises(winnow.CacheError, match="exists; give another name"):
        context.save(saved)
    assert saved.read_bytes() == before
    other = compress(model, chunk_size=9)
    assert other.save(saved, overwrite=True) == saved
    winnow.load_context(saved, model)
    with pytest.raises(winnow.CacheError, match="is a directory"):
        context.save(tmp_path, overwrite=True)
    assert context.save(tmp_path / "new" / "folder" / "c").is_file()


def test_a_mapped_context_survives_being_replaced(model, context, saved):
    loaded = winnow.load_context(saved, model)
    winnow.compress(model, prompt(length=30, seed=4), method()).save(saved, overwrite=True)
    assert torch.equal(answer(model, loaded), answer(model, context))


def test_a_full_disk_leaves_nothing_behind(context, tmp_path):
    resource = pytest.importorskip("resource")
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
        with pytest.raises(winnow.CacheError, match=r"Cannot write .*c: File too large\. It takes 0\.0 MiB: make room"):
            context.save(tmp_path / "c")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("problem", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_an_interrupted_write_leaves_nothing_behind(context, saved, monkeypatch, problem):
    before = saved.read_bytes()

    def fail(file):
        raise problem

    monkeypatch.setattr(container.os, "fsync", fail)
    with pytest.raises((KeyboardInterrupt, winnow.CacheError)):
        context.save(saved, overwrite=True)
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]
    assert saved.read_bytes() == before
