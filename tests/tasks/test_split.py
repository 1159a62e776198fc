"""Validation and test parts of tasks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from winnow.tasks.example import Example, Judging, Task
from winnow.tasks.protocol import HeldOut
from winnow.tasks.split import part_of


@given(contexts=st.lists(st.integers(0, 9), min_size=1, max_size=30), share=st.floats(0, 1))
def test_no_context_is_in_both_parts_and_none_is_lost(contexts, share):
    examples = tuple(Example(str(n), f"text {context}", "?", ("a",)) for n, context in enumerate(contexts))
    task = Task("b", "t", Judging("contains_any", 1), examples)
    test, validation = (part_of(task, HeldOut(share), part) for part in ("test", "validation"))
    assert sorted(test.examples + validation.examples, key=lambda e: int(e.name)) == list(examples)
    texts = [{example.context for example in part.examples} for part in (test, validation)]
    assert not texts[0] & texts[1]
    assert len(texts[1]) == round(share * len(set(contexts)))
    assert part_of(task, HeldOut(share), "rest") == test
    # Where published rows are of all examples, so is the test.
    both = HeldOut(share, tested=True)
    assert [part_of(task, both, part) for part in ("test", "validation", "rest")] == [task, validation, test]
    assert part_of(task, None, "test") == task
