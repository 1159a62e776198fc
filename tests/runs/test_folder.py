"""Runs as their folders keep them."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from support.runs import ABOUT, ROW
from winnow.estimate.journal import Journal
from winnow.runs.folder import About, RunError, going_on, missing_results, read_run


def write_run(folder: Path, about: About = ABOUT, **journals: list[dict[str, object]]) -> None:
    (folder / "run.json").write_text(json.dumps(asdict(about)))
    for name, rows in journals.items():
        journal = Journal.open(folder / f"{name}.jsonl", {"run": "x"})
        for row in rows:
            journal.append(row)
        journal.close()


def test_rows_of_all_journals_are_read_once_and_in_order(tmp_path: Path) -> None:
    other = replace(ROW, cell="b", example="0")
    write_run(tmp_path, cells=[asdict(ROW)], cells_2=[asdict(ROW), asdict(other)])
    run = read_run(tmp_path)
    assert run.about == ABOUT
    assert run.rows == (other, ROW)


def test_a_folder_without_a_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"run\.json"):
        read_run(tmp_path)


def test_a_description_that_cannot_be_read_is_told_with_the_remedy(tmp_path: Path) -> None:
    write_run(tmp_path, replace(ABOUT, command="winnow eval --data caf\udce9.jsonl"))
    with pytest.raises(RunError, match=r"half a surrogate pair.* Delete it and repeat the command"):
        read_run(tmp_path)


def test_a_row_that_is_none_is_named_by_its_line(tmp_path: Path) -> None:
    write_run(tmp_path, cells=[asdict(ROW), {**asdict(ROW), "cell": "b", "held_bytes": -1}])
    with pytest.raises(RunError, match=r"cells\.jsonl, line 3: held_bytes"):
        read_run(tmp_path)


@pytest.mark.parametrize("score", [-0.5, 1.5])
def test_a_share_that_is_none_is_refused(tmp_path: Path, score: float) -> None:
    write_run(tmp_path, cells=[asdict(replace(ROW, scores={"contains_all": score}))])
    with pytest.raises(RunError, match="contains_all must be from 0 to 1"):
        read_run(tmp_path)


def test_another_prediction_of_a_cell_is_refused_though_it_scores_the_same(tmp_path: Path) -> None:
    write_run(tmp_path, cells=[asdict(ROW)], cells_2=[asdict(replace(ROW, prediction="7, it says"))])
    with pytest.raises(RunError, match=r"the result differs from that of the same cell in "):
        read_run(tmp_path)


def test_another_cell_of_one_example_and_method_is_refused_by_both_lines(tmp_path: Path) -> None:
    """Code or a table changed, and an earlier version went on."""
    write_run(tmp_path, cells=[asdict(ROW)], cells_2=[asdict(replace(ROW, cell="b"))])
    told = r"cells_2\.jsonl, line 2: the result of example 1 of niah_single_1 under adakv @ 10% differs from that in "
    with pytest.raises(RunError, match=told + r".*cells\.jsonl, line 2, which has other code.*Delete the lines of one"):
        read_run(tmp_path)


def test_a_run_that_goes_on_keeps_its_beginning(tmp_path: Path) -> None:
    later = replace(ABOUT, command="winnow eval more", started="2027-01-01", measures={"vt": "contains_all"})
    assert going_on(tmp_path, later) == later
    write_run(tmp_path)
    found = going_on(tmp_path, later)
    assert found.command.splitlines() == [ABOUT.command, "winnow eval more"]
    assert (found.started, found.measures) == (ABOUT.started, {**ABOUT.measures, **later.measures})
    assert going_on(tmp_path, ABOUT) == ABOUT


def test_a_run_that_goes_on_elsewhere_keeps_the_environments_of_its_rows(tmp_path: Path) -> None:
    elsewhere = {"processor": "another", "threads": "4"}
    later = replace(ROW, cell="b", example="2", environment=elsewhere)
    write_run(tmp_path, cells=[asdict(ROW), asdict(later)])
    assert going_on(tmp_path, replace(ABOUT, environment=elsewhere)) == ABOUT
    run = read_run(tmp_path)
    assert [run.environment_of(row) for row in run.rows] == run.environments == [ABOUT.environment, elsewhere]
    assert run.environment == {"processor": "some processor and another", "threads": "4"}
    assert replace(run, rows=()).environment == ABOUT.environment


def test_a_row_of_before_rows_had_environments_is_read(tmp_path: Path) -> None:
    plain = asdict(ROW)
    del plain["environment"]
    write_run(tmp_path, cells=[plain])
    run = read_run(tmp_path)
    assert run.environment_of(run.rows[0]) == ABOUT.environment


def test_a_run_that_goes_on_keeps_what_was_asked_first(tmp_path: Path) -> None:
    asked = {"seed": 0, "examples": 13, "tasks": "a", "lengths": None, "texts": "t"}
    write_run(tmp_path, about=replace(ABOUT, request=asked))
    found = going_on(tmp_path, replace(ABOUT, request={**asked, "examples": 2, "texts": "u"}))
    assert found.request == asked


@pytest.mark.parametrize("name", ["seed", "split", "fold"])
def test_another_run_is_refused_with_the_command_of_the_first(tmp_path: Path, name: str) -> None:
    write_run(tmp_path)
    with pytest.raises(RunError, match=f"another {name}.*{ABOUT.command}"):
        going_on(tmp_path, replace(ABOUT, request={**ABOUT.request, name: 1}))


def test_a_model_in_a_folder_of_another_name_is_the_same_one(tmp_path: Path) -> None:
    write_run(tmp_path)
    moved = replace(ABOUT, model=replace(ABOUT.model, name="moved"))
    assert going_on(tmp_path, moved) == ABOUT


def test_another_model_in_another_dtype_is_another_model(tmp_path: Path) -> None:
    write_run(tmp_path)
    for name, told in ((ABOUT.model.name, r"another dtype \(.*16 here\)"), ("another", "another model")):
        other = replace(ABOUT, model=replace(ABOUT.model, name=name, dtype="bfloat16"))
        with pytest.raises(RunError, match=told):
            going_on(tmp_path, other)


def test_more_results_than_were_planned_make_up_for_no_others() -> None:
    assert missing_results({("a", "full"): 1, ("b", "full"): 2}, [("a", "full")] * 3) == 2


def test_prompts_of_another_template_are_another_run(tmp_path: Path) -> None:
    known, other = (replace(ABOUT, model=replace(ABOUT.model, prompts=each)) for each in ("a", "b"))
    write_run(tmp_path)
    assert going_on(tmp_path, known) == known  # nobody knows what an earlier version asked with
    (tmp_path / "known").mkdir()
    write_run(tmp_path / "known", about=known)
    assert going_on(tmp_path / "known", known) == known
    with pytest.raises(RunError, match="another tokenizer or chat template"):
        going_on(tmp_path / "known", other)


def test_the_same_model_in_another_dtype_is_told_as_that(tmp_path: Path) -> None:
    write_run(tmp_path)
    model = replace(ABOUT.model, fingerprint="f", dtype="bfloat16", quantized="int8")
    with pytest.raises(RunError, match=r"another dtype \(float32 there, bfloat16 with int8 weights here\)"):
        going_on(tmp_path, replace(ABOUT, model=model))
    with pytest.raises(RunError, match="another model:"):
        going_on(tmp_path, replace(ABOUT, model=replace(ABOUT.model, fingerprint="f")))


def test_results_to_come_are_known_from_what_was_asked(tmp_path: Path) -> None:
    plan = {"full": {"vt": 2}, ROW.method: {ROW.task: 3, "vt": 1}}
    write_run(tmp_path, about=replace(ABOUT, planned=plan), cells=[asdict(ROW)])
    run = read_run(tmp_path)
    assert run.planned == {("vt", "full"): 2, (ROW.task, ROW.method): 3, ("vt", ROW.method): 1}
    assert run.missing == 5
    assert replace(run, rows=(*run.rows, replace(ROW, cell="b", example="2", method="h2o @ 10%"))).missing == 5


def test_a_run_of_before_runs_had_plans_is_read(tmp_path: Path) -> None:
    write_run(tmp_path, cells=[asdict(ROW)])
    about = json.loads((tmp_path / "run.json").read_text())
    del about["planned"]
    (tmp_path / "run.json").write_text(json.dumps(about))
    assert read_run(tmp_path).missing == 0


def test_commands_add_to_what_was_asked(tmp_path: Path) -> None:
    begun = ABOUT.with_plan({"full": {"vt": 5}, "h2o @ 5%": {"vt": 2}})
    write_run(tmp_path, about=begun)
    found = going_on(tmp_path, ABOUT).with_plan({"full": {"vt": 3, "cwe": 1}, "tova @ 5%": {"vt": 3}})
    assert found.planned == {"full": {"vt": 5, "cwe": 1}, "h2o @ 5%": {"vt": 2}, "tova @ 5%": {"vt": 3}}
