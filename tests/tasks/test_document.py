"""The generated documents answer their questions, and fit the bundled tokenizer."""

from __future__ import annotations

import hashlib
import json
import random
import re
from itertools import pairwise

import pytest

from support.judged import worth
from winnow.tasks import QUESTION_KINDS, Document, Question, format_prompt, generate_document, lead_in
from winnow.tasks import vocabulary as v
from winnow.tasks.document import FactCounts, write_story
from winnow.tasks.prompts import normalize

LENGTHS = (128, 256, 512, 1024, 2048)


def statements(document: Document) -> list[str]:
    return [normalize(sentence) for sentence in document.text.split(".")]


def complete(key: str, document: Document) -> str:
    """A key with the only value that any statement of the document gives for it."""
    found = [m[1] for s in statements(document) if (m := re.search(rf"{key} (\w+)$", s))]
    assert len(found) == 1, (key, found)
    return f"{key} {found[0]}"


def favorite(document: Document, attribute: str, person: str) -> str:
    key = f"the favorite {attribute} of {person} is"
    return complete(key, document)


def solve(document: Document, question: Question) -> str:
    """Answer a question from the text alone, without the generator's knowledge."""
    text = normalize(question.text)
    if question.kind == "single":
        kind, place = re.fullmatch(r"what is the (\w+) of the (\w+)", text).groups()
        key = f"the {kind} of the {place} is"
        return complete(key, document)
    if question.kind == "multikey":
        return favorite(document, *re.fullmatch(r"what is the favorite (\w+) of (\w+)", text).groups())
    if question.kind == "reasoning":
        pattern = r"what is the favorite (\w+) of the (\w+) one between (\w+) and (\w+)"
        attribute, word, one, other = re.fullmatch(pattern, text).groups()
        key = f"between {one} and {other} the {word} one is"
        found = complete(key, document)
        winner = found.split()[-1]
        assert winner in (one, other)
        return f"{found}, {favorite(document, attribute, winner)}"
    name = re.fullmatch(r"what is the value of variable (\w+)", text)[1]
    steps = []
    while name in v.VARIABLES:
        steps.append(complete(f"variable {name} equals", document))
        name = steps[-1].split()[-1]
    return ", ".join(steps)


def test_word_lists_are_disjoint():
    words = [w for w in v.VOCABULARY if w not in v.SPECIAL_TOKENS]
    assert len(words) == len(set(words))
    parts = (v.NAMES, v.ATTRIBUTES, v.VALUES, v.SECRETS, v.PLACES, v.VARIABLES, v.COLORS, v.OBJECTS)
    assert sum(map(len, parts)) == len(set().union(*parts))


def test_same_seed_gives_the_same_document_and_another_seed_another():
    assert generate_document(7) == generate_document(7)
    assert generate_document(7).text != generate_document(8).text


@pytest.mark.parametrize("tokens", LENGTHS)
def test_answers_follow_from_the_text_alone(tokens):
    asked = set()
    for seed in range(6):
        document = generate_document(seed, tokens)
        for question in document.questions:
            assert worth("exact_match", solve(document, question), f"{lead_in(question.text)} {question.answer}")
            asked.add(question.kind)
    assert asked == set(QUESTION_KINDS)


@pytest.mark.parametrize("tokens", LENGTHS)
def test_prompt_and_answer_fit_and_the_text_fills_the_room(tokens, tokenizer):
    for seed in range(3):
        document = generate_document(seed, tokens)
        for question in document.questions:
            prompt = tokenizer(format_prompt(document.text, question.text)).input_ids
            answer = tokenizer(question.answer, add_special_tokens=False).input_ids
            assert len(prompt) + len(answer) + 1 <= tokens
            assert len(prompt) > 0.85 * tokens - 32


def test_every_kind_has_the_number_of_questions_asked_for():
    document = generate_document(3, 1024, questions_per_kind=5)
    for kind in QUESTION_KINDS:
        assert sum(question.kind == kind for question in document.questions) == 5


def test_multikey_questions_have_similar_keys_around_them_and_single_ones_do_not():
    document = generate_document(5, 1024)
    for question in document.questions:
        words = normalize(question.text).split()
        if question.kind == "multikey":
            assert document.text.count(f"favorite {words[4]}") > 1
        if question.kind == "single":
            assert document.text.count(f"the {words[3]} of the") + document.text.count(f"The {words[3]} of the") == 1


def test_prompts_are_made_of_known_words_and_read_back(tokenizer):
    document = generate_document(11, 512)
    prompt = format_prompt(document.text, document.questions[0].text)
    ids = tokenizer(prompt).input_ids
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.unk_token_id not in ids
    assert normalize(tokenizer.decode(ids, skip_special_tokens=True)) == normalize(prompt)


def test_case_and_line_breaks_do_not_matter(tokenizer):
    one = tokenizer("Of Alice and Bob,\n\nthe older one is ALICE.").input_ids
    assert one == tokenizer("of alice and bob , the older one is alice .").input_ids


def test_links_of_chains_come_in_any_order():
    document = generate_document(2, 1024, 4)
    places = {s.split()[-3]: i for i, s in enumerate(statements(document)) if " equals " in s}
    asked = [q for q in document.questions if q.kind == "chain"]
    chains = [re.findall(r"variable (\w+)", f"{lead_in(q.text)} {q.answer}") for q in asked]
    orders = [places[b] > places[a] for chain in chains for a, b in pairwise(chain)]
    assert True in orders
    assert False in orders


@pytest.mark.parametrize(("tokens", "count"), [(10, 4), (1024, 0)])
def test_bad_arguments_are_refused(tokens, count):
    with pytest.raises(ValueError):
        generate_document(1, tokens, count)


def test_a_question_with_several_right_answers_and_classes() -> None:
    asked = Question("any", "Which?", "a", others=("b",), choices=("a", "b", "c"))
    assert asked.expected == (("a", "b"), ("a", "b", "c"))


def test_documents_of_a_seed_stay_what_they_are() -> None:
    """Shipped scores, journals and runs were made with them: another document is another example."""
    made = [generate_document(seed, tokens) for seed in range(3) for tokens in (128, 512, 1024)]
    told = [[each.text, [[q.kind, q.text, q.answer] for q in each.questions]] for each in made]
    assert hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16] == "c8486b2020e67cf7"


def test_facts_may_fill_a_story_to_its_last_word() -> None:
    counts = FactCounts(secrets=2, pairs=2, attributes=2, chains=1)
    whole = write_story(random.Random(5), counts, 10_000)
    assert write_story(random.Random(5), counts, whole.size()).size() == whole.size()
    assert write_story(random.Random(5), counts, whole.size() - 1).size() < whole.size()
