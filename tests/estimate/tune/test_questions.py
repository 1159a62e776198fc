"""Documents divided among validation and test."""

from __future__ import annotations

import pytest

from winnow.estimate.errors import TuneError
from winnow.estimate.tune.questions import (
    count_documents,
    divided,
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
        split = divided(pages, 0.3, seed)
        assert sorted(page.text for part in split for page in part) == sorted(page.text for page in pages)
        assert [count_documents(part) for part in split] == [3, 7]
        assert [count_documents(part) for part in divided(pages, 0.5, seed, documents=4)] == [2, 2]
    # Without a name a document is told by its text, and so divided as ever.
    texts = [[page.text for page in part] for part in divided(put_pages(named=False), 0.3, seed=4)]
    plain = divided([Document(page.text, page.questions) for page in pages], 0.3, seed=4)
    assert texts == [[page.text for page in part] for part in plain]


def pages_of_tasks(tasks):
    """A cut for every task of each of its documents."""
    return put_pages_of(
        (f"{document} for {task}", "question", Expected(("answer",)), Put(task, Judging("token_f1", 8)), document)
        for task, documents in tasks.items()
        for document in documents
    )


def test_a_document_of_several_tasks_is_in_one_part():
    """Each task keeps its share, where documents without a part make up for those that have one."""
    tasks = {"qa": "abcdefghij", "summary": "efghij", "choice": "uvwx"}
    pages = pages_of_tasks(tasks)
    for seed in range(20):
        split = divided(pages, 0.5, seed)
        assert sum(map(len, split)) == len(pages)
        assert not {page.document for page in split.validation} & {page.document for page in split.test}
        for task, documents in tasks.items():
            halves = [sum(page.puts[0].task == task for page in part) for part in split]
            assert halves == [len(documents) // 2] * 2


def test_a_share_gives_way_where_documents_of_other_tasks_decide():
    pages = pages_of_tasks({"one": "ab", "two": "bc", "three": "ca"})
    split = divided(pages, 0.5, seed=0)
    assert sorted(map(count_documents, split)) == [1, 2]
    assert sum(map(len, split)) == len(pages)


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
    with pytest.raises(TuneError, match="must be from 0 to 99"):
        generated(2, seed=100)
