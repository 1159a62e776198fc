"""Candidates for the next tokens of an answer, against a plain search, and answers that are written with them."""

from __future__ import annotations

import copy
import inspect
from contextlib import suppress
from itertools import product
from typing import Any
from unittest import mock
from weakref import ref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

from support.families import build, prompt
from support.interruptions import Halt, Places, lines_halting
from support.turns import each_value
from winnow import CompressedCache
from winnow.cache import graphed, host_graph, while_graphed
from winnow.cache.host_graph import HostGraph
from winnow.cache.linear_states import LinearStates
from winnow.cache.state_calls import StateCalls
from winnow.cache.trial import Trial
from winnow.cache.while_graphed import step_graphs
from winnow.evaluate import answer_reader
from winnow.evaluate.answer_reader import AnswerReader
from winnow.evaluate.decoding import decode
from winnow.evaluate.lookup import ALIKE, FEWEST, PromptLookup
from winnow.evaluate.sampling import Sampling, most_likely
from winnow.kernels import native
from winnow.models.loading import use_own_layers

pytestmark = pytest.mark.usefixtures("one_thread", "several_at_once")
METHOD = "adakv(window=4) @ 12"


def searched(tokens: list[int], most: int, alike: int) -> list[int]:
    """Tokens behind the last two: of the latest 32 places, the last of those with the most of 8 in common.

    None where these are fewer than `alike`.
    """
    count, found = len(tokens), []
    for place in range(2, count):
        common = 0
        while common < min(8, place) and tokens[place - 1 - common] == tokens[count - 1 - common]:
            common += 1
        if common >= 2:
            found.append((common, place))
    common, place = max(found[-32:], default=(0, 0))
    if common < alike:
        return []
    behind = list(tokens)
    for each in range(most):
        behind.append(behind[place + each])
    return behind[count:]


@given(st.lists(st.integers(0, 3), max_size=90), st.integers(0, 90), st.integers(0, 20), st.integers(2, 8))
def test_candidates_are_what_followed_the_last_tokens(tokens: list[int], said: int, room: int, alike: int) -> None:
    lookup = PromptLookup(tokens[said:], 9)
    behind = tokens[said:]
    for token in tokens[:said]:
        lookup.say(token)
        behind.append(token)
    assert lookup.candidates(room, alike) == searched(behind, min(FEWEST, room), alike)


def test_more_are_given_while_all_of_them_are_right() -> None:
    lookup = PromptLookup([1, 2, 3] * 20, 15)
    sizes = []
    for right in (3, 7, 15, 2, 3):
        given_now = lookup.candidates(99)
        sizes.append(len(given_now))
        lookup.learn(len(given_now), right)
    assert sizes == [3, 7, 15, 15, 3]
    assert len(lookup.candidates(99)) == 7
    assert lookup.candidates(0) == []


def test_no_more_than_asked_for() -> None:
    lookup = PromptLookup([1, 2, 3] * 20, 2)
    lookup.learn(2, 2)
    assert lookup.candidates(99) == [1, 2]


