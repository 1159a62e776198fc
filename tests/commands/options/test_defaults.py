"""Defaults that help texts show, written beside the options, are those of the estimation."""

from __future__ import annotations

from typing import get_args, get_type_hints

from winnow.commands.options.heads import cokv, needle, tables, tune
from winnow.estimate.cokv import plan as cokv_plan
from winnow.estimate.cokv import utility
from winnow.estimate.needle import plan as needle_plan
from winnow.estimate.needle.examples import Kind
from winnow.estimate.tune import Tunable, answering
from winnow.heads.readers import Halves, HeadKVKind
from winnow.models import DTYPES


def choices(options, name):
    return get_args(get_type_hints(options)[name])


def test_numbers():
    assert (needle.DEPTHS, needle.MAX_NEW_TOKENS) == (needle_plan.DEPTHS, needle_plan.ANSWER_TOKENS)
    assert (cokv.WINDOW, cokv.MAX_NEW_TOKENS) == (utility.WINDOW, utility.ANSWER_TOKENS)
    assert cokv.PAIRS == cokv_plan.PAIRS
    assert tune.MAX_NEW_TOKENS == answering.ANSWER_TOKENS


def test_choices():
    assert choices(needle.NeedleOptions, "kind") == tuple(Kind)
    assert choices(tune.TuneOptions, "method") == tuple(Tunable)
    assert choices(tables.TablesOptions, "halves") == get_args(Halves)
    assert get_args(choices(tables.TablesOptions, "kind")[0]) == get_args(HeadKVKind)
    assert choices(needle.NeedleOptions, "dtype") == ("auto", *DTYPES)
