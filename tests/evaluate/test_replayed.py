"""Methods that have a prompt read twice, wherever prompts are answered: one replay, the same slots, honest times."""

from __future__ import annotations

import pytest

import winnow
from support.asked import DOCUMENT, encoded
from winnow.cache.replay import replay, words_in
from winnow.cache.replay_words import ReplayWords
from winnow.errors import MethodError, PromptError
from winnow.evaluate.answering import ask_afterwards, compress_document, finish, read_with_question
from winnow.evaluate.prompts import document_tokens
from winnow.evaluate.runner import evaluate, grid
from winnow.evaluate.shared import DenseReader
from winnow.tasks.prompt_style import PromptStyle

pytestmark = pytest.mark.usefixtures("one_thread")

METHODS = [
    winnow.method(name)
    for name in ("kvzip(chunk=100) @ 20", "kvzip(chunk=100)+uniform+bits(8) @ 10%", "kvzip-plus @ 20", "snapkv @ 20")
]


def kept(cache):
    return [[head.tolist() for head in cache.kept(layer)] for layer in range(len(cache.layers))]


@pytest.fixture
def replays(monkeypatch):
    """Scorers that had a prompt read again."""
    found = []

    def counted(cache, tokens, replayer, words):
        found.append(replayer)
        return replay(cache, tokens, replayer, words)

    monkeypatch.setattr("winnow.evaluate.shared.replay", counted)
    return found


def test_a_prompt_is_repeated_once_for_every_scorer(model, source, replays):
    prompt, words = encoded(source), source.tokenizer
    dense = DenseReader(model, METHODS, words=words).read(prompt)
    made = [dense.compress(method) for method in METHODS]
    assert replays == [METHODS[0].scorer, METHODS[2].scorer]
    for method, each in zip(METHODS, made, strict=True):
        own = read_with_question(model, method, prompt, words=words)
        assert kept(each.cache) == kept(own.cache)
        assert finish(model, words, own, 4).method == method
    first, second, third, fourth = made
    assert first.remembered_seconds == 0
    assert second.remembered_seconds > 0
    assert second.seconds > first.seconds / 4
    assert third.remembered_seconds == 0
    assert fourth.seconds < min(first.seconds, second.seconds, third.seconds)


def test_a_replay_counts_once_for_every_method(model, source):
    prompt = encoded(source)[:, :60]
    dense = DenseReader(model, METHODS[:2], words=source.tokenizer).read(prompt)
    dense.compress(METHODS[0])
    dense._replayed = {key: each._replace(seconds=1000.0) for key, each in dense._replayed.items()}
    assert 1000 < dense.compress(METHODS[1]).seconds < 2000


def test_prompts_that_begin_alike_share_their_prefill(model, source):
    prompts = [encoded(source, index) for index in range(2)]
    shared = DenseReader(model, METHODS[:1], words=source.tokenizer).read_start(prompts)
    for prompt in prompts:
        own = read_with_question(model, METHODS[0], prompt, words=source.tokenizer)
        assert kept(shared.dense(prompt).compress(METHODS[0]).cache) == kept(own.cache)


def test_questions_are_answered_from_what_a_replay_kept(model, source):
    questions = [question.text for question in DOCUMENT.questions[:2]]
    prompts = [encoded(source, index) for index in range(2)]
    start = document_tokens(source.tokenizer, DOCUMENT.text, prompts)
    document = compress_document(model, METHODS[0], prompts[0][:, :start], words=source.tokenizer)
    expected = [finish(model, source.tokenizer, ask_afterwards(model, document, prompt), 8) for prompt in prompts]
    ask = {"method": METHODS[0], "max_new_tokens": 8}
    found = winnow.generate(model, source.tokenizer, DOCUMENT.text, questions, question_aware=False, **ask)
    assert [each.text for each in found] == [each.text for each in expected]
    assert [each.stats.slots for each in found] == [each.stats.slots for each in expected]
    seen = winnow.generate(model, source.tokenizer, DOCUMENT.text, questions, **ask)
    for each, prompt in zip(seen, prompts, strict=True):
        assert each.question_seen
        assert each.prompt_tokens == prompt.shape[1]
        assert sum(map(sum, each.stats.slots)) == 20 * 16
        assert 0 < each.compress_seconds < each.prefill_seconds


def test_trials_may_have_a_prompt_repeated(model, source):
    trials = list(
        evaluate(model, source.tokenizer, DOCUMENT.text, DOCUMENT.questions[:2], grid(["kvzip", "snapkv"], [16]), 4)
    )
    assert [trial.method.name for trial in trials] == ["kvzip"] * 2 + ["snapkv"] * 2


def test_without_words_nothing_is_repeated(model, source):
    dense = DenseReader(model, METHODS).read(encoded(source))
    assert dense.compress(METHODS[3]).cache
    with pytest.raises(MethodError, match="tokenizer"):
        dense.compress(METHODS[0])


class Templated:
    """A tokenizer with a chat template, as far as the words of a replay go."""

    def __init__(self, tokenizer, template: str | None):
        self._tokenizer = tokenizer
        self.chat_template = template

    def __call__(self, text, **options):
        return self._tokenizer(text, **options)

    def apply_chat_template(self, messages, **options):
        self._tokenizer.chat_template = self.chat_template
        try:
            return self._tokenizer.apply_chat_template(messages, **options)
        finally:
            self._tokenizer.chat_template = None


def test_words_are_those_of_the_chat_template(source):
    tokenizer = source.tokenizer
    template = "{% for m in messages %}question : {{ m.content | trim }} . answer :{% endfor %}"
    words = ReplayWords.of(Templated(tokenizer, template))
    assert tokenizer.decode(words.answer).split() == [".", "answer", ":"]
    plain = ReplayWords.of(Templated(tokenizer, template), chat_template=False)
    assert plain.answer.tolist() == tokenizer("\n", add_special_tokens=False).input_ids
    assert words_in(tokenizer, True) is tokenizer
    for refused in (
        "{{ raise_exception('no') }}",
        "{% for m in messages %}{{ m.content | replace('#', '') }}{% endfor %}",
    ):
        with pytest.raises(PromptError, match="keydiff"):
            ReplayWords.of(Templated(tokenizer, refused))


def test_plain_prompts_are_repeated_in_plain_words(model, source):
    style = PromptStyle(chat_template=False)
    found = winnow.generate(
        model, source.tokenizer, DOCUMENT.text, "Why?", method=METHODS[0], style=style, max_new_tokens=2
    )
    assert found.method == METHODS[0]