class Passes:
    """Counts the tokens of a model's forward passes."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.tokens: list[int] = []
        model.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, model: Any, args: Any, kwargs: dict[str, Any]) -> None:
        self.tokens.append(kwargs["input_ids"].shape[1])


def ready(
    family: str, method: str = METHOD, window: int | None = None, **options: Any
) -> tuple[PreTrainedModel, CompressedCache, Tensor, Tensor]:
    """A model, a cache that holds a prompt full of repeats, the prompt and the logits behind it."""
    model = build(family) if window is None else build(family, sliding_window=window)
    use_own_layers(model)
    model.set_attn_implementation("winnow")
    ids = prompt(length=9, seed=3).repeat(1, 5)
    cache = CompressedCache(model, method, **options)
    with torch.no_grad():
        logits = model(input_ids=ids, past_key_values=cache).logits[0, -1]
    return model, cache, ids, logits


def written(
    family: str,
    most: int,
    count: int = 40,
    sampling: Sampling | None = None,
    stops: frozenset[int] = frozenset(),
    **options: Any,
) -> tuple[list[int], CompressedCache, list[int], Tensor]:
    """An answer, its cache, the tokens of each pass, and the logits of what comes next."""
    model, cache, ids, logits = ready(family, **options)
    passes = Passes(model)
    lookup = PromptLookup(ids[0].tolist(), most) if most else None
    choice = most_likely if sampling is None else sampling.choice()
    answer = list(decode(model, cache, logits, count, stops, choice, lookup))
    sizes = list(passes.tokens)
    with torch.no_grad():
        after = model(input_ids=torch.tensor([[5, 6]]), past_key_values=cache).logits
    return answer, cache, sizes, after


LINEAR = ("qwen3_next", "qwen3_5_text", "olmo_hybrid", "lfm2", "falcon_h1", "granitemoehybrid", "nemotron_h")
WINDOWS = ("gemma2", "gemma3_text", "gemma3n_text", "olmo3", "cohere2", "exaone4", "gpt_oss")


@pytest.mark.parametrize(
    ("family", "method"),
    each_value(["llama", "qwen3", "deepseek_v3", *WINDOWS, *LINEAR], [METHOD, "full", "kvec @ 20"]),
)
def test_an_answer_is_what_it_is_without(family: str, method: str) -> None:
    expected, plain, single, after = written(family, 0, method=method)
    found, cache, sizes, behind = written(family, 7, method=method)
    assert set(single) == {1}
    assert found == expected
    assert cache.get_seq_length() == plain.get_seq_length()
    torch.testing.assert_close(behind, after, rtol=0, atol=1e-4)
    assert max(sizes) > 1 or family in LINEAR
    assert sizes[0] == 1


@pytest.mark.parametrize(("family", "window"), each_value(WINDOWS, [2, 5, 40]))
def test_windows_take_what_was_right(family: str, window: int) -> None:
    expected, plain, _, after = written(family, 0, count=100, window=window)
    found, cache, sizes, behind = written(family, 15, count=100, window=window)
    assert found == expected
    assert max(sizes) > 1
    assert [each.cumulative_length for each in cache.sliding_layers()] == [
        each.cumulative_length for each in plain.sliding_layers()
    ]
    torch.testing.assert_close(behind, after, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("family", "surely", "fold_every"), each_value(LINEAR, [2, 6], [None, 16]))
def test_states_are_put_back_and_right_tokens_read_again(family: str, surely: int, fold_every: int | None) -> None:
    expected, plain, _, after = written(family, 0, count=100, fold_every=fold_every)
    with mock.patch.object(answer_reader, "SURELY", surely):
        found, cache, sizes, behind = written(family, 15, count=100, fold_every=fold_every)
    assert found == expected
    assert max(sizes) > 1 or surely > 2
    assert cache.get_seq_length() == plain.get_seq_length()
    torch.testing.assert_close(behind, after, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("several", "alike"), [(True, 2), (False, 6)])
def test_more_tokens_must_have_come_before_where_several_take_as_long_as_their_products(
    several: bool, alike: int
) -> None:
    expected, _, _, _ = written("llama", 0, count=120)
    asked = mock.Mock(side_effect=PromptLookup.candidates)
    with (
        mock.patch.object(answer_reader, "multiplies_several", return_value=several),
        mock.patch.object(PromptLookup, "candidates", lambda self, room, alike: asked(self, room, alike)),
    ):
        found, _, sizes, _ = written("llama", 15, count=120)
    assert found == expected
    assert {call.args[2] for call in asked.call_args_list} == {alike}
    assert max(sizes) > 1


def test_candidates_that_are_right_save_passes() -> None:
    # A random model soon repeats itself.
    expected, _, single, _ = written("llama", 0, count=120)
    found, _, sizes, _ = written("llama", 15, count=120)
    assert found == expected
    assert len(sizes) < len(single) // 2
    assert max(sizes) == 16


def test_samples_are_the_same_for_a_seed() -> None:
    sampling = Sampling(0.05, 0.9, seed=5)
    expected, _, _, after = written("llama", 0, sampling=sampling)
    found, _, sizes, behind = written("llama", 7, sampling=sampling)
    assert found == expected
    assert max(sizes) > 1
    torch.testing.assert_close(behind, after, rtol=0, atol=1e-4)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 17])
def test_the_cache_holds_no_more_than_was_said(count: int) -> None:
    expected, plain, _, _ = written("llama", 0, count=count)
    found, cache, _, _ = written("llama", 7, count=count)
    assert found == expected
    assert cache.get_seq_length() == plain.get_seq_length()


def test_a_stop_among_the_candidates_ends_the_answer() -> None:
    free, _, _, _ = written("llama", 0, count=120)
    stop = free[-1]
    expected, plain, _, after = written("llama", 0, count=120, stops=frozenset([stop]))
    found, cache, _, behind = written("llama", 7, count=120, stops=frozenset([stop]))
    assert found == expected
    assert stop not in found
    assert cache.get_seq_length() == plain.get_seq_length()
    torch.testing.assert_close(behind, after, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("case", "every"),
    each_value(
        [
            ("llama", METHOD),
            ("llama", "full+bits(8)"),
            ("llama", "h2o @ 12"),
            ("llama", "snapkv(window=8) @ 12"),
            ("deepseek_v3", METHOD),
        ],
        [1, 2, 5, 16],
    ),
)
def test_answers_are_folded_where_they_are_without(case: tuple[str, str], every: int) -> None:
    family, method = case
    expected, plain, _, after = written(family, 0, method=method, fold_every=every)
    found, cache, sizes, behind = written(family, 15, method=method, fold_every=every)
    assert found == expected
    assert 1 < max(sizes) <= every or every == 1
    ours, theirs = cache.stats(), plain.stats()
    assert (ours.tokens_seen, ours.prefix_bytes) == (theirs.tokens_seen, theirs.prefix_bytes)
    torch.testing.assert_close(behind, after, rtol=0, atol=1e-4)


@pytest.mark.parametrize("said", range(1, 12))
def test_whoever_stops_listening_leaves_the_cache_as_the_answer_is(said: int) -> None:
    model, cache, ids, logits = ready("llama")
    tokens = decode(model, cache, logits, 40, frozenset(), lookup=PromptLookup(ids[0].tolist(), 7))
    for _ in range(said):
        next(tokens)
    tokens.close()
    assert cache.get_seq_length() == ids.shape[1] + said - 1


@pytest.mark.parametrize(("case", "layer"), each_value([*product(["llama", "gemma3_text"], [None, 16])], [0, 1, -1]))
def test_candidates_of_a_pass_that_is_broken_off_are_taken_back(case: tuple[str, int | None], layer: int) -> None:
    family, fold_every = case
    expected, *_ = written(family, 0, fold_every=fold_every)
    model, cache, ids, logits = ready(family, fold_every=fold_every)
    said: list[int] = []

    def stop(module: Any, given: tuple[Tensor, ...], output: Any) -> None:
        if given[0].shape[1] > 1:
            raise KeyboardInterrupt

    hook = model.model.layers[layer].register_forward_hook(stop)
    lookup = PromptLookup(ids[0].tolist(), 7)
    with pytest.raises(KeyboardInterrupt):
        said.extend(decode(model, cache, logits, 40, frozenset(), lookup=lookup))
    hook.remove()
    cache.take_back_unfinished()
    assert cache.get_seq_length() == ids.shape[1] + len(said) - 1
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([said[-1:]]), past_key_values=cache).logits[0, -1]
    rest = list(decode(model, cache, logits, 40 - len(said), frozenset(), lookup=lookup))
    assert said + rest == expected


class Wrong(PromptLookup):
    """Candidates that a random model does not choose."""

    def candidates(self, room: int, alike: int = ALIKE) -> list[int]:
        return [5, 6, 7][:room]


class Once:
    """An interrupt before a function is called for the first time with arguments of a certain kind."""

    def __init__(self, function: Any, when: Any) -> None:
        self._function = function
        self._when = when
        self.came = False

    def __call__(self, *given: Any, **named: Any) -> Any:
        if not self.came and self._when(*given):
            self.came = True
            raise KeyboardInterrupt
        return self._function(*given, **named)


@pytest.mark.parametrize(
    ("case", "wrong"), each_value([*product(["llama", "gemma3_text", "qwen3_next"], [None, 16])], [1, 2, 3])
)
def test_candidates_are_taken_back_where_that_was_interrupted(case: tuple[str, int | None], wrong: int) -> None:
    family, fold_every = case
    model, cache, ids, logits = ready(family, fold_every=fold_every)
    expected = copy.deepcopy(cache)
    end = Once(CompressedCache.end_trial, lambda cache, wrong, *_: wrong)
    words: list[int] = []
    with mock.patch.object(CompressedCache, "end_trial", lambda *given: end(*given)), pytest.raises(KeyboardInterrupt):
        words.extend(decode(model, cache, logits, 40, frozenset(), lookup=Wrong(ids[0].tolist(), wrong)))
    assert end.came
    goes_on_as(model, cache, expected, words)


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_an_interrupt_may_come_at_any_line_of_a_trial(family: str) -> None:
    model, held, ids, logits = ready(family, fold_every=16)
    code = (inspect.getfile(AnswerReader), inspect.getfile(Trial))

    def interrupted(places: Places) -> tuple[CompressedCache, list[int]]:
        cache, words = copy.deepcopy(held), []
        lookup = PromptLookup(ids[0].tolist(), 3)
        with suppress(Halt), lines_halting(places, code):
            words.extend(decode(model, cache, logits, 24, frozenset(), lookup=lookup))
        return cache, words

    places = Places()
    interrupted(places)
    for at in range(0, places.passed, 47):
        cache, words = interrupted(Places(at))
        assert not cache.compression.on_trial
        goes_on_as(model, cache, copy.deepcopy(held), words)


@pytest.mark.parametrize("family", LINEAR)
def test_a_pass_that_reads_right_tokens_again_may_be_interrupted_behind_its_layers(family: str) -> None:
    # What is folded depends on the queries of all tokens.
    model, cache, ids, logits = ready(family, "h2o @ 12", fold_every=16)
    expected = copy.deepcopy(cache)
    answer = list(decode(model, copy.deepcopy(cache), logits, 40, frozenset()))

    class Partly(PromptLookup):
        def candidates(self, room: int, alike: int = ALIKE) -> list[int]:
            said = len(self._tokens) - ids.shape[1]
            return [answer[said], 5, 6][:room]

    def stop(module: Any, given: tuple[Tensor, ...], output: Tensor) -> None:
        if given[0].shape[1] == 2 and cache.compression.on_trial:
            raise KeyboardInterrupt

    hook = model.lm_head.register_forward_hook(stop)
    words: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        words.extend(decode(model, cache, logits, 40, frozenset(), lookup=Partly(ids[0].tolist(), 3)))
    hook.remove()
    goes_on_as(model, cache, expected, words)


def goes_on_as(model: PreTrainedModel, cache: CompressedCache, expected: CompressedCache, words: list[int]) -> None:
    """Holds a cache, which has read some of an answer's words, against one that reads all of them one by one."""
    cache.take_back_unfinished()
    read = cache.get_seq_length() - expected.get_seq_length()
    assert read >= 0
    with torch.no_grad():
        for number, token in enumerate([*words, *prompt(length=20, seed=9)[0].tolist()]):
            plain = model(input_ids=torch.tensor([[token]]), past_key_values=expected).logits
            if number < read:
                continue
            found = model(input_ids=torch.tensor([[token]]), past_key_values=cache).logits
            torch.testing.assert_close(found, plain, rtol=0, atol=1e-4)
            for one, other in zip(cache.compressed_layers(), expected.compressed_layers(), strict=True):
                if one.recent is not None and other.recent is not None:
                    torch.testing.assert_close(one.recent.row(0), other.recent.row(0), rtol=0, atol=1e-4)


