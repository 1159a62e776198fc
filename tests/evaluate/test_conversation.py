"""Conversations in one cache, against prompts that are read whole."""

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

import winnow
from support.asked import DOCUMENT
from support.families import STARTING_ANEW, build
from support.interruptions import Halt, Places, halting
from winnow.bundled import MODEL_PATH
from winnow.cache import compress
from winnow.commands.compress import document_start
from winnow.errors import PromptError
from winnow.evaluate.conversation import Beginning, Conversation, tokens_behind
from winnow.evaluate.decoding import decode, prefill, stop_tokens
from winnow.evaluate.sampling import most_likely
from winnow.evaluate.turns import Subject, Turn, conversation_text
from winnow.models import open_model

pytestmark = pytest.mark.usefixtures("one_thread")

GENERATION = "{% if add_generation_prompt %}<s> the : {% endif %}"
ROLES = (
    "{% for m in messages %}<s> {{ {'user': 'a', 'assistant': 'the'}[m.role] }} : {{ m.content }} . {% endfor %}"
    + GENERATION
)
FORGETFUL = (
    "{% for m in messages %}<s> {% if m.role == 'assistant' %}red{% else %}{{ m.content }}{% endif %} . {% endfor %}"
    + GENERATION
)
"""Writes answers in another way once they are history."""
QUESTIONS = [question.text for question in DOCUMENT.questions]
LIMIT = 8


def with_template(template):
    tokenizer = open_model(MODEL_PATH).tokenizer
    tokenizer.chat_template = template
    return tokenizer


def begun(model, tokenizer, method, fold_every=None, document=DOCUMENT.text):
    """A conversation about a document that was compressed before."""
    start = document_start(tokenizer, document)
    context = compress(model, start, winnow.method(method), fold_every=fold_every)
    return Conversation(model, tokenizer, Subject(document), Beginning(start, context.cache))


def ask(conversation, question, limit=LIMIT):
    prompt = conversation.prompt(question)
    return conversation.answer(prompt, conversation.read(prompt), limit, most_likely)


def read_whole(model, tokenizer, turns, question):
    """The answer to the same conversation in a single prompt, every token dense."""
    text = conversation_text(tokenizer, Subject(DOCUMENT.text), turns, question)
    ids = tokenizer(text, add_special_tokens=tokenizer.chat_template is None, return_tensors="pt").input_ids
    cache = winnow.CompressedCache(model, winnow.method("full"))
    tokens = list(decode(model, cache, prefill(model, ids, cache), LIMIT, stop_tokens(model)))
    return tokenizer.decode(tokens, skip_special_tokens=True), ids[0].tolist()


@pytest.mark.parametrize("template", [None, ROLES, FORGETFUL])
def test_turns_are_answered_as_if_all_was_read_at_once(model, template):
    tokenizer = with_template(template)
    conversation = begun(model, tokenizer, "full")
    for question in QUESTIONS[:3]:
        expected, tokens = read_whole(model, tokenizer, conversation.turns, question)
        prompt = conversation.prompt(question)
        assert prompt.tokens == tokens
        reply = conversation.answer(prompt, conversation.read(prompt), LIMIT, most_likely)
        assert reply.text == expected.strip()
        assert not reply.interrupted


@pytest.mark.parametrize(("template", "again"), [(None, False), (ROLES, False), (FORGETFUL, True)])
def test_only_what_is_new_is_read(model, template, again):
    tokenizer = with_template(template)
    conversation = begun(model, tokenizer, "adakv @ 32")
    start = conversation.cache.get_seq_length()
    ask(conversation, QUESTIONS[0])
    held = conversation.cache
    prompt = conversation.prompt(QUESTIONS[1])
    assert (prompt.cache is held) != again
    assert len(prompt.unread) == len(prompt.tokens) - (start if again else held.get_seq_length())
    assert len(prompt.unread) < 60
    ask(conversation, QUESTIONS[1])
    assert (conversation.cache is held) != again


