"""Published methods by their parts, and records that explain every parameter."""

from __future__ import annotations

from support.ready import METHODS, REPLAYED, random_scores, ready
from winnow.allocate import RABA, Ada, CoKV, Duo, Global, HeadKV, Pyramid, Uniform
from winnow.composition.names import methods
from winnow.score import (
    H2O,
    KVEC,
    RKV,
    TOVA,
    Critical,
    ExpectedAttention,
    Full,
    KeyDiff,
    Knorm,
    KVzip,
    Random,
    SnapKV,
    StreamingLLM,
    TriAttention,
)
from winnow.store import Dense


def test_presets() -> None:
    expected = {
        "full": (Full(), Uniform()),
        "random": (Random(), Uniform()),
        "streamingllm": (StreamingLLM(), Uniform()),
        "snapkv": (SnapKV(), Uniform()),
        "h2o": (H2O(), Uniform()),
        "tova": (TOVA(), Uniform()),
        "knorm": (Knorm(), Uniform()),
        "keydiff": (KeyDiff(), Uniform()),
        "expectedattention": (ExpectedAttention(), Uniform()),
        "rkv": (RKV(), Uniform()),
        "triattention": (TriAttention(), Uniform()),
        "defensivekv": (Critical(base=SnapKV(reduce="max", aggregate="defensive")), Ada(floor=0.0)),
        "criticalkv": (Critical(base=SnapKV()), Uniform()),
        "critical-adakv": (Critical(base=SnapKV()), Ada()),
        "pyramidkv": (SnapKV(), Pyramid()),
        "adakv": (SnapKV(), Ada()),
        "ada-pyramidkv": (SnapKV(), Ada(across=Pyramid())),
        "headkv-r": (SnapKV(), HeadKV(random_scores((4, 2), "headkv-r"), expects="headkv-r")),
        "headkv-er": (SnapKV(), HeadKV(random_scores((4, 2), "headkv-er"), expects="headkv-er")),
        "headkv-r2": (SnapKV(), HeadKV(random_scores((4, 2), "headkv-r2"), expects="headkv-r2")),
        "cokv": (SnapKV(), CoKV(random_scores((4, 2), "cokv"), expects="cokv")),
        "kvzip": (KVzip(), Global()),
        "kvzip-plus": (KVzip(normalize=True), Global()),
        "kvec": (KVEC(), Uniform()),
        "aperturekv": (SnapKV(diversify=0.45, over="prefix"), RABA()),
        "duoattention": (
            StreamingLLM(sinks=128, recent=256),
            Duo(random_scores((4, 2), "duoattention"), expects="duoattention"),
        ),
    }
    assert set(expected) == {*METHODS, *REPLAYED}
    for name, (scorer, allocator) in expected.items():
        made = ready(name, 64)
        assert made.name.partition("(")[0] == name
        assert (made.scorer, made.allocator, made.store) == (scorer, allocator, Dense())


def test_records_explain_every_parameter() -> None:
    records = {record.name: record for record in methods()}
    assert {record.kind for record in records.values()} == {"method", "allocator", "refiner", "store"}
    assert all(record.summary and all(p.meaning for p in record.parameters) for record in records.values())
    assert [p.name for p in records["ada-pyramidkv"].parameters] == [
        *("window", "kernel", "pool", "reduce", "pool_first", "diversify", "over", "aggregate"),
        *("floor", "rounding", "beta"),
    ]
    assert records["full"].parameters == ()
    assert "2407.11550" in records["ada"].paper


def test_every_offered_parameter_can_be_set() -> None:
    for record in methods():
        text = record.name if record.kind == "method" else f"snapkv+{record.name}"
        for parameter in record.parameters:
            if parameter.name != "scores":
                assert ready(text, 64, **{parameter.name: parameter.default}) == ready(text, 64)
