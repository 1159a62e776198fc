"""Facts about a run of `winnow eval`, for its folder."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from transformers import PreTrainedModel

from winnow.cache.fingerprint import ModelFingerprint, hash_tokenizer
from winnow.commands.eval_work import EvalWork
from winnow.commands.invoked import LINE
from winnow.commands.model_names import model_name
from winnow.estimate.journal import fingerprint
from winnow.evaluate.turns import templated
from winnow.files import spelled_out
from winnow.models.dtypes import written_dtype
from winnow.runs.environment import environment
from winnow.runs.folder import VERSION, About, ModelFacts
from winnow.tasks.protocol import Protocol


def about_of(work: EvalWork, loaded: PreTrainedModel) -> About:
    """The facts of a run that begins now."""
    found = ModelFingerprint.of(loaded)
    texts = [[task.name, [[e.context, e.question, e.answers] for e in task.examples]] for task in work.tasks]
    options = work.options
    return About(
        winnow_run=VERSION,
        model=ModelFacts(
            model_name(work.source),
            fingerprint([found.architecture, found.weights, found.dtype]),
            written_dtype(loaded.dtype),
            templated(work.source.tokenizer),
            found.quantized,
            hash_tokenizer(work.source.tokenizer),
        ),
        benchmark=work.benchmark.name,
        protocol=_facts(work.protocol),
        request={
            "seed": options.seed,
            "examples": options.examples,
            "lengths": options.lengths,
            "tasks": options.tasks,
            "split": options.split,
            "fold": options.fold,
            "texts": fingerprint(texts),
        },
        measures={task.name: task.judging.metric for task in work.tasks},
        environment=environment(loaded.device),
        command=shlex.join(map(spelled_out, LINE.get())),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _facts(rules: Protocol) -> dict[str, Any]:
    """Fields of a protocol as plain values. Lengths where it has some: runs of earlier versions have no such field."""
    found: dict[str, Any] = json.loads(json.dumps(asdict(rules)))
    return {name: value for name, value in found.items() if name != "lengths" or value}
