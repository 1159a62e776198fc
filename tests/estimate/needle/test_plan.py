"""Haystacks cut to the lengths of prompts."""

from __future__ import annotations

import pytest

from support.needles import BUNDLED, small_plan
from winnow.estimate.errors import NeedleError
from winnow.estimate.needle.examples import ProseExamples, TaskExamples
from winnow.estimate.needle.haystack import (
    TaskHaystack,
    TextHaystack,
)
from winnow.estimate.needle.plan import NeedlePlan, cut
from winnow.estimate.needle.prompt import build_prompt
from winnow.estimate.needle.settings import NeedleKind, Settings
from winnow.tasks.haystack.splitting import split_sentences


@pytest.mark.parametrize("length", [0, 40, 150, 700, 2048])
def test_prompts_come_close_to_their_length_from_below(length):
    for example in TaskExamples().examples(NeedleKind.R2, 1):
        sentences = cut(BUNDLED.tokenizer, example, TaskHaystack(1), length, answering(30))
        assert not any(word in sentence.lower().split() for sentence in sentences for word in example.avoid)
        sizes = {
            len(build_prompt(BUNDLED.tokenizer, example, sentences, before).tokens) + 30
            for before in (0, len(sentences) // 2, len(sentences))
        }
        assert max(sizes) <= max(length, 30 + 60)
        assert min(sizes) > length - 25


def answering(tokens):
    """Settings with room for an answer."""
    return Settings(NeedleKind.R, (), (), max_new_tokens=tokens)


def test_a_short_haystack_is_repeated_only_when_asked_to():
    example = ProseExamples().examples(NeedleKind.R, 0)[0]
    text = " ".join(TaskHaystack(0).sentences(120, frozenset()))
    example = TaskExamples().examples(NeedleKind.R, 0)[0]
    with pytest.raises(NeedleError, match=r"too short: it has \d+ tokens, but a prompt of 400 needs \d+ .*--repeat"):
        cut(BUNDLED.tokenizer, example, TextHaystack(text, "mine"), 400, answering(20))
    repeated = cut(BUNDLED.tokenizer, example, TextHaystack(text, "mine", repeat=True), 400, answering(20))
    assert repeated[: len(split_sentences(text))] == split_sentences(text)
    assert len(cut(BUNDLED.tokenizer, example, TextHaystack(text, "mine"), 130, answering(20))) > 3
    endless = TextHaystack(text.replace(".", " and"), "mine", repeat=True)
    with pytest.raises(NeedleError, match="sentence 1 of the haystack is too long"):
        cut(BUNDLED.tokenizer, example, TextHaystack(text.replace(".", " and") * 9, "mine"), 900, answering(20))
    assert len(cut(BUNDLED.tokenizer, example, endless, 900, answering(20))) > 3
    with pytest.raises(NeedleError, match="no sentences"):
        TextHaystack(" \n", "blank")


@pytest.mark.parametrize(("examples", "lengths", "depths"), [(0, (0,), (0.5,)), (2, (), (0.5,)), (2, (0,), ())])
def test_a_plan_without_runs_is_told(examples, lengths, depths):
    chosen = TaskExamples(examples).examples(NeedleKind.R, 0)
    told = f"{examples} examples at {len(lengths)} lengths and {len(depths)} depths give no runs"
    with pytest.raises(NeedleError, match=told):
        NeedlePlan(BUNDLED.tokenizer, Settings(NeedleKind.R, lengths, depths), chosen, TaskHaystack(0))


@pytest.mark.parametrize("lengths", [(0,), (0, 120, 400), (300, 301)])
@pytest.mark.parametrize("depths", [1, 4])
def test_places_are_all_runs_and_any_first_of_them_a_fair_sample(lengths, depths):
    plan = small_plan(NeedleKind.ER, lengths, depths)
    places = plan.places
    assert sorted(cell for place in places for cell in place.cells) == plan.cells
    assert len({(place.example, place.lengths, place.before) for place in places}) == len(places)
    assert places[0].lengths[-1] == max(lengths)
    # Every example and length once before any comes a second time, and so on.
    pairs = [(place.example, place.lengths) for place in places]
    counts = {pair: pairs.count(pair) for pair in pairs}
    seen = dict.fromkeys(counts, 0)
    for pair in pairs:
        seen[pair] += 1
        assert all(seen[pair] - 1 <= seen[other] or seen[other] == counts[other] for other in counts)


def test_places_know_their_tokens_before_they_are_built():
    plan = small_plan(NeedleKind.R2, (0, 300), 5)
    for place in plan.places:
        job = plan.job(place)
        assert job.cells == place.cells
        assert job.example is plan.examples[place.example]
        assert len(job.prompt.tokens) == pytest.approx(place.tokens, abs=4)


def test_the_first_places_are_at_different_depths():
    plan = small_plan(NeedleKind.ER, (200, 300, 400, 500), 4)
    assert len({place.depths for place in plan.places[:8]}) > 2


def test_lengths_without_room_for_another_sentence_are_one_prompt():
    plan = small_plan(NeedleKind.ER, (0, 10, 300, 301), 4)
    bare, filled = (0, 10), (300, 301)
    assert {place.lengths for place in plan.places} == {bare, filled}
    assert {place.depths for place in plan.places if place.lengths == bare} == {plan.settings.depths}
    texts = {(job.example, tuple(job.prompt.tokens)) for job in map(plan.job, plan.places)}
    assert len(texts) == len(plan.places) == 2 * (1 + 4)
    assert sorted(cell for place in plan.places for cell in place.cells) == plan.cells