@pytest.mark.skipif(native.library() is None, reason="the native library was not built")
@pytest.mark.parametrize(
    ("family", "fold_every"),
    [
        *((family, every) for family in ("llama", "qwen3", "phi3", "mixtral", "deepseek_v3") for every in (None, 64)),
        *((family, None) for family in (*WINDOWS, *LINEAR) if family != "granitemoehybrid"),  # it repeats little
    ],
)
def test_passes_on_trial_are_replayed(family: str, fold_every: int | None) -> None:
    expected, _, _, after = written(family, 0, count=160, fold_every=fold_every)
    graphs = []

    class Watched(HostGraph):
        def __init__(self, work: Any, device: Any) -> None:
            super().__init__(work, device)
            self.replays = 0
            graphs.append(self)

        def replay(self) -> None:
            super().replay()
            self.replays += 1

    # Logits of a replay are held against an ordinary pass, here to the bit.
    with (
        mock.patch.object(graphed, "HostGraph", Watched),
        mock.patch.object(while_graphed, "_SAME", 0.0),
        mock.patch.object(answer_reader, "SURELY", ALIKE),
    ):
        found, _, sizes, behind = written(family, 3, count=160, fold_every=fold_every)
    assert found == expected
    torch.testing.assert_close(behind, after, rtol=0, atol=1e-4)
    several = [each.replays for each in graphs if each.output.shape[1] > 1]
    assert sum(several) > 3
    # Hooks of the model see every pass, however it was done.
    assert sum(size > 1 for size in sizes) >= sum(several)


