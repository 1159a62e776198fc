"""Models that take single tokens by graphs for a while: loops, `generate` and what no graph can hold."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock
from weakref import ref

import pytest
import torch
from torch import Tensor, nn

from support.families import prompt
from support.graphed import ON_GPU, PROMPT, Pair, Place, Places, back, places, places_here
from winnow import CacheError, CompressedCache, step_graphs
from winnow.cache import graphed, while_graphed
from winnow.cache.context import compress
from winnow.evaluate.asked_together import answers_after
from winnow.evaluate.batch import AnswerStart, decode_batch
from winnow.evaluate.decoding import decode, prefill
from winnow.kernels import native

pytestmark = pytest.mark.usefixtures("one_thread")
METHOD = "adakv(window=4) @ 12"
NEW = 9


@pytest.fixture(scope="module", params=["device", "CPU"])
def both_places(request: pytest.FixtureRequest) -> Iterator[Places]:
    with places_here() if request.param == "CPU" else places(kernels=False) as found:
        yield found


class Counted:
    """Graphs that were captured and replays of theirs."""

    def __init__(self, places: Places) -> None:
        self.captured = self.replayed = 0
        self.kind = places.capture
        self.before = 2 if places.rehearses else 1
        """Tokens before one is replayed."""

    def capture(self, work: Any, device: torch.device) -> Any:
        graph = self.kind(work, device)
        self.captured += 1
        replay = graph.replay

        def counted() -> None:
            self.replayed += 1
            replay()

        graph.replay = counted  # type: ignore[method-assign]
        return graph


@pytest.fixture
def graphs(both_places: Places, monkeypatch: pytest.MonkeyPatch) -> Counted:
    """Graphs of this test, whose models are not known to be fit."""
    counted = Counted(both_places)
    monkeypatch.setattr(graphed, name_of(both_places), counted.capture)
    monkeypatch.setattr(while_graphed, "_fit", type(while_graphed._fit)())
    return counted


def name_of(both_places: Places) -> str:
    """The graphs' class, as the module of decoders knows it."""
    return "CudaGraph" if both_places.rehearses else "HostGraph"


def continued(place: Place, cache: CompressedCache, count: int, token: int = 5, **given: Any) -> list[list[int]]:
    """The most likely tokens of every row, one after another, the first given."""
    rows = len(cache.compressed_layers()[0].prefixes)
    tokens, found = torch.full((rows,), token), []
    for _ in range(count):
        tokens = place.run(cache, tokens[:, None], **given).argmax(-1)
        found.append(tokens.tolist())
    return found


def same_tokens(both: Pair, count: int = NEW) -> None:
    """Checks that a model within `step_graphs` says what the other one does without."""
    expected = continued(both.here, both.expected, count)
    with step_graphs(both.device.model):
        assert continued(both.device, both.cache, count) == expected
    both.same()


@pytest.mark.parametrize("method", [METHOD, "snapkv(window=4) @ 12", "h2o @ 12"])
@pytest.mark.parametrize("rows", [1, 3])
def test_single_tokens_are_replayed_from_the_third_on(
    both_places: Places, graphs: Counted, method: str, rows: int
) -> None:
    both = both_places.pair(method, rows=rows)
    same_tokens(both)
    # The second replay is done again in the ordinary way, which leaves tables and memory as they were.
    assert (graphs.captured, graphs.replayed) == (1, NEW - graphs.before)
    assert list(while_graphed._fit.values()) == [True]


def test_a_model_that_is_known_is_not_looked_at_again(both_places: Places, graphs: Counted) -> None:
    same_tokens(both_places.pair())
    with mock.patch.object(CompressedCache, "crop", side_effect=AssertionError):
        same_tokens(both_places.pair())
    assert graphs.captured == 2


def test_folds_are_ordinary_passes(both_places: Places, graphs: Counted) -> None:
    both = both_places.pair("snapkv(window=4) @ 12", rows=2, fold_every=5)
    same_tokens(both, count=14)
    assert graphs.captured > 1


def test_several_tokens_and_single_ones_take_turns(both_places: Places, graphs: Counted) -> None:
    both = both_places.pair()
    with step_graphs(both.device.model):
        for _ in range(2):
            expected = continued(both.here, both.expected, 6)
            assert continued(both.device, both.cache, 6) == expected
            both.ordinary(prompt(length=3))
    assert graphs.replayed


