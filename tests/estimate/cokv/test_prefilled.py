"""Prompts that stay prefilled: never more than there is room for, and the same bits wherever they come from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from support.clocks import SetClock
from support.families import prompt
from support.small_caches import made
from winnow import CompressedCache, method
from winnow.estimate.cokv import prefilled
from winnow.estimate.cokv.examples import generated_examples
from winnow.estimate.cokv.prefilled import PrefilledExample, PrefilledExamples, PromptMemory
from winnow.estimate.cokv.settings import Terms
from winnow.estimate.cokv.utility import CoalitionUtility
from winnow.evaluate.decoding import prefill

pytestmark = pytest.mark.usefixtures("one_thread")

N = 40


class Reading:
    """Prompts of a small model; notes which are read, and lets time pass."""

    def __init__(self, family: str = "llama", seconds: float = 1.0) -> None:
        self.model = made(family)
        self.clock = SetClock()
        self.seconds = seconds
        self.read: list[int] = []

    def __call__(self, example: int) -> PrefilledExample:
        self.read.append(example)
        self.clock.wait(self.seconds)
        ids = prompt(length=N + 4 * example)
        cache = CompressedCache(self.model, method("full"))
        return PrefilledExample(cache, ids, prefill(self.model, ids, cache).argmax(-1, keepdim=True))

    def size(self) -> int:
        """Bytes of a prompt."""
        return self(0).cache.stats().held_bytes

    def examples(self, room: float, folder: Path | None = None) -> PrefilledExamples:
        """Room for so many prompts."""
        limit = int(room * self.size())
        self.read.clear()
        return PrefilledExamples(
            self.model, self, PromptMemory(limit, None if folder is None else str(folder)), self.clock
        )


def held(examples: PrefilledExamples) -> int:
    return len(examples._held)


def test_no_more_is_held_than_there_is_room_for():
    reading = Reading()
    examples = reading.examples(room=3.5)
    for example in (0, 1, 2, 0, 1, 2, 3, 0, 1):
        assert examples[example].tokens.shape == (1, N + 4 * example)
        assert held(examples) <= 3
    # The last one used gives way, so that examples in turn find the others.
    assert reading.read == [0, 1, 2, 3]


def test_a_prompt_larger_than_the_room_is_read_all_the_same():
    examples = Reading().examples(room=0.1)
    for example in (0, 1, 0):
        assert examples[example].tokens.shape == (1, N + 4 * example)
        assert held(examples) == 1


def test_what_has_no_room_is_kept_on_disk(tmp_path):
    reading = Reading()
    examples = reading.examples(0.1, tmp_path / "prompts")
    for _ in range(3):
        for example in (0, 1, 2):
            assert examples[example].tokens.shape == (1, N + 4 * example)
    assert reading.read == [0, 1, 2]
    assert len(list((tmp_path / "prompts").iterdir())) == 3


def test_prompts_are_read_again_where_that_is_faster_than_the_disk(tmp_path, monkeypatch):
    reading = Reading()
    examples = reading.examples(0.1, tmp_path)
    for example in (0, 1, 2):
        examples[example]
    loaded = prefilled.load_context

    def slowly(*arguments, **options):
        reading.clock.wait(1.5)
        return loaded(*arguments, **options)

    monkeypatch.setattr(prefilled, "load_context", slowly)
    for _ in range(2):
        for example in (0, 1):
            examples[example]
    # Once from disk, then never again.
    assert reading.read == [0, 1, 2, 1, 0, 1]


def test_a_disk_without_space_costs_time_and_nothing_else(tmp_path):
    reading = Reading()
    (tmp_path / "file").write_text("")
    examples = reading.examples(0.1, tmp_path / "file")
    for example in (0, 1, 0):
        assert examples[example].tokens.shape == (1, N + 4 * example)
    assert reading.read == [0, 1, 0]


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss", "qwen3_next"])
def test_coalitions_over_a_prompt_from_disk_are_the_same_bits(tmp_path, family):
    reading = Reading(family)
    examples = reading.examples(0.1, tmp_path)
    model, first = reading.model, examples[0]
    examples[1]
    again = examples[0]
    assert reading.read == [0, 1]
    shape = (5, len(first.cache.compression.heads), first.cache.compression.heads[0])
    masks = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.5
    steps = []
    for each in (first, again):
        rows = each.cache.coalitions(masks, 8)
        tokens = each.first.expand(len(masks))[:, None]
        with torch.no_grad():
            steps.append([model(tokens, past_key_values=rows).logits for _ in range(3)])
    assert all(map(torch.equal, *steps))


def test_utilities_are_the_same_with_any_room(model, tokenizer, tmp_path):
    examples = generated_examples(4)
    masks = torch.rand(16, 4, 4, generator=torch.Generator().manual_seed(3)) < 0.7
    found = []
    for memory in (PromptMemory(), PromptMemory(1), PromptMemory(1, str(tmp_path))):
        utility = CoalitionUtility(model, tokenizer, examples, Terms(), memory)
        found.append([utility(example, masks) for _ in range(2) for example in range(4)])
    assert found[0] == found[1] == found[2]
    assert len(list(tmp_path.iterdir())) == 4


def test_without_a_limit_prompts_take_a_share_of_what_is_free(monkeypatch):
    monkeypatch.setattr("winnow.estimate.cokv.prefilled.available_memory", lambda _: 1200)
    assert PromptMemory(workers=3).bytes(torch.device("cpu")) == 200
    assert PromptMemory(500, workers=3).bytes(torch.device("cpu")) == 500
    monkeypatch.setattr("winnow.estimate.cokv.prefilled.available_memory", lambda _: None)
    assert PromptMemory().bytes(torch.device("cpu")) is None