@pytest.mark.skipif(native.library() is None, reason="the native library was not built")
@pytest.mark.parametrize("family", LINEAR)
@pytest.mark.parametrize("size", [2, 5])
def test_right_tokens_come_into_states_from_the_memory_of_a_replay(family: str, size: int) -> None:
    model, cache, _, _ = ready(family)
    other = copy.deepcopy(cache)
    trial, again, taken = Trial(cache), 0, []

    class Watched(StateCalls):
        def take(self, tokens: int) -> None:
            super().take(tokens)
            taken.append(tokens)

    def read(tokens: list[int], into: CompressedCache) -> Tensor:
        logits: Tensor = model(input_ids=torch.tensor([tokens]), past_key_values=into).logits
        return logits

    with torch.no_grad(), mock.patch.object(host_graph, "StateCalls", Watched), step_graphs(model):
        read([3], cache)
        for number in range(3 * size):
            tokens, wrong = prompt(length=size, seed=number)[0].tolist(), number % size
            with trial.passing():
                read(tokens, cache)
            if again := trial.end(size, wrong):
                with trial.passing():
                    read(tokens[:again], cache)
                trial.end(again, 0)
        assert not again
        assert not trial.reads_again
    with torch.no_grad():
        read([3], other)
        for number in range(3 * size):
            for token in prompt(length=size, seed=number)[0, : size - number % size].tolist():
                read([token], other)
        torch.testing.assert_close(read([5], cache), read([5], other), rtol=0, atol=1e-5)
    assert set(taken) == set(range(1, size + 1))