def test_generate_says_the_same(both_places: Places, graphs: Counted) -> None:
    ids, said = prompt(2, PROMPT), []
    for place in (both_places.here, both_places.device):
        cache, graphs.replayed = CompressedCache(place.model, METHOD), 0
        with step_graphs(place.model):
            tokens = place.model.generate(place.to(ids), past_key_values=cache, max_new_tokens=NEW, do_sample=False)
        said.append(back(tokens).tolist())
    assert said[0] == said[1]
    assert graphs.replayed == NEW - 1 - graphs.before


def test_rows_that_ended_are_padded_while_others_go_on(both_places: Places, graphs: Counted) -> None:
    ids, mask, said = prompt(2, PROMPT), torch.ones(2, PROMPT, dtype=torch.int64), []
    mask[1, :5] = 0

    def written(place: Place, **ends: int) -> list[list[int]]:
        given = {"attention_mask": place.to(mask), "past_key_values": CompressedCache(place.model, METHOD)}
        with step_graphs(place.model):
            tokens = place.model.generate(place.to(ids), **given, max_new_tokens=NEW, do_sample=False, **ends)
        found: list[list[int]] = back(tokens).tolist()
        return found

    early = written(both_places.here)[0][PROMPT + 2]
    said = [written(place, eos_token_id=early, pad_token_id=0) for place in (both_places.here, both_places.device)]
    assert said[0] == said[1]
    assert said[0][0][-1] == 0
    assert graphs.replayed


def test_rows_in_another_order_are_other_rows(both_places: Places, graphs: Counted) -> None:
    both = both_places.pair(rows=3)
    with step_graphs(both.device.model):
        for order in ([2, 0, 1], [1, 1, 0], [0, 2]):
            expected = continued(both.here, both.expected, 5)
            assert continued(both.device, both.cache, 5) == expected
            both.each(lambda cache, rows=order: cache.reorder_cache(torch.tensor(rows)))  # type: ignore[misc]
    assert graphs.captured == 3


def test_the_forward_pass_is_the_models_own_afterwards(both_places: Places) -> None:
    model = both_places.device.model
    with step_graphs(model):
        assert "forward" in vars(model)
        replaying = model.forward
        with step_graphs(model):
            assert model.forward is replaying
        assert model.forward is replaying
    assert "forward" not in vars(model)
    own = mock.Mock(wraps=model.forward)
    with mock.patch.object(model, "forward", own), pytest.raises(KeyboardInterrupt):
        with step_graphs(model):
            assert model.forward is not own
            raise KeyboardInterrupt
        assert model.forward is own


def test_users_that_overlap_leave_the_forward_pass_to_the_last_of_them(both_places: Places) -> None:
    model = both_places.device.model
    first, second = step_graphs(model), step_graphs(model)
    first.__enter__()
    replaying = model.forward
    second.__enter__()
    first.__exit__(None, None, None)
    assert model.forward is replaying
    second.__exit__(None, None, None)
    assert "forward" not in vars(model)


def test_a_forward_pass_that_others_put_over_it_stays(both_places: Places) -> None:
    model = both_places.device.model
    with step_graphs(model):
        theirs = mock.Mock(wraps=model.forward)
        model.forward = theirs
    assert model.forward is theirs
    del model.forward


def test_hooks_of_the_model_see_every_token_once(both_places: Places, graphs: Counted) -> None:
    both, seen = both_places.pair(), []
    hook = both.device.model.register_forward_hook(lambda module, given, found: seen.append(found.logits.shape[1]))
    try:
        same_tokens(both)
    finally:
        hook.remove()
    assert seen == [1] * NEW
    assert graphs.replayed


def test_a_decoder_of_ones_own_is_as_outside(both_places: Places, graphs: Counted) -> None:
    both = both_places.pair()
    with step_graphs(both.device.model):
        both.graphed()
        assert both.steps(5) == [False, False, True, True, True]
    assert not graphs.captured


def test_the_memory_of_another_caches_graph_is_given_back_before_a_prompt(both_places: Places, graphs: Counted) -> None:
    both, place = both_places.pair(), both_places.device
    held = ref(both.cache)
    with step_graphs(place.model):
        continued(place, both.cache, NEW)
        assert graphs.replayed
        del both
        freed = []
        layer = place.model.model.layers[0]
        hook = layer.register_forward_hook(lambda *_: freed.append(gc.collect() >= 0 and held() is None))
        try:
            place.run(CompressedCache(place.model, METHOD), prompt(1, PROMPT))
        finally:
            hook.remove()
    assert freed == [True]


