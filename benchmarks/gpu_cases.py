"""Launches of the GPU kernels, of every kind that there is: forms of stores, head sizes, dtypes, tokens of a step."""

from __future__ import annotations

from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor

from gpu_compiling import Launched, compiled_only
from gpu_layers import Shape, layer
from gpu_layers import packed as packed_layer
from winnow.kernels.formats.entries import Entries
from winnow.kernels.formats.signed import lowest_integer
from winnow.kernels.gpu import support
from winnow.kernels.gpu.choosing import Splitting
from winnow.kernels.gpu.feeding import Fed, packed_for_queries
from winnow.kernels.gpu.forms import Form
from winnow.kernels.gpu.gathering import Chosen, Coordinates
from winnow.kernels.gpu.keeping import keep
from winnow.kernels.gpu.packing import packed, ranged
from winnow.kernels.gpu.paying import ENTROPY, LARGEST, SHARES, SQUARES
from winnow.kernels.gpu.plan import TritonPlan
from winnow.kernels.gpu.projecting import output_sizes
from winnow.kernels.gpu.scoring import Asked, Normalized
from winnow.kernels.native_args import CHANNEL_GROUPS, GROUPED, PER_SLOT

HEADS, GROUP, SLOTS = 2, 4, 128
WINDOW = 32
"""Queries that score."""
OUTPUTS = 512
"""Numbers that a layer hands on."""
CHUNK = 32
"""Tokens of a turn: with their group more queries than a program takes."""
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
NAMES = {BF16: "bf16", FP16: "fp16", FP32: "fp32"}
STORES = (
    *(f"bits({bits})" for bits in (8, 6, 4, 3, 2)),
    *(f"bits({bits}, rotate=false, center=false, smooth=false)" for bits in (4, 3)),
    *("bits(k=8, v=4)", "bits(k=16, v=4)"),
    *(f"bits({bits}, group=32)" for bits in (8, 6, 4, 3, 2)),
    *("bits(8, group=64)", "bits(4, group=64)"),
    *(f"kivi({bits})" for bits in (8, 6, 4, 3, 2)),
    *("think(0.5)", "think(0.5)+bits(4)", "think(0.5)+kivi(4)"),
    *("spark(0.5)", "spark(0.5, values=0.5)", "spark(0.5, sign=none)"),
    *(f"spark(0.5, recovery={each})" for each in ("gaussian", "exponential", "gaussian-printed", "constant", "none")),
    *(f"spark(0.5)+bits({bits})" for bits in (8, 4, 3)),
    *("spark(0.5, values=0.5)+bits(4)", "spark-p", "spark-p+bits(8)", "spark-p+bits(3)", "spark-g"),
)
"""Every way in which a kernel meets slots: forms that differ in nothing that it is compiled for are there once."""
IN_FP32 = ("bits(8)", "bits(4)", "bits(3)", "bits(4, group=32)", "kivi(4)", "think(0.5)", "spark(0.5)", "spark-p")
WIDE = ("bits(8)", "bits(4)", "kivi(4)", "spark(0.5)")


class Case(NamedTuple):
    """Kernels that are launched together."""

    what: str
    """A store, for a step of its layer; SCORING; or PACKING and what is packed."""
    dtype: torch.dtype
    dim: int
    queries: int = 1
    """Tokens of a step."""

    @property
    def told(self) -> str:
        """For people."""
        return f"{self.what}, {NAMES[self.dtype]}, D {self.dim}, {self.queries} tokens"


SCORING, PACKING = "scoring", "packing "


class Packing(NamedTuple):
    """Numbers that are packed in one launch."""

    bits: int
    side: str
    """keys or values"""
    group: int = 0
    ranged: bool = False
    """True as KIVI does it."""
    options: str = ""
    """Others: "scales=signed", "round=queries"."""

    @property
    def name(self) -> str:
        """The store, and the side."""
        of_group = f", group={self.group}" if self.group else ""
        others = f", {self.options}" if self.options else ""
        return f"{'kivi' if self.ranged else 'bits'}({self.bits}{of_group}{others}), {self.side}"

    def pack(self, chosen: Chosen) -> Entries:
        """Launches it."""
        of_keys = self.side == "keys"
        if self.ranged:
            return ranged(chosen, Coordinates(None, None, False), self.bits, by_slots=of_keys)
        coordinates = _moved(chosen) if of_keys else Coordinates(None, None, True)
        signed = "scales=signed" in self.options
        if "round=queries" in self.options:
            heads, _, dim = chosen.rows.shape
            fed = Fed(torch.zeros(heads, dim, dim), torch.arange(heads + 1) * SLOTS)
            return packed_for_queries(chosen, coordinates, fed, self.bits, self.group, signed)
        return packed(chosen, coordinates, self.bits, self.group, signed)


