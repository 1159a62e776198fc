"""Files of lm-evaluation-harness: fields as lm-eval 0.4.13 writes them; where it is there, its functions read them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import PurePath

import pytest

from support.written_runs import rows_of, run_of
from winnow.runs.export import harness_files
from winnow.runs.folder import RunError

RESULTS = """results group_subtasks configs versions n-shot higher_is_better n-samples config git_hash date
pretty_env_info transformers_version lm_eval_version upper_git_hash task_hashes model_source model_name
model_name_sanitized system_instruction system_instruction_sha fewshot_as_multiturn chat_template chat_template_sha
total_evaluation_time_seconds""".split()
SAMPLE = """doc_id doc target arguments resps filtered_resps filter metrics doc_hash prompt_hash target_hash""".split()
FOLDER = PurePath("adakv__@__10%") / "some__model"


@pytest.fixture
def files():
    rows = [
        *rows_of("qa", "adakv @ 10%", [1.0, 0.0, 1.0, 1.0]),
        *rows_of("text", "adakv @ 10%", [2.0], measure="nll"),
        *rows_of("qa", "full", [1.0]),
    ]
    return harness_files(run_of(rows, measures={"qa": "contains_all", "text": "fidelity"}))


def test_every_method_has_its_results_and_samples(files):
    assert [str(path) for path in files if path.parent == FOLDER] == [
        f"{FOLDER}/results_2026-01-01T00-00-00.json",
        f"{FOLDER}/samples_qa_2026-01-01T00-00-00.jsonl",
        f"{FOLDER}/samples_text_2026-01-01T00-00-00.jsonl",
    ]
    assert {path.parts[0] for path in files} == {"adakv__@__10%", "full"}


def test_results_have_the_fields_that_the_harness_writes(files):
    found = json.loads(files[FOLDER / "results_2026-01-01T00-00-00.json"])
    assert set(found) == {*RESULTS, "winnow"}
    qa = found["results"]["qa"]
    assert (qa["alias"], qa["sample_len"], qa["contains_all,none"]) == ("qa", 4, 0.75)
    assert qa["contains_all_stderr,none"] == pytest.approx(0.25)  # sqrt(0.75 * 0.25 * 4 / 3 / 4)
    assert found["results"]["text"]["nll_stderr,none"] == "N/A"
    assert found["higher_is_better"] == {"qa": {"contains_all": True}, "text": {"nll": False}}
    assert found["config"]["model_args"] == {"pretrained": "some/model", "method": "adakv @ 10%"}
    assert found["winnow"]["protocol"] == {"name": "plain", "question_seen": True}
    kinds = {task: config["output_type"] for task, config in found["configs"].items()}
    assert kinds == {"qa": "generate_until", "text": "loglikelihood"}
    assert found["date"] == 1767225600.0


def test_samples_have_the_fields_that_the_harness_writes(files):
    lines = files[FOLDER / "samples_qa_2026-01-01T00-00-00.jsonl"].splitlines()
    found = [json.loads(line) for line in lines]
    assert [each["doc_id"] for each in found] == [0, 1, 2, 3]
    assert all(set(each) == {*SAMPLE, "contains_all"} for each in found)
    assert (found[1]["contains_all"], found[0]["metrics"]) == (0.0, ["contains_all"])
    assert (found[0]["resps"], found[0]["filtered_resps"]) == ([["the number is 7"]], ["the number is 7"])


def test_the_harness_makes_its_table_of_them(files):
    utils = pytest.importorskip("lm_eval.utils")
    name = FOLDER / "results_2026-01-01T00-00-00.json"
    table = utils.make_table(json.loads(files[name]))
    (line,) = (line for line in table.splitlines() if line.startswith("|qa"))
    assert [each.strip() for each in line.strip("|").split("|")] == "qa 1 none 0 contains_all ↑ 0.75 ± 0.25".split()
    assert utils.sanitize_model_name("some/model") == FOLDER.name
    samples = [str(path) for path in files if path.name.startswith("samples_qa")]
    assert utils.get_file_task_name(PurePath(samples[0]).name) == "qa"
    assert utils.get_results_filenames([str(path) for path in files if path.parent == FOLDER]) == [str(name)]


def test_names_of_tasks_do_not_lead_elsewhere():
    rows = [replace(row, task="../../up") for row in rows_of("x", "full", [1.0])]
    assert all(len(path.parts) == 3 for path in harness_files(run_of(rows)))


def test_a_run_without_a_date_is_told():
    with pytest.raises(RunError, match="'yesterday'"):
        harness_files(run_of(rows_of("qa", "full", [1.0]), started="yesterday"))


def test_names_are_as_long_as_files_may_be_and_no_two_the_same():
    long = "t" * 300
    run = run_of([row for task in ("a b", "a:b", long) for row in rows_of(task, f"{'m' * 300} @ 10%", [1.0])])
    files = harness_files(run)
    assert len(files) == 1 + 3
    assert max(len(part.encode()) for path in files for part in path.parts) <= 255
    assert len({path for path in files if "samples_a__b" in path.name}) == 2


def test_a_date_that_no_calendar_has_is_told():
    run = run_of(rows_of("a", "full", [1.0]))
    with pytest.raises(RunError, match="does not say when it was started"):
        harness_files(replace(run, about=replace(run.about, started="0001-01-01T00:00:00+14:00")))