@pytest.mark.parametrize("reason", ["no kernels", "the environment", "a compiler", "hidden states", "no head"])
def test_models_are_left_alone(both_places: Places, monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    model = both_places.here.model if reason == "no kernels" else both_places.device.model
    if reason == "no kernels":
        monkeypatch.setattr(native, "library", lambda: None)
    if reason == "hidden states":
        monkeypatch.setattr(model.config, "output_hidden_states", True)
    if reason == "no head":
        model = model.model
    if reason == "the environment":
        monkeypatch.setenv(while_graphed.OFF, "0")
    if reason == "a compiler":
        monkeypatch.setattr(model, "_compiled_call_impl", lambda: None)
    with step_graphs(model):
        assert "forward" not in vars(model)


def test_caches_that_take_turns_have_no_graphs(both_places: Places, graphs: Counted) -> None:
    one, other = both_places.pair(), both_places.pair()
    with step_graphs(one.device.model):
        for _ in range(6):
            for both in (one, other):
                expected = continued(both.here, both.expected, 1)
                assert continued(both.device, both.cache, 1) == expected
    assert not graphs.captured


@pytest.mark.parametrize("given", [{"output_hidden_states": True}, {"return_dict": False}, {"use_cache": None}])
def test_what_asks_for_more_than_logits_gets_it(both_places: Places, graphs: Counted, given: dict[str, Any]) -> None:
    both = both_places.pair()
    token = both.device.to(torch.tensor([[5]]))
    with step_graphs(both.device.model), torch.no_grad():
        for _ in range(5):
            found = both.device.model(token, past_key_values=both.cache, **given)
            if given.get("output_hidden_states"):
                assert len(found.hidden_states) == 3
            if given.get("return_dict") is False:
                assert isinstance(found, tuple)
    assert bool(graphs.captured) is (given == {"use_cache": None})


@pytest.mark.parametrize("given", [{"position_ids": torch.zeros(3, 1, 1, dtype=torch.int64)}, {}])
def test_positions_that_a_model_may_count_otherwise_are_left_to_it(
    both_places: Places, graphs: Counted, given: dict[str, Tensor]
) -> None:
    """Those of images have three numbers; without any, some models count what the mask says."""
    both = both_places.pair()
    asked = mock.Mock(return_value=SimpleNamespace(logits=both.device.to(torch.zeros(1, 1, 97))))
    mask = torch.ones(1, PROMPT + 1, dtype=torch.int64)
    with mock.patch.object(both.device.model, "forward", asked), step_graphs(both.device.model):
        for _ in range(4):
            both.device.run(both.cache, torch.tensor([[5]]), attention_mask=mask, **given)
    assert asked.call_count == 4
    assert not graphs.captured


def test_gradients_training_and_other_masks_go_the_ordinary_way(both_places: Places, graphs: Counted) -> None:
    both = both_places.pair()
    model, token = both.device.model, both.device.to(torch.tensor([[5]]))
    with step_graphs(model):
        for _ in range(5):
            with torch.no_grad(), pytest.raises(CacheError, match="4-D attention mask"):
                mask = both.device.to(torch.zeros(1, 1, 1, PROMPT + 1))
                model(token, attention_mask=mask, past_key_values=both.cache)
            both.cache.take_back_unfinished()
        model.train()
        try:
            with torch.no_grad():
                for _ in range(5):
                    model(token, past_key_values=both.cache)
        finally:
            model.eval()
    assert not graphs.captured


@contextmanager
def host_counts(model: Any) -> Iterator[None]:
    """Within, an embedding is scaled by a number that the host counts: a graph has the one of its capture."""
    calls = [0]

    def scaled(self: nn.Embedding, tokens: Tensor) -> Tensor:
        calls[0] += 1
        return plain(self, tokens) * (1 + calls[0])

    kind = type(model.model.embed_tokens)
    plain = kind.forward
    with mock.patch.object(kind, "forward", scaled):
        yield


def test_a_model_whose_graph_is_wrong_goes_on_without(both_places: Places, graphs: Counted) -> None:
    model, ids = both_places.device.model, prompt(1, PROMPT)
    with step_graphs(model), host_counts(model):
        cache = CompressedCache(model, METHOD)
        both_places.device.run(cache, ids)
        with pytest.warns(UserWarning, match="gave other logits"):
            continued(both_places.device, cache, NEW)
    assert list(while_graphed._fit.values()) == [False]
    assert (graphs.captured, graphs.replayed) == (1, 2)
    with step_graphs(model):
        assert "forward" not in vars(model)


@pytest.mark.parametrize("number", [float("-inf"), float("nan")])
def test_logits_that_are_no_finite_numbers_are_compared(both_places: Places, graphs: Counted, number: float) -> None:
    """Models of padded vocabularies give -inf for tokens that there are not."""
    both, heads = both_places.pair(), [both_places.here.model.lm_head, both_places.device.model.lm_head]

    class Padded(nn.Linear):
        seventh: Tensor

        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs).index_fill(-1, self.seventh, number)

    try:
        for head in heads:
            head.__class__, head.seventh = Padded, torch.tensor([7], device=head.weight.device)
        expected = [both.here.run(both.expected, torch.tensor([[5]])) for _ in range(NEW)]
        with step_graphs(both.device.model):
            found = [both.device.run(both.cache, torch.tensor([[5]])) for _ in range(NEW)]
    finally:
        for head in heads:
            head.__class__ = nn.Linear
    assert (graphs.captured, graphs.replayed) == (1, NEW - graphs.before)
    assert list(while_graphed._fit.values()) == [True]
    torch.testing.assert_close(found[-1].cpu(), expected[-1], rtol=0, atol=1e-4, equal_nan=True)


