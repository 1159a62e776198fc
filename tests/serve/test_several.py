"""Several answers to one prompt, which is read once, against the same answers alone."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch

from support.asked import DOCUMENT
from support.families import FAMILIES, LONGROPE
from support.serving import (
    DRAWN,
    QUESTIONS,
    about,
    alone,
    alone_in_turn,
    beginning,
    chatted,
    idle,
    small,
    text_of,
    told,
    wanted,
)
from support.turns import one_in
from winnow.cache import compress
from winnow.cache.compressed import CompressedCache
from winnow.commands.compress import document_start
from winnow.evaluate.sampling import GREEDY, Sampling
from winnow.serve.asked import Asked, Begun, Failed, Finished, Said
from winnow.serve.beginnings import Prompt, prompt_of
from winnow.serve.refusals import Refused

pytestmark = pytest.mark.usefixtures("one_thread")


class Several:
    """A request for several answers, and what was told of it."""

    def __init__(self, engine, start, prompt, answers, most=8, sampling=GREEDY, at=None, stops=()):
        """at: called with itself at every event, in the engine's thread."""
        self.events, self.ended, self._at = [], threading.Event(), at
        self.asked = Asked(start, prompt, sampling, most, stops, self._tell, answers)
        engine.ask(self.asked)

    def _tell(self, event):
        self.events.append(event)
        if isinstance(event, Failed) or len(self.of(Finished)) == self.asked.answers:
            self.ended.set()
        if self._at is not None:
            self._at(self)

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]

    def wait(self):
        """Itself, once all is told."""
        assert self.ended.wait(60), self.events
        return self

    @property
    def texts(self):
        said = self.of(Said)
        numbers = range(self.asked.answers)
        return ["".join(event.text for event in said if event.number == number).strip() for number in numbers]


def several(engine, start, text, answers, **options):
    return Several(engine, start, Prompt(text, False, None), answers, **options)


@pytest.fixture
def passes(model):
    """Shapes of the tokens of every pass of the model."""
    found = []

    def noted(module, arguments, named):
        found.append(tuple(named["input_ids"].shape))

    hook = model.register_forward_pre_hook(noted, with_kwargs=True)
    yield found
    hook.remove()


@pytest.mark.parametrize(("method", "fold"), [("full", None), ("adakv @ 24", 16), ("snapkv @ 16", None)])
def test_every_answer_is_the_one_it_is_alone(method, fold, source, model, engine_of):
    """Greedily all are the same; drawn they are those of requests with the seeds behind the first."""
    engine, start, text = engine_of(source, model, rows=4), beginning(model, method, fold=fold), text_of(60, 1)
    greedy = several(engine, start, text, 3, most=20).wait()
    drawn = several(engine, start, text, 4, most=20, sampling=DRAWN).wait()
    assert greedy.texts == [alone(source, model, method, text, 20, GREEDY, fold)] * 3
    seeds = [replace(DRAWN, seed=3 + number) for number in range(4)]
    assert drawn.texts == [alone(source, model, method, text, 20, seed, fold) for seed in seeds]
    assert len(set(drawn.texts)) > 1
    assert several(engine, start, text, 4, most=20, sampling=DRAWN).wait().texts == drawn.texts
    assert {event.number for event in drawn.of(Finished)} == {0, 1, 2, 3}


def test_a_prompt_is_read_once(source, model, engine_of, passes):
    engine, start = engine_of(source, model), beginning(model)
    found = several(engine, start, text_of(60, 1), 3, most=5).wait()
    (begun,) = found.of(Begun)
    # What is said last is not read any more.
    assert passes == [(1, begun.prompt_tokens), *[(3, 1)] * 4]
    assert [event.tokens for event in found.of(Finished)] == [5, 5, 5]


def test_answers_share_what_was_read(source, model, engine_of, monkeypatch):
    """The compressed prompt is there once, however many answers there are."""
    held, joined = [], CompressedCache.joined.__func__

    def noted(cls, caches):
        made = joined(cls, caches)
        prefixes = [layer.distinct_prefixes() for layer in made.compressed_layers()]
        held.append((made.stats().rows, {len(each) for each in prefixes}))
        return made

    monkeypatch.setattr(CompressedCache, "joined", classmethod(noted))
    engine, start = engine_of(source, model), beginning(model, "adakv @ 24")
    several(engine, start, text_of(60, 1), 4, most=3).wait()
    assert held == [(4, {1})]


def test_answers_without_a_seed_differ(source, model, engine_of):
    engine, start = engine_of(source, model), beginning(model)
    found = several(engine, start, text_of(20, 1), 4, most=20, sampling=Sampling(1.5)).wait()
    assert len(set(found.texts)) > 1


