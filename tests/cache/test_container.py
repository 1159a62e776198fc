"""The container of a context: plain safetensors, every change noticed, and writes that fail leave nothing."""

from __future__ import annotations

import errno
import os
import random
import re
import signal

import pytest
import safetensors.torch
import torch

import winnow
from support.contexts import refused
from support.families import prompt
from support.ready import random_scores
from support.small_caches import N, compress, method
from winnow.cache import container
from winnow.cache.disk import ContextFile


def test_the_file_is_plain_safetensors_and_aligned(context, saved):
    tensors = safetensors.torch.load_file(saved)
    prefix = context.cache().compressed_layers()[1].prefixes[0]
    assert torch.equal(tensors["layers.1.prefixes.0.keys"], prefix.block.keys)
    assert torch.equal(tensors["layers.1.prefixes.0.positions"], prefix.positions)
    assert ContextFile.open(saved).container.start % container.ALIGNMENT == 0


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
    refused(path, model, "format version 2, but this Winnow reads version 1: upgrade")


def test_nothing_is_overwritten_unless_asked(context, model, saved, tmp_path):
    before = saved.read_bytes()
    with pytest.raises(winnow.ContextError, match="exists; give another name"):
        context.save(saved)
    assert saved.read_bytes() == before
    other = compress(model, chunk_size=9)
    assert other.save(saved, overwrite=True) == saved
    winnow.load_context(saved, model)
    with pytest.raises(winnow.ContextError, match="is a directory"):
        context.save(tmp_path, overwrite=True)
    assert context.save(tmp_path / "new" / "folder" / "c").is_file()


@pytest.mark.parametrize("change", ["text", "method"])
def test_a_file_that_is_replaced_while_it_is_read_is_told(context, model, saved, tmp_path, change):
    """Between its header and its tensors, as another process may: never the one's method with the other's tokens."""
    opened = ContextFile.open(saved)
    if change == "text":
        other = winnow.compress(model, prompt(length=N, seed=7), method())
    else:
        other = winnow.compress(model, prompt(length=N), "snapkv @ 9")
    os.replace(other.save(tmp_path / "other"), saved)
    for read in (opened.verify, lambda: opened.cache(model), lambda: opened.input_ids):
        with pytest.raises(winnow.ContextError, match="was replaced while it was read: load it again"):
            read()
    again = winnow.load_context(saved, model)
    assert torch.equal(again.input_ids, other.input_ids)
    assert str(again.method) == str(other.method)


def test_a_file_that_is_replaced_by_an_equal_one_is_the_same(context, model, saved, tmp_path):
    opened = ContextFile.open(saved)
    os.replace(context.save(tmp_path / "other"), saved)
    opened.verify()
    assert torch.equal(opened.input_ids, context.input_ids)


def test_a_full_disk_leaves_nothing_behind(context, tmp_path):
    resource = pytest.importorskip("resource")
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
        with pytest.raises(winnow.ContextError, match=r"Cannot write .*c: File too large\. It takes 0\.0 MiB: make"):
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

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises((KeyboardInterrupt, winnow.ContextError)):
        context.save(saved, overwrite=True)
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]
    assert saved.read_bytes() == before
