"""Facts of a question, found in the document."""

from __future__ import annotations

from winnow.evaluate.facts import fact_sentences, fact_tokens
from winnow.evaluate.prompts import encode_prompt
from winnow.tasks import Question


def test_facts_are_found_in_the_document(source):
    document = (
        "The favorite fruit of Nora is mango. Between Nora and Walter, the taller one is Nora. "
        "Rain fell. The favorite fruit of Walter is mango."
    )
    question = Question(
        "reasoning",
        "What is the favorite fruit of the taller one of Walter and Nora?",
        "nora, whose favorite fruit is mango",
    )
    spans = fact_sentences(document, question)
    assert [document[start:stop].strip() for start, stop in spans] == [
        "Between Nora and Walter, the taller one is Nora.",
        "The favorite fruit of Nora is mango.",
    ]
    (first, second) = fact_tokens(source.tokenizer, document, question)
    ids = encode_prompt(source.tokenizer, document, question.text)[0]
    assert source.tokenizer.decode(ids[slice(*first)]) == "the favorite fruit of nora is mango."
    assert source.tokenizer.decode(ids[slice(*second)]).endswith("the taller one is nora.")