def of_sentences(*merges):
    """A tokenizer like Llama's, which puts a blank before every text, also before the next turn of a conversation."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abc.", *("".join(pair) for pair in merges)]
    vocabulary = {each: place for place, each in enumerate(pieces)}
    made = Tokenizer(models.BPE(vocabulary, list(merges), unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")


@pytest.mark.parametrize(("known", "rest"), [("ab.", "\nc a"), ("ab", " c"), ("ab ", "c"), ("č", "\n\n"), ("a", ". b")])
def test_what_comes_behind_a_text_has_no_blank_before_it(known, rest):
    for tokenizer in (of_sentences(), of_sentences(("▁", "a"), ("▁", "c")), open_model(MODEL_PATH).tokenizer):
        before, whole = (tokenizer(text, add_special_tokens=False).input_ids for text in (known, known + rest))
        if whole[: len(before)] == before:
            assert tokens_behind(tokenizer, known, known + rest) == whole[len(before) :]


def test_what_cannot_be_told_apart_is_read_anew():
    assert tokens_behind(of_sentences(("a", "b"), (".", "b"), ("c", "b")), "c", "cb") == []
    assert tokens_behind(of_sentences(("a", "b"), ("c", "b")), "c", "cb") != []


@pytest.mark.parametrize("joined", [False, True])
def test_turns_of_a_tokenizer_that_puts_a_blank_before_texts(joined):
    """Their tokens are those of the whole conversation, whether they go on behind what is held or are read anew."""
    end = "c" if joined else "."
    tokenizer = of_sentences(*[("a", end), (".", end), (end, end)] if joined else [])
    template = "{% for m in messages %}[{{ m.content }}END{% endfor %}{% if add_generation_prompt %}[{% endif %}"
    tokenizer.chat_template = template.replace("END", end)
    model = build("llama", vocab_size=len(tokenizer))
    model.set_attn_implementation("winnow")
    empty = Beginning(torch.zeros((1, 0), dtype=torch.int64), lambda: winnow.CompressedCache(model, "full"))
    conversation = Conversation(model, tokenizer, Subject(), empty)
    conversation.turns = [Turn("a", "b")]
    said = tokenizer.convert_tokens_to_ids(end)
    for question in ("a b.", "b a"):
        prompt = conversation.prompt(question)
        held = prompt.cache.get_seq_length()
        assert prompt.tokens == tokenizer(prompt.text, add_special_tokens=False).input_ids
        conversation.answer(prompt, conversation.read(prompt), 2, lambda _: said)
    assert bool(held) != joined


def test_models_that_start_anew_read_every_turn_from_the_beginning():
    tokenizer = with_template(ROLES)
    model = build("jamba", **STARTING_ANEW["jamba"], vocab_size=len(tokenizer))
    model.set_attn_implementation("winnow")
    empty = Beginning(torch.zeros((1, 0), dtype=torch.int64), lambda: winnow.CompressedCache(model, "full"))
    conversation = Conversation(model, tokenizer, Subject(DOCUMENT.text), empty)
    for question in QUESTIONS[:2]:
        expected, _ = read_whole(model, tokenizer, conversation.turns, question)
        assert conversation.prompt(question).cache.get_seq_length() == 0
        assert ask(conversation, question).text == expected.strip()


def test_an_answer_that_the_limit_ends_is_read_to_its_end(model):
    tokenizer = with_template(ROLES)
    conversation = begun(model, tokenizer, "full")
    ask(conversation, QUESTIONS[0], limit=1)
    # The last token was said, but never given to the model.
    prompt = conversation.prompt(QUESTIONS[1])
    assert prompt.unread[0] == prompt.tokens[prompt.cache.get_seq_length()]
    assert prompt.tokens == read_whole(model, tokenizer, conversation.turns, QUESTIONS[1])[1]
    expected, _ = read_whole(model, tokenizer, conversation.turns, QUESTIONS[1])
    assert ask(conversation, QUESTIONS[1]).text == expected.strip()


class Interrupted(Halt, KeyboardInterrupt):
    """Ctrl-C, at a place of the test's choice."""


@pytest.mark.parametrize("at", [0, 5, 23, 44])
def test_an_interrupted_answer_counts_as_far_as_it_was_said(model, at):
    tokenizer = with_template(ROLES)

    def wordy(logits):
        """The most likely word; the model's own answers are short."""
        return int(logits.index_fill(0, torch.tensor(tokenizer.all_special_ids), -torch.inf).argmax())

    conversation = begun(model, tokenizer, "full")
    prompt = conversation.prompt(QUESTIONS[0])
    logits = conversation.read(prompt)
    with halting(model, Places(at, Interrupted), lines=False):
        reply = conversation.answer(prompt, logits, LIMIT, wordy)
    assert reply.interrupted
    assert 1 <= reply.tokens < LIMIT
    held = conversation.cache
    expected, tokens = read_whole(model, tokenizer, conversation.turns, QUESTIONS[1])
    after = conversation.prompt(QUESTIONS[1])
    assert after.tokens == tokens
    assert after.cache is held
    assert conversation.answer(after, conversation.read(after), LIMIT, most_likely).text == expected.strip()