def test_several_beside_others(source, model, engine_of):
    """Some join rows that are there, and others join them; they end one by one."""
    engine, start = engine_of(source, model, rows=6, shortest_piece=16), beginning(model)
    first = told(engine, start, text_of(90, 1), most=40)
    first.first.wait(60)
    found = several(engine, start, text_of(30, 2), 3, most=25, sampling=DRAWN)
    last = told(engine, start, text_of(50, 3), most=10)
    seeds = [replace(DRAWN, seed=3 + number) for number in range(3)]
    assert found.wait().texts == [alone(source, model, "full", text_of(30, 2), 25, seed) for seed in seeds]
    assert first.wait().text.strip() == alone(source, model, "full", text_of(90, 1), 40)
    assert last.wait().text.strip() == alone(source, model, "full", text_of(50, 3), 10)


def test_answers_of_different_length(source, model, engine_of):
    """The one that a text ends leaves; the others go on."""
    engine, start, text = engine_of(source, model), beginning(model), text_of(50, 5)
    seeds = [replace(DRAWN, seed=3 + number) for number in range(3)]
    whole = [alone(source, model, "full", text, 20, seed) for seed in seeds]
    (stop,) = [word for word in whole[1].split() if not any(word in other for other in (whole[0], whole[2]))][:1]
    found = several(engine, start, text, 3, most=20, sampling=DRAWN, stops=(stop,)).wait()
    assert found.texts == [whole[0], whole[1][: whole[1].index(stop)].strip(), whole[2]]
    assert {event.number: event.reason for event in found.of(Finished)}[1] == "stop"


def test_more_than_fit_are_refused(source, model, engine_of):
    engine, start = engine_of(source, model, rows=2), beginning(model)
    with pytest.raises(Refused, match=r"n=3 is more than the 2 rows .*--rows") as refused:
        several(engine, start, "the old", 3)
    assert (refused.value.field, refused.value.status) == ("n", 400)
    assert len(several(engine, start, "the old", 2).wait().of(Finished)) == 2


def test_answers_wait_until_there_is_room_for_all(source, model, engine_of):
    """Nobody overtakes them meanwhile."""
    engine, start, ended, before = engine_of(source, model, rows=3), beginning(model), [], []
    first = told(engine, start, text_of(9, 1), most=30)
    first.first.wait(60)
    found = several(engine, start, text_of(9, 2), 3, at=lambda _: ended.append(first.ended.is_set()))
    later = told(engine, start, text_of(9, 3), at=lambda _: before.append(len(found.of(Finished))))
    for each in (first, found, later):
        each.wait()
    assert all(ended)
    assert min(before) == 3
    assert found.texts == [alone(source, model, "full", text_of(9, 2))] * 3


def test_who_goes_away_ends_all(source, model, engine_of):
    engine, start = engine_of(source, model), beginning(model)
    other = told(engine, start, text_of(30, 1), most=30)
    gone = several(
        engine, start, text_of(9, 3), 3, most=1000, sampling=DRAWN,
        at=lambda told: engine.cancel(told.asked) if len(told.events) == 8 else None,
    )  # fmt: skip
    assert other.wait().text.strip() == alone(source, model, "full", text_of(30, 1), 30)
    idle(engine)
    assert len(gone.events) < 12
    assert not gone.of(Finished)


def test_who_goes_away_does_not_take_the_place_of_others(source, model, engine_of):
    """At most one of the answers that nobody waits for is held."""
    engine, start = engine_of(source, model, rows=8, conversations=4), beginning(model)
    first = told(engine, start, text_of(9, 1)).wait()
    for seed in range(2):
        several(
            engine, start, text_of(9, 3 + seed), 8, most=1000, sampling=Sampling(1.5, seed=seed),
            at=lambda told: engine.cancel(told.asked) if len(told.events) == 30 else None,
        )  # fmt: skip
        idle(engine)
    assert idle(engine)["conversations_held"] == 3
    assert told(engine, start, f"{text_of(9, 1)}{first.text} the").wait().begun.held_tokens > 0


def test_an_error_is_told_once(source, model, engine_of):
    engine, start = engine_of(source, model), beginning(model)

    def broken(module, arguments, named):
        if named["input_ids"].shape[0] == 3:
            raise OSError("so it goes")

    hook = model.register_forward_pre_hook(broken, with_kwargs=True)
    try:
        found = several(engine, start, text_of(20, 1), 3).wait()
        idle(engine)
    finally:
        hook.remove()
    (failed,) = found.of(Failed)
    assert "OSError" in str(failed.problem)


