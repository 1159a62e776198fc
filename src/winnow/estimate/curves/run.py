"""Budget curves of a model: one profile for every question about a context, and their mean.

For every question the model answers from the whole cache. What question and answer attended to says what the context's
tokens were worth, beside what a scorer thought of them before it knew the question.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from winnow.allocate import Uniform
from winnow.budget import Budget
from winnow.cache import CompressedCache, compress
from winnow.cache.prefix import Prefix
from winnow.composition.method import Method
from winnow.errors import MethodError
from winnow.estimate.asking import asked_tokens, tokens_before_question
from winnow.estimate.curves.profile import Across, profile
from winnow.estimate.curves.utility import gains
from winnow.estimate.journal import Journal
from winnow.estimate.records import MOST, RecordKind
from winnow.estimate.shape import TableShape
from winnow.evaluate.decoding import decode, prefill, stop_tokens
from winnow.heads.curves import GRID
from winnow.models.devices import input_device
from winnow.score import Refiner, Scorer
from winnow.store import Dense
from winnow.tasks.prompt_style import USUAL, PromptStyle
from winnow.tasks.put import Put
from winnow.typed import Between, Sized
from winnow.view import Extra, LayerView


class Asked(NamedTuple):
    """A question about a context."""

    context: str
    question: str
    put: Put | None = None
    """The protocol's way to put it; None where the plan says it."""


@dataclass(frozen=True)
class CurvePlan:
    """Everything that curves depend on besides the model. Raises MethodError for a scorer that cannot be profiled."""

    scorer: Scorer
    asked: tuple[Asked, ...]
    max_new_tokens: int = 16
    style: PromptStyle = USUAL
    across: Across = "model"
    benchmark: Mapping[str, str] | None = None
    """The benchmark that the questions are of, with protocol and part, where they are put as it puts them."""

    def __post_init__(self) -> None:
        if Extra.COVERAGE in self.scorer.extras:
            raise MethodError(
                f"{type(self.scorer).__name__} scores a layer by what earlier ones kept, so its order is none before "
                "slots are given out; take another scorer (snapkv, h2o, expectedattention, keydiff)."
            )


@dataclass(frozen=True)
class CurveRecord:
    """The slots of least loss for one question."""

    question: int
    tokens: int
    """N, tokens of the context."""
    kept: list[list[list[int]]]
    """[99, L, H] slots of every head, where 1% … 99% of all slots go."""


def curve_records(questions: int, shape: TableShape) -> RecordKind[CurveRecord]:
    """Records of so many questions to a model of a shape."""
    slots: Any = Annotated[int, Between(0, MOST)]
    heads = Annotated[list[slots], Sized(shape.heads, shape.heads)]
    layers = Annotated[list[heads], Sized(shape.layers, shape.layers)]
    types = {
        "question": Annotated[int, Between(0, questions - 1)],
        "tokens": Annotated[int, Between(1, MOST)],
        "kept": Annotated[list[layers], Sized(GRID, GRID)],
    }
    return RecordKind(CurveRecord, types, ("question",))


def run_curves(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    plan: CurvePlan,
    journal: Journal,
    shape: TableShape,
    done: Callable[[bool], None] = lambda _: None,
) -> Tensor:
    """The mean profile [99, L, H] of all questions: shares that go. Finished questions are taken from the journal.

    done: called after every question, with True where the journal had it.
    """
    known = {record.question: record for record in journal.read(curve_records(len(plan.asked), shape))}
    for number, asked in enumerate(plan.asked):
        if number not in known:
            record = profile_of(model, tokenizer, plan, number, asked)
            journal.append(vars(record))
            done(False)
            known[number] = record
        else:
            done(True)
    return mean_ratios([known[number] for number in range(len(plan.asked))])


def mean_ratios(records: Sequence[CurveRecord]) -> Tensor:
    """[99, L, H] float64: the mean share of every head that goes."""
    shares = [torch.tensor(record.kept, dtype=torch.float64, device="cpu") / record.tokens for record in records]
    return 1 - torch.stack(shares).mean(dim=0)


def profile_of(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, plan: CurvePlan, number: int, asked: Asked
) -> CurveRecord:
    """One question answered from the whole cache, and the slots of least loss for it."""
    context, question, put = asked
    prompt = asked_tokens(tokenizer, context, question, plan.style, put)
    length = tokens_before_question(tokenizer, context, question, prompt, plan.style, put)
    most = plan.max_new_tokens if put is None else put.judging.max_new_tokens
    tokens = torch.cat([prompt, _answer(model, prompt, most)], dim=1)
    watching = _Watching(plan.scorer, tokens.shape[1] - length)
    # Whatever is kept of it: every layer is seen while it is whole.
    whole = Method("profile", _WithProjection(plan.scorer), Uniform(), Dense(), Budget("everything"))
    compress(model, tokens.to(input_device(model)), whole, observer=watching)
    return CurveRecord(number, length, profile(watching.gains, plan.across).tolist())


def _answer(model: PreTrainedModel, prompt: Tensor, most: int) -> Tensor:
    """[1, n] tokens of the likeliest answer, from the whole cache."""
    cache = CompressedCache(model, "full", prompt_length=prompt.shape[1])
    logits = prefill(model, prompt, cache)
    return torch.tensor([list(decode(model, cache, logits, most, stop_tokens(model)))], dtype=torch.int64, device="cpu")


@dataclass(frozen=True)
class _WithProjection(Refiner):
    """A scorer whose views have the output projection."""

    base: Scorer

    @property
    def extras(self) -> Extra:
        return self.base.extras | Extra.OUTPUT_PROJECTION


@dataclass
class _Watching:
    """Measures what every layer's tokens were worth to the last `future` ones."""

    scorer: Scorer
    future: int
    gains: list[Tensor] = field(default_factory=list)

    @property
    def queries(self) -> int:
        return self.future + self.scorer.queries_needed(MOST)

    def see(self, view: LayerView, prefix: Prefix) -> None:
        self.gains.append(gains(view, self.future, self.scorer))