@pytest.mark.parametrize("at", [3, 30, 55])
def test_an_interrupt_while_the_answer_is_folded(model, tokenizer, at):
    conversation = begun(model, tokenizer, "adakv @ 32", fold_every=2)
    prompt = conversation.prompt(QUESTIONS[0])
    logits = conversation.read(prompt)
    with halting(model, Places(at, Interrupted), lines=False):
        reply = conversation.answer(prompt, logits, LIMIT, lambda _: 9)
    assert reply.interrupted
    after = conversation.prompt(QUESTIONS[1])
    assert after.cache is prompt.cache
    conversation.answer(after, conversation.read(after), LIMIT, most_likely)
    assert conversation.cache.get_seq_length() >= len(after.tokens)
    assert max(conversation.cache.stats().tail_tokens) <= 2


def test_after_an_interrupted_question_the_cache_is_begun_again(model):
    tokenizer = with_template(None)
    conversation = begun(model, tokenizer, "full")
    ask(conversation, QUESTIONS[0])
    held = conversation.cache
    with pytest.raises(Interrupted), halting(model, Places(9, Interrupted), lines=False):
        ask(conversation, QUESTIONS[1])
    assert conversation.prompt(QUESTIONS[1]).cache is not held
    expected, _ = read_whole(model, tokenizer, conversation.turns, QUESTIONS[1])
    assert [turn.question for turn in conversation.turns] == QUESTIONS[:1]
    assert ask(conversation, QUESTIONS[1]).text == expected.strip()


def test_forgetting_leaves_the_document(model, tokenizer):
    conversation = begun(model, tokenizer, "adakv @ 32")
    first = ask(conversation, QUESTIONS[0]).text
    ask(conversation, QUESTIONS[1])
    conversation.forget()
    assert conversation.turns == []
    assert ask(conversation, QUESTIONS[0]).text == first


def test_turns_can_be_taken_over(model, tokenizer):
    one = begun(model, tokenizer, "full")
    ask(one, QUESTIONS[0])
    start = document_start(tokenizer, DOCUMENT.text)
    context = compress(model, start, winnow.method("full"))
    two = Conversation(model, tokenizer, Subject(DOCUMENT.text), Beginning(start, context.cache), one.turns)
    assert ask(two, QUESTIONS[1]).text == ask(one, QUESTIONS[1]).text


def test_a_conversation_without_a_document(model, tokenizer):
    empty = Beginning(
        torch.zeros((1, 0), dtype=torch.int64), lambda: winnow.CompressedCache(model, "adakv @ 32", fold_every=16)
    )
    conversation = Conversation(model, tokenizer, Subject(), empty)
    for _ in range(2):
        ask(conversation, f"{DOCUMENT.text} {QUESTIONS[0]}")
    stats = conversation.cache.stats()
    assert stats.tokens_seen > 2 * 150
    assert max(max(layer) for layer in stats.slots) < 150


def test_memory_stays_bounded_where_turns_are_folded(model, tokenizer):
    folding, growing = begun(model, tokenizer, "snapkv @ 32", fold_every=16), begun(model, tokenizer, "snapkv @ 32")
    for question in QUESTIONS * 3:
        for each in (folding, growing):
            ask(each, question)
    held, grown = (each.cache.stats() for each in (folding, growing))
    # Less than a turn and what is folded at a time is dense.
    assert held.tail_tokens[0] < 16 + 40 < grown.tail_tokens[0]
    assert {slots for layer in held.slots for slots in layer} == {32}


def test_what_does_not_begin_as_the_document_is_refused(model, tokenizer):
    conversation = begun(model, tokenizer, "full")
    conversation.subject = Subject("The lemon is red.")
    with pytest.raises(PromptError, match="Begin the question with a word"):
        conversation.prompt("Why?")
    assert conversation.turns == []
