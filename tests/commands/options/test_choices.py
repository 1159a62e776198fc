"""Choices that help texts show, written beside the options, are those of what they choose from."""

from __future__ import annotations

from typing import get_args, get_type_hints

from winnow.commands.options.heads import needle, tables, tune
from winnow.estimate.needle.settings import NeedleKind
from winnow.estimate.tune.knobs import Tunable
from winnow.heads.readers import Halves, HeadKVKind
from winnow.models import DTYPES


def choices(options, name):
    return get_args(get_type_hints(options)[name])


def test_choices():
    assert choices(needle.NeedleOptions, "kind") == tuple(NeedleKind)
    assert choices(tune.TuneOptions, "method") == tuple(Tunable)
    assert choices(tables.TablesOptions, "halves") == get_args(Halves)
    assert get_args(choices(tables.TablesOptions, "kind")[0]) == get_args(HeadKVKind)
    assert choices(needle.NeedleOptions, "dtype") == ("auto", *DTYPES)
