"""Protocols by name: one table of data.

A name stands for everything that changes numbers and is no method: prompts of other forms, other cuts of long prompts
or another split give other scores of the same model. What the paper or its code leaves open, the summary says.
"""

from __future__ import annotations

from winnow.errors import closest
from winnow.tasks import full_rows as published
from winnow.tasks.benchmark import UnknownBenchmark
from winnow.tasks.protocol import HeldOut, Protocol

# As HeadKV's code cuts them; CoKV says to cut as HeadKV does. ApertureKV's table 11 has Llama 3.1 and 3.2 whole.
_HEADKV_LIMITS: dict[str, int | None] = {
    "llama2": 3950,
    "llama-2": 3950,
    "llama3": 7950,
    "llama-3": 7950,
    "llama-3.1": None,
    "llama-3.2": None,
    "mistral": 31_500,
}
_BABILONG_LIMITS = {**_HEADKV_LIMITS, "qwen2": 31_500, "phi": 31_500}

# As SPARK's code cuts them.
_SPARK_LIMITS = {
    "llama-3-8b": 7950,
    "llama-3-70b": 7950,
    "llama-3.1-8b": 127_500,
    "llama-3.1-70b": 127_500,
    "qwen3-8b": 31_500,
    "qwen3-32b": 127_500,
}