def _moved(chosen: Chosen) -> Coordinates:
    """All steps: centered, smoothed, rotated."""
    return Coordinates(chosen.rows[:, 0], chosen.rows[:, 1], True)


SIDES = ("keys", "values")
_PACKED = (
    *(Packing(bits, side, ranged=as_kivi) for as_kivi in (False, True) for bits in (8, 4, 3) for side in SIDES),
    *(Packing(bits, "keys", group) for bits, group in ((8, 32), (4, 64))),
    *(Packing(bits, side, options="scales=signed") for bits in (4, 3) for side in SIDES),
    Packing(4, "keys", 64, options="scales=signed"),
    *(Packing(bits, "keys", options="round=queries") for bits in (8, 4, 3)),
    Packing(4, "keys", 64, options="round=queries, scales=signed"),
)
PACKINGS = {each.name: each for each in _PACKED}
PRUNING = (
    *("spark(0.5)", "spark(0.5, values=0.5)", "spark(0.5, sign=none)", "spark(0.5, saliency=squared)"),
    *(f"spark(0.5, recovery={each})" for each in ("gaussian", "gaussian-printed", "constant")),
    *("spark(0.5)+bits(4)", "spark-p", "spark-p+bits(8)", "spark-p+bits(3)", "spark-p+bits(4, scales=signed)"),
    *("spark-g", "spark-g(by=segments)"),
    *("think(0.5)", "think(0.5)+bits(4)", "think(0.5)+kivi(4)"),
)
"""Stores that drop channels, packed as a whole."""
USUAL = tuple((dtype, dim) for dim in (64, 128) for dtype in (BF16, FP16))
CASES = (
    *(Case("full", dtype, dim) for dtype in (BF16, FP16, FP32) for dim in (64, 80, 128, 256)),
    *(Case("full", dtype, dim, CHUNK) for dtype in (BF16, FP32) for dim in (64, 128, 256)),
    *(Case(store, *usual) for store in STORES for usual in USUAL),
    *(Case(store, FP32, 128) for store in IN_FP32),
    *(Case(store, BF16, 128, CHUNK) for store in ("bits(4)", "kivi(4)", "spark(0.5)")),
    *(Case(store, BF16, 256) for store in WIDE),
    *(Case(store, BF16, dim) for store in ("full", "bits(4)") for dim in (96, 192)),
    *(Case(SCORING, *usual) for usual in (*USUAL, (FP32, 128), (BF16, 256))),
    *(Case(PACKING + name, *usual) for name in PACKINGS for usual in USUAL),
    *(Case(f"{PACKING}{name}, keys", BF16, dim) for name in ("bits(4)", "kivi(4)") for dim in (80, 96, 256)),
    *(Case(f"{PACKING}bits(4, round=queries), keys", BF16, dim) for dim in (96, 256)),
    *(Case(PACKING + store, *usual) for store in PRUNING for usual in USUAL),
    *(Case(PACKING + store, *unusual) for store in ("spark(0.5)", "spark-p") for unusual in ((FP32, 128), (BF16, 256))),
)


