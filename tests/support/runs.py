"""A run and a row of it, as `winnow eval` writes them."""

from __future__ import annotations

from winnow.runs.folder import About, ModelFacts
from winnow.runs.rows import Row

ROW = Row(
    cell="a",
    benchmark="ruler",
    task="niah_single_1",
    example="1",
    content="c1",
    context="k1",
    method="adakv @ 10%",
    scores={"contains_all": 1.0},
    prediction="the number is 7",
    answers=["7"],
    facts={"length": 1024},
    truncated=False,
    prompt_tokens=1000,
    new_tokens=5,
    held_bytes=100,
    full_bytes=1000,
    slots=100.0,
    prefill_seconds=1.0,
    compress_seconds=0.1,
    decode_steps=4,
    decode_seconds=0.2,
)
ABOUT = About(
    winnow_run=1,
    model=ModelFacts("some/model", "0123", "float32", template=True),
    benchmark="ruler",
    protocol={"name": "plain", "question_seen": True},
    request={"seed": 0},
    measures={"niah_single_1": "contains_all"},
    environment={"processor": "some processor"},
    command="winnow eval ruler",
    started="2026-01-01T00:00:00+00:00",
)