def test_a_choice_that_fails_ends_all(source, model, engine_of):
    class Broken(Sampling):
        def choice(self):
            count = iter(range(self.seed))

            def choose(logits):
                next(count)
                return int(logits.argmax())

            return choose

    engine, start = engine_of(source, model), beginning(model)
    found = several(engine, start, text_of(20, 2), 3, most=20, sampling=Broken(seed=4)).wait()
    counts = idle(engine)
    (failed,) = found.of(Failed)
    assert "StopIteration" in str(failed.problem)
    assert found.events[-1] is failed
    assert counts["answering"] == 0


def test_a_server_that_stops_tells_once(source, model, engine_of):
    engine, start = engine_of(source, model), beginning(model)
    reached = threading.Event()
    found = several(engine, start, text_of(20, 1), 3, most=1000, sampling=DRAWN, at=lambda _: reached.set())
    reached.wait(60)
    assert engine.close()
    assert [event.problem.status for event in found.of(Failed)] == [503]


def test_every_answer_is_held(source, model, engine_of):
    """A client goes on with the one it likes."""
    engine, start = engine_of(source, model), beginning(model, "adakv @ 32", fold=16)
    said = f"{DOCUMENT.text} {QUESTIONS[0]}"
    prompt = prompt_of(source.tokenizer, start, wanted(said))
    found = Several(engine, start, prompt, 3, most=12, sampling=Sampling(1.2, seed=1)).wait()
    assert len(set(found.texts)) == 3
    assert idle(engine)["conversations_held"] == 3
    for text in found.texts:
        more = chatted(engine, source, start, said, text, QUESTIONS[1]).wait()
        assert more.begun.held_tokens >= found.of(Begun)[0].prompt_tokens


def test_answers_that_are_the_same_are_held_once(source, model, engine_of):
    engine, start = engine_of(source, model), beginning(model)
    said = [f"{DOCUMENT.text} {QUESTIONS[0]}"]
    prompt = prompt_of(source.tokenizer, start, wanted(*said))
    found = Several(engine, start, prompt, 3).wait()
    assert idle(engine)["conversations_held"] == 1
    expected = alone_in_turn(source, model, "full", [*said, QUESTIONS[1]])
    assert set(found.texts) == {expected[0]}
    more = Several(engine, start, prompt_of(source.tokenizer, start, wanted(*said, expected[0], QUESTIONS[1])), 2)
    assert more.wait().texts == [expected[1]] * 2
    assert more.of(Begun)[0].held_tokens > 100


def test_a_document_is_asked_for_several(source, model, engine_of):
    context = compress(model, document_start(source.tokenizer, DOCUMENT.text), "adakv @ 96")
    engine, start = engine_of(source, model), about(context, DOCUMENT.text)
    prompt = prompt_of(source.tokenizer, start, wanted(QUESTIONS[0]))
    assert Several(engine, start, prompt, 3, most=20).wait().texts == [DOCUMENT.questions[0].answer] * 3


@pytest.mark.parametrize("family", one_in(2, FAMILIES, at=1))
def test_every_family_gives_several(family, source, engine_of):
    """Also those whose rows are not joined: each has a fork of what was read."""
    try:
        own, model = small(source, family)
    except (KeyError, ValueError):
        pytest.skip("not in this transformers")
    engine, start = engine_of(own, model, shortest_piece=16), beginning(model, "adakv @ 24")
    drawn = Sampling(2.0, seed=5)
    found = several(engine, start, text_of(30, 1), 2, most=4, sampling=drawn).wait()
    expected = [alone(own, model, "adakv @ 24", text_of(30, 1), 4, replace(drawn, seed=5 + each)) for each in range(2)]
    assert found.texts == expected


def test_several_where_frequencies_depend_on_the_length(source, engine_of):
    own, model = small(source, "phi3", rope_parameters=LONGROPE, original_max_position_embeddings=64)
    engine, start = engine_of(own, model), beginning(model)
    found = several(engine, start, text_of(50, 1), 2, most=30).wait()
    assert found.texts == [alone(own, model, "full", text_of(50, 1), 30)] * 2


def test_the_first_seed_is_the_request_s(source, model, engine_of):
    """The largest that a request may have leaves room for those behind it."""
    engine, start = engine_of(source, model), beginning(model)
    for seed in (-(2**63), 2**63 - 1):
        found = several(engine, start, text_of(9, 1), 2, most=6, sampling=Sampling(1.5, seed=seed)).wait()
        assert found.texts[0] == alone(source, model, "full", text_of(9, 1), 6, Sampling(1.5, seed=seed))
    assert torch.Generator().manual_seed(2**64 - 1).initial_seed() == 2**64 - 1
