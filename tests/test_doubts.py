"""Doubts about what a device computed: one look settles them, the first that is right is raised."""

from __future__ import annotations

import pytest
import torch

from support.elsewhere import counted, gpu_stand_in, there
from winnow.doubts import Doubts, doubted, settled_together


class Wrong(Exception):
    """An error that was doubted."""


def no() -> torch.Tensor:
    return torch.tensor(False)


def yes() -> torch.Tensor:
    return torch.tensor(True)


def test_what_the_host_knows_is_raised_at_once() -> None:
    with settled_together():
        doubted(no(), Wrong())
        with pytest.raises(Wrong):
            doubted(yes(), Wrong())


def test_nobody_collects() -> None:
    with gpu_stand_in():
        doubted(there(no()), Wrong())
        with pytest.raises(Wrong):
            doubted(there(yes()), Wrong())


def test_the_first_is_raised_after_one_look() -> None:
    reached = []
    with gpu_stand_in() as notes:
        with pytest.raises(Wrong, match="second"), settled_together():
            doubted(there(no()), Wrong("first"))
            doubted(there(yes()), Wrong("second"))
            doubted(there(yes()), Wrong("third"))
            reached.append(True)
        assert counted(notes) == {"tolist": 1}
    assert reached


def test_an_outer_one_takes_them_over() -> None:
    doubts, reached = Doubts(), []
    with gpu_stand_in():
        with doubts.collecting():
            for error in ("first", "second"):
                with settled_together():
                    doubted(there(yes()), Wrong(error))
                reached.append(error)
        with pytest.raises(Wrong, match="first"):
            doubts.settle()
        doubts.settle()  # of which nothing is left
    assert reached == ["first", "second"]


def test_a_failure_that_follows_is_no_riddle() -> None:
    with gpu_stand_in():
        with pytest.raises(Wrong) as raised, settled_together():
            doubted(there(yes()), Wrong("the reason"))
            raise IndexError("what came of it")
        assert isinstance(raised.value.__context__, IndexError)
        with pytest.raises(IndexError), settled_together():
            doubted(there(no()), Wrong())
            raise IndexError


def test_nothing_is_collected_behind_the_end() -> None:
    with gpu_stand_in():
        with pytest.raises(IndexError), settled_together():
            raise IndexError
        with pytest.raises(Wrong):
            doubted(there(yes()), Wrong())
