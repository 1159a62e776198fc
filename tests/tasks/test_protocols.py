"""The table of protocols, and the rows of papers in it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from winnow.runs.cells import CellSpace
from winnow.tasks import full_rows
from winnow.tasks.benchmark import BenchmarkError
from winnow.tasks.full_rows import Printed
from winnow.tasks.protocol import Protocol
from winnow.tasks.protocols import PROTOCOLS, protocol, protocols

PAGE = Path(__file__).resolve().parents[2] / "docs" / "protocols.md"

PRINTED = [
    *full_rows.HEADKV_SIX,
    *full_rows.HEADKV_TEN,
    *full_rows.HEADKV_LOOGLE,
    *full_rows.COKV,
    *full_rows.KVEC,
    *full_rows.SPARK,
    full_rows.SPARK_RULER_8K,
    full_rows.SPARK_RULER_16K,
]


@pytest.mark.parametrize("row", PRINTED, ids=lambda row: f"{row.model}-{len(row.tasks)}-{row.mean}")
def test_rows_have_the_mean_that_is_printed_beside_them(row: Printed) -> None:
    scores = [float(score) for score in row.scores.split()]
    assert len(scores) == len(row.tasks)
    assert sum(scores) / len(scores) == pytest.approx(row.mean, abs=0.011)


def test_every_printed_row_is_in_a_protocol() -> None:
    held = [(model, scores) for each in protocols() for model, scores in each.full_rows.items()]
    for row in PRINTED:
        scores = dict(zip(row.tasks, map(float, row.scores.split()), strict=True))
        assert any(model == row.model and scores.items() <= there.items() for model, there in held)


def test_the_two_longbench_protocols_of_the_papers_differ_in_their_rows() -> None:
    first = [list(PROTOCOLS[name].full_rows["Meta-Llama-3-8B-Instruct"].values())[:6] for name in (
        "longbench-headkv", "longbench-cokv", "longbench-spark")]  # fmt: skip
    assert first == [
        [25.56, 32.07, 39.71, 43.57, 35.28, 21.18],
        [24.12, 31.24, 39.85, 45.23, 34.56, 21.09],
        [22.48, 44.72, 46.23, 48.49, 44.71, 24.43],
    ]


def test_protocols_are_plain_data_with_names_of_their_own() -> None:
    names = [each.name for each in protocols()]
    assert len(set(names)) == len(names) == len(PROTOCOLS)
    for each in protocols():
        assert json.loads(json.dumps(asdict(each)))["name"] == each.name
        assert each.summary
        assert "\n" not in each.summary
        assert each.source or not each.benchmarks


def test_prompts_are_cut_by_the_model_s_name() -> None:
    headkv, spark = protocol("longbench-headkv"), protocol("longbench-spark")
    assert headkv.prompt_limit("meta-llama/Meta-Llama-3-8B-Instruct") == 7950
    assert headkv.prompt_limit("mistralai/Mistral-7B-Instruct-v0.2") == 31_500
    assert headkv.prompt_limit("Qwen/Qwen2.5-0.5B") is None
    assert spark.prompt_limit("meta-llama/Meta-Llama-3-8B-Instruct") == 7950
    assert spark.prompt_limit("meta-llama/Llama-3.1-8B-Instruct") == 127_500


@pytest.mark.parametrize("name", ["longbench-headkv", "loogle-headkv", "longbench-cokv", "babilong-headkv"])
def test_later_llamas_are_not_cut_as_the_first_of_their_number(name: str) -> None:
    limits = [protocol(name).prompt_limit(f"meta-llama/Llama-{each}-Instruct") for each in ("3.1-8B", "3.2-3B", "3-8B")]
    assert limits == [None, None, 7950]


def test_babilong_has_limits_of_its_own() -> None:
    names = ("Qwen/Qwen2-7B-Instruct", "microsoft/Phi-3-mini-128k-instruct")
    assert [protocol("babilong-headkv").prompt_limit(name) for name in names] == [31_500, 31_500]
    assert [protocol("longbench-headkv").prompt_limit(name) for name in names] == [None, None]


def test_the_longest_part_of_a_name_decides() -> None:
    limits = {"llama": 10, "llama-3": 20}
    made = Protocol("made", "", (), chat_template=False, question_seen=True, max_prompt_tokens=5, model_limits=limits)
    assert [made.prompt_limit(name) for name in ("Llama-2", "Llama-3-8B", "other")] == [10, 20, 5]


def test_an_unknown_protocol_is_told_with_what_there_is() -> None:
    with pytest.raises(BenchmarkError, match=r"no protocol 'longbench-headv': did you mean 'longbench-headkv'\?"):
        protocol("longbench-headv")


def lines_of(name: str) -> list[list[str]]:
    """Cells of the page's table rows about a protocol, without its name."""
    begin = f"| `{name}` | "
    lines = (line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith(begin))
    return [line.removeprefix(begin).removesuffix(" |").split(" | ") for line in lines]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_the_page_tells_what_the_table_says(name: str) -> None:
    each, (told, *rows) = PROTOCOLS[name], lines_of(name)
    limits = ", ".join(f"{limit:,}" for limit in sorted({most for most in each.model_limits.values() if most})) or "—"
    assert told == [
        ", ".join(f"`{benchmark}`" for benchmark in each.benchmarks) or "any",
        "yes" if each.chat_template else "no",
        "yes" if each.question_seen else "no",
        limits,
        f"{each.validation.share:.0%}{', tested too' if each.validation.tested else ''}" if each.validation else "—",
    ]
    printed: dict[str, list[float]] = {}
    for model, *scores in rows:
        printed.setdefault(model, []).extend(map(float, scores))
    assert printed == {model: list(scores.values()) for model, scores in each.full_rows.items()}


def test_lengths_in_names_of_protocols_are_those_of_their_prompts() -> None:
    assert {each.name: each.lengths for each in protocols() if each.lengths} == {
        "ruler-spark-8k": (8192,),
        "ruler-spark-16k": (16_384,),
    }


def test_what_is_held_out_is_no_part_of_cells() -> None:
    """Runs from before HeadKV's validation was known go on."""
    rules = protocol("longbench-headkv")
    assert CellSpace("a", rules).config() == CellSpace("a", replace(rules, validation=None)).config()