@contextmanager
def waiting(model: Any) -> Iterator[None]:
    """Within, MLPs look at what they found."""
    kind = type(model.model.layers[1].mlp)
    plain = kind.forward

    def looking(self: nn.Module, hidden_states: Tensor) -> Tensor:
        found: Tensor = plain(self, hidden_states)
        return found * (2 if float(found.sum()) > 1e9 else 1)

    with mock.patch.object(kind, "forward", looking):
        yield


def test_a_model_that_waits_for_the_device_goes_on_without(both_places: Places, graphs: Counted) -> None:
    both = both_places.pair()
    with waiting(both.device.model):
        same_tokens(both)
    assert not graphs.captured


@pytest.mark.skipif(ON_GPU, reason="memory runs out in the stand-in's graphs")
def test_a_graph_for_which_there_is_no_memory_is_done_without(both_places: Places) -> None:
    both = both_places.pair()
    with mock.patch.object(graphed, name_of(both_places), side_effect=torch.OutOfMemoryError("no room")):
        same_tokens(both)


def test_a_pass_that_fails_is_not_done_again(both_places: Places, graphs: Counted) -> None:
    both = both_places.pair()
    layer = type(both.device.model.model.layers[1].mlp)
    failing = mock.Mock(side_effect=torch.OutOfMemoryError("too much"))
    with (
        step_graphs(both.device.model),
        mock.patch.object(layer, "forward", failing),
        pytest.raises(torch.OutOfMemoryError),
    ):
        continued(both.device, both.cache, 1)
    assert failing.call_count == 1


def rows_of(place: Place, lengths: tuple[int, ...]) -> list[AnswerStart]:
    found = []
    for seed, length in enumerate(lengths):
        cache = CompressedCache(place.model, METHOD)
        found.append(AnswerStart(cache, prefill(place.model, prompt(1, length, seed=seed), cache)))
    return found


def test_answers_one_by_one_and_side_by_side_use_them(both_places: Places, graphs: Counted) -> None:
    said: list[list[list[int]]] = []
    for place in (both_places.here, both_places.device):
        rows = rows_of(place, (PROMPT, PROMPT, PROMPT + 3))
        alone = list(decode(place.model, rows[0].cache, rows[0].logits, NEW, frozenset()))
        replayed_alone = graphs.replayed
        # One that ends early leaves the batch.
        stops = frozenset([alone[4]])
        together = decode_batch(place.model, rows[1:], NEW, stops)
        said.append([alone, *(each.tokens for each in together)])
    assert said[0] == said[1]
    assert replayed_alone
    assert graphs.replayed > replayed_alone


def test_questions_that_are_asked_together_use_them(both_places: Places, graphs: Counted) -> None:
    said = []
    questions = [prompt(1, 4, seed=1)[0], prompt(1, 6, seed=2)[0]]
    for place in (both_places.here, both_places.device):
        context = compress(place.model, place.to(prompt(1, PROMPT)), METHOD)
        said.append([each.tokens for each in answers_after(place.model, [context], questions, NEW, frozenset())[0]])
    assert said[0] == said[1]
    assert graphs.replayed


def test_no_warning_is_given_otherwise(both_places: Places, graphs: Counted) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same_tokens(both_places.pair())
    assert graphs.replayed
