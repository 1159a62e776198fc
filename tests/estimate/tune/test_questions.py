"""Documents divided among validation and test."""

from __future__ import annotations

import pytest

from winnow.estimate.errors import TuneError
from winnow.estimate.tune.questions import (
    count_documents,
    divided,
    divided_by_task,
    generated,
    pages_of,
    put_pages_of,
)
from winnow.metrics import Expected
from winnow.tasks import Document
from winnow.tasks.example import Judging
from winnow.tasks.put import Put


def asked(documents=10):
    return [
        (f"document {index % documents}", f"question {index}", Expected(("answer",))) for index in range(3 * documents)
    ]


def test_questions_about_a_document_stay_together():
    pages = pages_of(asked())
    split = divided(pages, 0.3, seed=4)
    assert len(split.validation) == 3
    assert len(split.test) == 7
    assert {page.text for page in (*split.validation, *split.test)} == {page.text for page in pages}
    assert all(len(page.questions) == 3 for page in pages)
    assert divided(pages, 0.3, seed=4) == split
    assert divided(pages, 0.3, seed=5) != split
    assert sum(map(len, divided(pages, 0.5, seed=4, documents=4))) == 4


def put_pages(named=True):
    """Three cuts of each of ten documents."""
    put = Put("qa", Judging("token_f1", 8))
    return put_pages_of(
        (f"{document} cut {question}", question, expected, put, document if named else "")
        for document, question, expected in asked()
    )


def test_cuts_of_a_document_stay_together():
    pages = put_pages()
    for seed in range(5):
        split = divided_by_task(pages, 0.3, seed)
        assert sorted(page.text for part in split for page in part) == sorted(page.text for page in pages)
        assert [count_documents(part) for part in split] == [3, 7]
        assert [count_documents(part) for part in divided_by_task(pages, 0.5, seed, documents=4)] == [2, 2]
    # Without a name a document is told by its text, and so divided as ever.
    texts = [[page.text for page in part] for part in divided_by_task(put_pages(named=False), 0.3, seed=4)]
    plain = divided([Document(page.text, page.questions) for page in pages], 0.3, seed=4)
    assert texts == [[page.text for page in part] for part in plain]


@pytest.mark.parametrize("share", [0.0, 0.01, 1.0])
def test_a_split_that_leaves_nothing_is_an_error(share):
    with pytest.raises(TuneError, match=r"leaves none for the (validation|test)"):
        divided(pages_of(asked()), share, seed=0)
    with pytest.raises(TuneError, match="no questions"):
        divided((), 0.5, seed=0)


def test_generated_splits_share_no_document():
    split, other = generated(2, tokens=256), generated(2, seed=1, tokens=256)
    texts = [page.text for one in (split, other) for part in one for page in part]
    assert len(set(texts)) == len(texts)
    with pytest.raises(TuneError, match="seeds from 0 to 99"):
        generated(2, seed=100)
