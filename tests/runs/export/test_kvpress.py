"""Folders of kvpress' evaluation: names, columns and fields as its `evaluate.py` (October 2026) has them."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from io import StringIO
from pathlib import PurePath

import pytest
import yaml

import winnow
from support.runs import ABOUT
from support.written_runs import rows_of, run_of
from winnow.runs.export import kvpress_files
from winnow.runs.export.press_names import PRESSES, press_name

SNAPKV = "snapkv(window=64, kernel=5, pool=avg, pool_first=true) @ 25%"
REGISTRY = """adakv_snapkv critical_adakv_expected_attention critical_adakv_snapkv critical_expected_attention
critical_snapkv block_keydiff expected_attention keydiff knorm no_press observed_attention pyramidkv random snapkv
streaming_llm tova""".split()
FIELDS = """dataset data_dir model device press_name compression_ratio key_channel_compression_ratio
head_compression_ratio threshold fraction max_new_tokens max_context_length query_aware needle_depth
compression_interval target_size hidden_states_buffer_size output_dir log_level model_kwargs press_init_command seed
fp8""".split()


def ruler(method: str, slots: float, scores: list[float], length: int = 4096):
    return [
        replace(row, slots=slots, facts={"length": length}, prediction=f"it is\x07 {index}", answers=[str(index), "x"])
        for task in ("niah_single_1", "qa_1")
        for index, row in enumerate(rows_of(task, method, scores))
    ]


def agnostic(**more):
    return {"name": "ruler-kvpress", "question_seen": False, **more}


def test_folders_are_named_as_the_evaluation_names_them():
    rows = [*ruler("full", 1000.0, [1.0, 1.0]), *ruler(SNAPKV, 250.0, [1.0, 0.0])]
    files = kvpress_files(run_of(rows, protocol=agnostic()))
    assert {str(path.parent) for path in files} == {
        "ruler__4096__some--model__no_press__0.00",
        "ruler__4096__some--model__snapkv__0.75",
    }
    assert {path.name for path in files} == {"predictions.csv", "metrics.json", "config.yaml"}
    seen = kvpress_files(run_of(rows, protocol=agnostic(question_seen=True, max_prompt_tokens=8192)))
    assert "ruler__4096__some--model__snapkv__0.75__max_context8192__query_aware" in {str(path.parent) for path in seen}


def test_lengths_have_folders_of_their_own():
    rows = [*ruler("full", 1000.0, [1.0]), *[replace(row, example="l") for row in ruler("full", 9.0, [1.0], 8192)]]
    folders = {str(path.parent).split("__")[1] for path in kvpress_files(run_of(rows))}
    assert folders == {"4096", "8192"}


def test_the_ratio_is_that_of_the_context_where_it_is_compressed_alone():
    """Prompts have 1000 tokens, the contexts that are compressed 900."""
    rows = [*ruler("full", 900.0, [1.0]), *ruler(SNAPKV, 225.0, [1.0])]
    folders = {path.parent.name for path in kvpress_files(run_of(rows, protocol=agnostic()))}
    assert folders == {"ruler__4096__some--model__no_press__0.00", "ruler__4096__some--model__snapkv__0.75"}


def test_metrics_are_those_of_rulers_scorer():
    files = kvpress_files(run_of(ruler(SNAPKV, 250.0, [1.0, 0.5, 0.0]), protocol=agnostic()))
    (metrics,) = (json.loads(text) for path, text in files.items() if path.name == "metrics.json")
    assert metrics == {"niah_single_1": {"string_match": 50.0}, "qa_1": {"string_match": 50.0}}


def test_pandas_reads_predictions():
    pandas = pytest.importorskip("pandas")
    files = kvpress_files(run_of(ruler(SNAPKV, 250.0, [1.0, 0.0]), protocol=agnostic()))
    (text,) = (text for path, text in files.items() if path.name == "predictions.csv")
    table = pandas.read_csv(StringIO(text))
    assert {"question", "answer_prefix", "answer", "task", "max_new_tokens", "predicted_answer"} <= set(table.columns)
    assert list(table["compression_ratio"]) == [0.75] * 4
    assert table["predicted_answer"][1] == "it is\x07 1"
    assert ast.literal_eval(table["answer"][1]) == ["1", "x"]
    assert list(table["held_bytes"] / table["full_bytes"]) == [0.1] * 4


def test_the_configuration_has_the_fields_of_the_evaluation():
    files = kvpress_files(run_of(ruler(SNAPKV, 250.0, [1.0]), protocol=agnostic()))
    (config,) = (yaml.safe_load(text) for path, text in files.items() if path.name == "config.yaml")
    assert set(config) <= set(FIELDS)
    assert [name for name in FIELDS if name in config] == list(config)
    assert (config["dataset"], config["data_dir"], config["model"]) == ("ruler", "4096", "some/model")
    assert (config["press_name"], config["compression_ratio"], config["query_aware"]) == ("snapkv", 0.75, False)
    assert config["press_init_command"] == f"winnow.method('{SNAPKV}')"


def test_longbench_has_a_folder_and_a_number_for_every_task():
    about = replace(ABOUT, benchmark="longbench")
    rows = [row for task, score in (("qasper", 0.25), ("trec", 1.0)) for row in rows_of(task, "full", [score, 0.5])]
    files = kvpress_files(run_of(rows, benchmark=about.benchmark, protocol=agnostic()))
    metrics = {
        str(path.parent).split("__")[1]: json.loads(text) for path, text in files.items() if path.stem == "metrics"
    }
    assert metrics == {"qasper": 37.5, "trec": 75.0}
    header = next(text for path, text in files.items() if path.name == "predictions.csv").splitlines()[0]
    assert "answers" in header.split(",")


def test_other_benchmarks_have_their_own_measures():
    files = kvpress_files(run_of(rows_of("text", "full", [2.34567], measure="nll"), benchmark="fidelity"))
    (metrics,) = (json.loads(text) for path, text in files.items() if path.name == "metrics.json")
    assert metrics == {"text": {"nll": 2.3457}}


def test_two_budgets_of_one_ratio_do_not_overwrite_each_other():
    rows = [*ruler("adakv @ 64", 64.0, [1.0]), *ruler("adakv @ 65", 64.2, [1.0])]
    folders = {path.parent for path in kvpress_files(run_of(rows, protocol=agnostic()))}
    first = PurePath("ruler__4096__some--model__winnow-adakv__0.94")
    assert folders == {first, first / "1"}


def test_names_that_lead_elsewhere_stay_in_the_folder():
    rows = [replace(row, task="../../up", facts={}) for row in rows_of("x", "a/../b__c @ 5%", [1.0])]
    (folder,) = {path.parent for path in kvpress_files(run_of(rows, benchmark="../loogle"))}
    assert len(folder.parts) == 1
    assert ".." not in folder.parts
    assert folder.name.count("__") == 5  # dataset, data directory, model, press, ratio, query_aware


def test_presses_are_those_of_the_registry():
    assert set(PRESSES.values()) == set(REGISTRY)


@pytest.mark.parametrize("text", PRESSES)
def test_methods_with_a_press_are_written_as_rows_write_them(text):
    method = f"{text} @ 10%" if text != "full" else text
    assert str(winnow.method(method)) == method


def test_other_methods_keep_their_names():
    assert press_name("snapkv @ 10%") == "winnow-snapkv"
    assert press_name("aperturekv+bits(4) @ 1MiB") == "winnow-aperturekv+bits(4)"


def test_long_names_are_as_long_as_folders_may_be():
    run = run_of(rows_of("t" * 300, "full", [1.0]))
    assert max(len(part.encode()) for path in kvpress_files(run) for part in path.parts) <= 255