_TABLE = (
    Protocol(
        name="plain",
        summary="chat template where the model has one, question seen at compression, nothing cut that fits",
        benchmarks=(),
        chat_template=True,
        question_seen=True,
    ),
    Protocol(
        name="plain-agnostic",
        summary="as plain, but the context is compressed before any question is known",
        benchmarks=(),
        chat_template=True,
        question_seen=False,
    ),
    Protocol(
        name="longbench",
        summary="LongBench's own code: chat template but for few-shot and code; prompts up to the model's own limit",
        benchmarks=("longbench", "longbench-e"),
        chat_template=True,
        question_seen=True,
        source="Bai et al. 2023 (arXiv 2308.14508); pred.py and eval.py of THUDM/LongBench",
    ),
    Protocol(
        name="longbench-headkv",
        summary="no chat template, prompts of 7,950 (Llama 3) or 31,500 (Mistral) tokens; ApertureKV has the same rows",
        benchmarks=("longbench",),
        chat_template=False,
        question_seen=True,
        model_limits=_HEADKV_LIMITS,
        validation=HeldOut(0.15, tested=True),
        source=(
            "Fu et al. 2024 (arXiv 2410.19258), tables 1 and 6; run_longbench.py of FYYFU/HeadKV. "
            "All methods with a window of 8 tokens and max-pooling over 7. Validation (appendix G) has 15% of each of "
            "six tasks, and the rows are of all examples"
        ),
        full_rows=published.joined(published.rows(*published.HEADKV_SIX), published.rows(*published.HEADKV_TEN)),
    ),
    Protocol(
        name="longbench-cokv",
        summary="as longbench-headkv, on the 85% that validation does not hold; open: which examples those are",
        benchmarks=("longbench",),
        chat_template=False,
        question_seen=True,
        model_limits=_HEADKV_LIMITS,
        validation=HeldOut(0.15),
        source=(
            "CoKV, tables 13, 14 and 15: Llama 3, Qwen3-32B, Mistral. Validation has 30 examples of each task, 20 with "
            "Qwen3-32B; all methods with a window of 8 tokens"
        ),
        full_rows=published.rows(*published.COKV),
    ),
    Protocol(
        name="longbench-kvec",
        summary="AdaKV's: chat template but for few-shot and code tasks; open: the limit with Llama 3.1",
        benchmarks=("longbench",),
        chat_template=True,
        question_seen=True,
        model_limits={"mistral": 31_500},
        source=(
            "K-VEC, table 1, which takes rows and settings from AdaKV (Feng et al. 2024, arXiv 2407.11550); pred.py of "
            "FFY0/AdaKV. All methods with a window of 32 tokens and max-pooling over 7"
        ),
        full_rows=published.rows(*published.KVEC),
    ),
    Protocol(
        name="longbench-spark",
        summary="chat template, answers begun behind it, 20 more tokens; open: whether few-shot prompts end as here",
        benchmarks=("longbench-kvpress",),
        chat_template=True,
        question_seen=True,
        model_limits=_SPARK_LIMITS,
        source=(
            "SPARK, tables 6 to 9; eval.py and run2.sh of Xnhyacinth/SparK, built on kvpress. "
            "SnapKV with a window of 32 tokens and max-pooling over 7"
        ),
        full_rows=published.rows(*published.SPARK),
    ),
    Protocol(
        name="loogle-headkv",
        summary="HeadKV's four long-dependency tasks, no chat template, 100 examples each; open: which 100",
        benchmarks=("loogle-headkv",),
        chat_template=False,
        question_seen=True,
        model_limits=_HEADKV_LIMITS,
        source=(
            "Fu et al. 2024 (arXiv 2410.19258), tables 1 and 5; run_longbench.py of FYYFU/HeadKV. "
            "All methods with a window of 8 tokens and max-pooling over 7"
        ),
        full_rows=published.rows(*published.HEADKV_LOOGLE),
    ),
    Protocol(
        name="babilong-headkv",
        summary="chat template, answers of 15 tokens (here 20); its table has means of QA1 to QA5, no rows by task",
        benchmarks=("babilong",),
        chat_template=True,
        question_seen=True,
        model_limits=_BABILONG_LIMITS,
        source="Fu et al. 2024 (arXiv 2410.19258), table 3; run_babilong.py of FYYFU/HeadKV",
    ),
    Protocol(
        name="ruler",
        summary="NVIDIA's own: the model's template, answers begun behind it, question seen",
        benchmarks=("ruler",),
        chat_template=True,
        question_seen=True,
        source="Hsieh et al. 2024 (arXiv 2404.06654); prepare.py of NVIDIA/RULER",
    ),
    Protocol(
        name="ruler-kvpress",
        summary="kvpress' leaderboard: chat template, answers begun behind it, the question not seen at compression",
        benchmarks=("ruler",),
        chat_template=True,
        question_seen=False,
        source="evaluation/evaluate.py of NVIDIA/kvpress with query_aware off; contexts of 4,096 tokens",
    ),
    Protocol(
        name="ruler-spark-8k",
        summary="SPARK's with 8k tokens: chat template, answers begun behind it, question seen",
        benchmarks=("ruler",),
        chat_template=True,
        question_seen=True,
        lengths=(8192,),
        source="SPARK, table 11; run2.sh of Xnhyacinth/SparK compresses questions, too",
        full_rows=published.rows(published.SPARK_RULER_8K),
    ),
    Protocol(
        name="ruler-spark-16k",
        summary="SPARK's with 16k tokens: chat template, answers begun behind it, question seen",
        benchmarks=("ruler",),
        chat_template=True,
        question_seen=True,
        lengths=(16_384,),
        source="SPARK, tables 2 and 11; run2.sh of Xnhyacinth/SparK compresses questions, too",
        full_rows=published.rows(published.SPARK_RULER_16K),
    ),
    Protocol(
        name="gsm8k-cokv",
        summary="five worked examples in the prompt; open: which five, and the chat template",
        benchmarks=("gsm8k",),
        chat_template=False,
        question_seen=True,
        source="CoKV, appendix E.6, table 9",
        full_rows={"Qwen3-32B": {"gsm8k_5shot": 93.47}},
    ),
)

PROTOCOLS = {each.name: each for each in _TABLE}


def protocols() -> list[Protocol]:
    """All protocols."""
    return list(PROTOCOLS.values())


def protocol(name: str) -> Protocol:
    """The protocol of a name. Raises UnknownBenchmark, with what there is."""
    try:
        return PROTOCOLS[name]
    except KeyError:
        raise UnknownBenchmark(f"There is no protocol {name!r}: {closest(name, PROTOCOLS)}") from None