@pytest.mark.skipif(native.library() is None, reason="the native library was not built")
@pytest.mark.parametrize("family", LINEAR)
@pytest.mark.parametrize("ends", [True, False])
def test_the_memory_of_a_replay_is_there_until_its_right_tokens_are_taken(family: str, ends: bool) -> None:
    model, cache, ids, logits = ready(family)
    expected, other = copy.deepcopy(cache), copy.deepcopy(cache)
    memory: list[list[ref[Tensor]]] = []
    taken: list[ref[StateCalls]] = []

    class Held(HostGraph):
        def __init__(self, work: Any, device: Any) -> None:
            super().__init__(work, device)
            memory.append([ref(each) for each in self._recording._alive if isinstance(each, Tensor)])

    class Watched(StateCalls):
        def take(self, tokens: int) -> None:
            assert any(all(each() is not None for each in some) for some in memory)
            super().take(tokens)
            taken.append(ref(self))

    with mock.patch.object(graphed, "HostGraph", Held), mock.patch.object(host_graph, "StateCalls", Watched):
        tokens = decode(model, cache, logits, 60, frozenset(), lookup=Wrong(ids[0].tolist(), 3))
        said = [next(tokens) for _ in range(20)]
        taken.clear()
        if not ends:
            with torch.no_grad():
                model(input_ids=torch.tensor([[5]]), past_key_values=other)  # which lets go of this one's graphs
            said.append(next(tokens))
        tokens.close()
    assert taken
    assert all(each() is None for each in taken)  # and no longer
    with torch.no_grad():
        for token in said[:-1]:
            model(input_ids=torch.tensor([[token]]), past_key_values=expected)
        after, plain = (model(input_ids=torch.tensor([[5]]), past_key_values=each).logits for each in (cache, expected))
    torch.testing.assert_close(after, plain, rtol=0, atol=1e-4)


@pytest.mark.skipif(native.library() is None, reason="the native library was not built")
def test_where_they_come_into_others_they_are_read_again() -> None:
    expected, _, _, after = written("qwen3_5_text", 0, count=100)
    with (
        mock.patch.object(LinearStates, "are_as", return_value=False),
        mock.patch.object(answer_reader, "SURELY", ALIKE),
    ):
        found, cache, sizes, behind = written("qwen3_5_text", 3, count=100)
    assert found == expected
    torch.testing.assert_close(behind, after, rtol=0, atol=1e-4)
    assert cache.compression.state_calls is None
    assert max(sizes) == 4