def launches_of(case: Case, capability: int) -> list[Launched]:
    """The launches of a case; those of a decode step, or those that score or pack the slots of a layer."""
    torch.manual_seed(0)
    if case.what == SCORING:
        return _scoring(case, capability)
    if case.what.removeprefix(PACKING) in PRUNING and case.what.startswith(PACKING):
        return _pruning(case, capability)
    if case.what.startswith(PACKING):
        rows = torch.randn(HEADS, SLOTS, case.dim).to(case.dtype)
        head, token = torch.arange(HEADS).repeat_interleave(SLOTS), torch.arange(SLOTS).repeat(HEADS)
        with compiled_only(capability) as launches:
            PACKINGS[case.what.removeprefix(PACKING)].pack(Chosen(rows, head, token))
        return launches
    shape = Shape(HEADS, GROUP, case.dim, case.dtype)
    made = layer(case.what, [SLOTS, SLOTS // 2], shape, torch.device("cpu"), queries=case.queries)
    plan = TritonPlan(made.prefixes, made.tail, made.spec)
    with compiled_only(capability) as launches:
        plan.run(made.query)
        if case.what == "full" and case.queries == 1:
            token = made.tail.keys[:, :, :1]
            keep(made.tail.lengths, token, token, made.tail.keys, made.tail.values)
    return launches


def _pruning(case: Case, capability: int) -> list[Launched]:
    """The launches of a store that drops channels. Nothing is computed: all that they would write is zeros."""
    shape = Shape(HEADS, GROUP, case.dim, case.dtype)
    with (
        compiled_only(capability) as launches,
        mock.patch.object(support, "packs", return_value=True),
        mock.patch.object(torch, "empty", torch.zeros),
    ):
        packed_layer(case.what.removeprefix(PACKING), [SLOTS, SLOTS // 2], shape, torch.device("cpu"))
    return launches


def _scoring(case: Case, capability: int) -> list[Launched]:
    """The launches that tell what a window's queries pay, and what values add to the output."""

    def drawn(heads: int, tokens: int) -> Tensor:
        return torch.randn(heads, tokens, case.dim).to(case.dtype)

    asked = Asked(drawn(HEADS * GROUP, WINDOW), drawn(HEADS, SLOTS), case.dim**-0.5, None, None, None, SLOTS)
    with compiled_only(capability) as launches:
        window = Normalized(asked)
        for what in (SHARES, SQUARES, ENTROPY, LARGEST):
            window.paid(SLOTS - WINDOW, what)
        window.paid_most(SLOTS - WINDOW, since=WINDOW // 2)
        window.paid_most(SLOTS, WINDOW // 2, torch.zeros(HEADS, SLOTS, dtype=torch.int32))
        for squared in (False, True):
            output_sizes(asked.keys, drawn(HEADS * GROUP, OUTPUTS).mT, squared)
    return launches


# --- in words -------------------------------------------------------------------------------------------------------

SCALINGS = {PER_SLOT: "a scale per slot", GROUPED: "scales of 32 slots", CHANNEL_GROUPS: "scales of channels"}


PAID = {SHARES: "shares", SQUARES: "squares", ENTROPY: "entropy", LARGEST: "largest"}


def forms_told(given: dict[str, Any]) -> str:
    """The forms of a launch in few words."""
    if "TAIL" in given:
        if given["TAIL"]:
            return "tail and dense slots" + ", several tokens" * given["CAUSAL"]
        sides = [_form(given[side]) for side in ("KEYS", "VALUES")]
        told = sides[0] if sides[0] == sides[1] else f"{sides[0]}; values {sides[1]}"
        return f"{told}, other queries" if given["BIASED"] else told
    if "SPLITTING" in given:
        return _splitting(given["SPLITTING"])
    if "WHAT" in given:
        return PAID[given["WHAT"]]
    if "LISTED" in given:
        return "heads with tokens of their own" if given["LISTED"] else ""
    if "SQUARED" in given:
        return "squares" if given["SQUARED"] else "sizes"
    if "FORM" not in given:
        return "turned" if given.get("TURNED") else ""
    form = given["FORM"]
    signed = ["signed"] * (given.get("LEAST") == lowest_integer(form.bits))
    if "GROUP" not in given:
        return ", ".join([f"{form.bits} bits", *signed])
    steps = [name for name in ("CHOSEN", "CENTERED", "SMOOTHED") if given[name]] + ["TURNED"] * (given["STEPS"] > 0)
    if form.zeros:
        told = "scales of 32 slots, zeros" if given["TOGETHER"] > 1 else "scales of channels, zeros"
    else:
        told = f"scales of {given['GROUP']} channels" if given["GROUP"] < given["WIDE"] else "a scale per slot"
    return ", ".join([f"{form.bits} bits", told, *signed, *(step.lower() for step in steps)])


def queries_of(given: dict[str, Any]) -> int:
    """Queries of a program; 0 where it has none."""
    if "HEADS" in given:
        return int(given["HEADS"] * given["WINDOW"])
    return int(given.get("ASKED", 0))


def _splitting(how: Splitting) -> str:
    """Rule, sizes, statistic and signs of slots that keep channels of their own."""
    rule = "a share" if how.flat else "segments" if how.segments else f"{how.most} channels"
    facts = {
        "of squares": how.squared,
        "levels": bool(how.levels),
        "saliency": how.sized,
        how.statistic: True,
        "signs": how.signed,
    }
    return ", ".join([rule, *(name for name, there in facts.items() if there)])


def _form(form: Form) -> str:
    """A form's facts that are not as usual."""
    sizes = {name: getattr(form, name) for name in ("kept_bytes", "sign_bytes", "statistics")}
    usual = Form(form.element, 16, form.numbers, aligned=form.aligned, **sizes)
    facts = {name: value for name, value in vars(form).items() if value != getattr(usual, name)}
    bits = facts.pop("bits", 16)
    named = [SCALINGS[facts.pop("scaling")]] if form.scaling else []
    if form.channels:
        facts["channels"] = form.numbers
    named += [name if value is True else f"{name} {_short(value)}" for name, value in facts.items()]
    return " ".join(["dense" if bits == 16 and not named else f"{bits} bits", *named])


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
