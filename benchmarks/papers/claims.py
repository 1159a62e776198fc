"""Scope of the tables: what the papers print, and the settings here that answer to it."""

from __future__ import annotations

from typing import NamedTuple

from evaluated import REFERENCE, Part


class Setting(NamedTuple):
    """A row of a paper's table."""

    label: str
    """As the paper calls it."""
    method: str
    paper: float | None = None
    """The paper's score, on its own model and benchmark."""


class Claim(NamedTuple):
    """A paper's table of answers."""

    title: str
    source: str
    """The paper's model, benchmark and budget."""
    settings: tuple[Setting, ...]


_KVEC = "K-VEC: Llama-3.1-8B-Instruct, LongBench, B = 256"
_APERTURE = "ApertureKV: Mistral-7B-Instruct, six tasks of LongBench, B = 64"

CLAIMS = (
    Claim(
        "K-VEC's halves (Table 6a)",
        _KVEC,
        (
            Setting("full K-VEC", "kvec", 35.96),
            Setting("without head coverage", "kvec(wide_heads=0)", 34.61),
            Setting("without layer coverage", "kvec(novelty=0)", 30.87),
            Setting("without both", "kvec(wide_heads=0, novelty=0)", 25.54),
        ),
    ),
    Claim(
        "The wide window O' (Table 6b)",
        _KVEC,
        (
            Setting("20", "kvec(wide_window=20)", 31.58),
            Setting("24", "kvec(wide_window=24)", 33.24),
            Setting("32", "kvec", 35.96),
            Setting("48", "kvec(wide_window=48)", 34.56),
        ),
    ),
    Claim(
        "The weight of novelty λ (Table 6c)",
        _KVEC,
        (
            Setting("0.1", "kvec(novelty=0.1)", 33.53),
            Setting("0.5", "kvec(novelty=0.5)", 35.40),
            Setting("1", "kvec", 35.96),
            Setting("2", "kvec(novelty=2)", 34.32),
        ),
    ),
    Claim(
        "The sure share β (Table 6d)",
        _KVEC,
        (
            Setting("10 %", "kvec(sure=0.1)", 34.98),
            Setting("25 %", "kvec", 35.96),
            Setting("50 %", "kvec(sure=0.5)", 35.39),
            Setting("75 %", "kvec(sure=0.75)", 35.74),
        ),
    ),
    Claim(
        "Heads with the wide window δ (Table 6e)",
        _KVEC,
        (
            Setting("1", "kvec(wide_heads=1)", 34.26),
            Setting("2", "kvec(wide_heads=2)", 35.35),
            Setting("3", "kvec", 35.96),
            Setting("4", "kvec(wide_heads=4)", 35.38),
        ),
    ),
    Claim(
        "The criterion of unfocused heads (Table 6f), of one head of a layer",
        f"{_KVEC}, δ = 3",
        (
            Setting("standard deviation", "kvec(wide_heads=1)", 35.96),
            Setting("entropy", "kvec(wide_heads=1, criterion=entropy)", 34.17),
        ),
    ),
    Claim(
        "ApertureKV's halves (Table 2)",
        _APERTURE,
        (
            Setting("AdaKV", "adakv", 22.91),
            Setting("+ QD", "snapkv(diversify=0.45, over=prefix)+ada", 26.69),
            Setting("+ RABA", "snapkv+raba", 25.78),
            Setting("ApertureKV", "aperturekv", 28.46),
        ),
    ),
    Claim(
        "The strength of query diversification λ (Table 4)",
        _APERTURE,
        (
            # The paper's score of λ = 0 is AdaKV's.
            Setting("0", "snapkv(over=prefix)+ada", 22.91),
            Setting("0.1", "snapkv(diversify=0.1, over=prefix)+ada", 24.84),
            Setting("0.2", "snapkv(diversify=0.2, over=prefix)+ada", 26.48),
            Setting("0.3", "snapkv(diversify=0.3, over=prefix)+ada", 25.68),
            Setting("0.4", "snapkv(diversify=0.4, over=prefix)+ada", 26.32),
            Setting("0.45", "snapkv(diversify=0.45, over=prefix)+ada", 26.69),
            Setting("0.5", "snapkv(diversify=0.5, over=prefix)+ada", 25.96),
        ),
    ),
    Claim(
        "The divergence of RABA (Table 5)",
        _APERTURE,
        (
            Setting("Jensen-Shannon", "aperturekv", 28.46),
            Setting("Kullback-Leibler", "aperturekv(divergence=kl)", 26.92),
            Setting("cross-entropy", "aperturekv(divergence=ce)", 25.97),
        ),
    ),
    Claim(
        "The place of the pool (CoKV, Algorithm 2)",
        "not compared in a paper",
        (
            Setting("after the means over window and group", "snapkv"),
            Setting("after the mean over the window", "snapkv(pool_first=true)"),
            Setting("before both, as Algorithm 2", "snapkv(pool_first=queries)"),
        ),
    ),
)

METHODS = tuple(dict.fromkeys(setting.method for claim in CLAIMS for setting in claim.settings))
BUDGETS = "5%,10%"


def parts(questions: int, texts: int) -> tuple[Part, ...]:
    """Runs of `winnow eval` behind all claims: questions about facts, and continuations of a real text; none of 0."""
    made = (
        Part(
            "answers",
            "facts in generated prose, the question seen at compression",
            ("facts", "--lengths", "1400", "--examples", str(questions), "--protocol", "plain", "--allow-zero"),
            METHODS,
            BUDGETS,
        ),
        Part(
            "text",
            "the next 128 tokens behind 1,024 tokens of Python's reference",
            (
                *("text", "--lengths", "1024", "--examples", str(texts), "--protocol", "plain"),
                *("--data", f"{{folder}}/{REFERENCE}"),
            ),
            METHODS,
            BUDGETS,
        ),
    )
    return tuple(part for part, count in zip(made, (questions, texts), strict=True) if count)


EVICTED = {"25 %": "75%", "50 %": "50%", "75 %": "25%", "90 %": "10%"}
"""Rates of eviction, and the budgets that they leave."""
DROPS = {
    "pyramidkv(window=16)": (3.5, 4.6, 8.6, 20.1),
    "snapkv(window=16)": (2.5, 3.9, 8.5, 19.2),
    "adakv(window=16)": (2.1, 3.1, 7.9, 16.5),
    "kvec": (1.1, 2.5, 4.5, 8.6),
}
"""Methods of K-VEC's Table S4, and the percent of tokens that it says no head of any layer keeps at each rate."""
DEPTH = ("snapkv(window=16)", "kvec(wide_heads=0)", "kvec(novelty=0)", "kvec")
DEPTH_BUDGETS = ("5%", "10%")
HEADS = (
    Setting("AdaKV", "adakv"),
    Setting("QD only", "snapkv(diversify=0.45, over=prefix)+ada"),
    Setting("RABA only", "snapkv+raba"),
    Setting("ApertureKV", "aperturekv"),
)
HEADS_BUDGET = "64"
"""Methods and budget of ApertureKV's Tables 7 and 8, and of its Fig. 10."""
WINDOW, STRENGTHS = 8, (0.0, 0.45)
"""Queries of ApertureKV's window, and λ without and with query diversification."""
