"""`winnow eval --write`: prompts in a file are those of a run, and `winnow heads` judges answers as a run does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import winnow
from support.benchmark_files import longbench_row, write_lines
from support.text import flat
from winnow.bundled import HEADS_PATH, MODEL_PATH
from winnow.commands.heads.prompts_file import is_prompts, read_prompts
from winnow.errors import WinnowError
from winnow.estimate.asking import asked_tokens
from winnow.estimate.cokv.settings import Terms
from winnow.estimate.cokv.utility import CoalitionUtility
from winnow.estimate.tune.put import put_answers
from winnow.estimate.tune.questions import PutDocument, put_pages_of
from winnow.heads import BudgetCurves, HeadScores
from winnow.models import load_model, open_model
from winnow.runs import reading
from winnow.runs.folder import read_run
from winnow.tasks import generate_document
from winnow.tasks.prompt_style import USUAL

pytestmark = pytest.mark.usefixtures("one_thread")

TEMPLATE = "Somebody says: {{ messages[0]['content'] }} The answer is"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A LongBench folder, and a file of questions that the bundled model answers, some about one text."""
    pages = [generate_document(seed, 400 if seed == 7 else 200, 1) for seed in range(8)]
    rows = [longbench_row(number, context=page.text) for number, page in enumerate(pages)]
    write_lines(tmp_path / "bench" / "hotpotqa.jsonl", rows)
    classes = {"all_classes": ["Anna", "Food", "Anna B."]}
    write_lines(tmp_path / "bench" / "trec.jsonl", [row | classes for row in rows])
    lines = [
        {
            "context": page.text,
            "question": f"\n\nQuestion: {question.text}\n",
            "answer_prefix": f"Answer: {lead}".rstrip(),
            "answers": [question.answer, "no"],
            "metric": "token_f1" if number % 2 else "contains_any",
            "max_new_tokens": 6 if number % 2 else 3,
            "first_line": bool(number % 2),
            "task": "odd" if number % 2 else "even",
        }
        for number, page in enumerate(pages)
        for question in page.questions[:2]
        for lead in ("the", "")
    ]
    write_lines(tmp_path / "own.jsonl", lines)
    return tmp_path


@pytest.fixture
def model(folder: Path) -> Path:
    """The bundled model with a chat template, as if it read 300 tokens."""
    path = folder / "reads-300"
    shutil.copytree(MODEL_PATH, path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 300}))
    (path / "chat_template.jinja").write_text(TEMPLATE)
    return path


def page_key(page: PutDocument) -> tuple[str, str]:
    return page.puts[0].task, page.text


CASES = {
    "validation": ("longbench", "--data", "bench", "--protocol", "longbench-cokv", "--split", "validation"),
    "headkv": ("longbench", "--data", "bench", "--protocol", "longbench-headkv", "--split", "validation"),
    "template": ("longbench", "--data", "bench", "--protocol", "longbench", "--examples", "2"),
    "own": ("file", "--data", "own.jsonl"),
    "generated": ("niah", "--tasks", "single", "--lengths", "200", "--examples", "2"),
}


@pytest.mark.parametrize("case", CASES)
def test_written_prompts_are_those_of_a_run_and_judged_as_there(winnow_run, folder, model, case, monkeypatch):
    fewer = ("--examples", "8") if case == "own" else ()
    asked = (*CASES[case], *fewer, "--model", str(model))
    code, _, err = winnow_run("eval", *asked, "--write", "prompts.jsonl")
    assert code == 0, err
    assert "prompts.jsonl: " in err
    encoded: dict[str, torch.Tensor] = {}
    encode = reading.example_tokens

    def remembered(tokenizer, example, chat_template):
        found = encode(tokenizer, example, chat_template)
        encoded[example.context + example.question + example.answer_prefix] = found
        return found

    monkeypatch.setattr(reading, "example_tokens", remembered)
    given = ("--methods", "snapkv@24", "--allow-zero", "--out", "run", "--batch", "1")
    code, _, err = winnow_run("eval", *asked, *given)
    assert code == 0, err
    source = open_model(str(model))
    found = read_prompts("prompts.jsonl", source)
    rows = {(row.task, row.example, row.method): row for row in read_run(Path("run")).rows}
    lines = [json.loads(line) for line in Path("prompts.jsonl").read_text().splitlines()]
    assert len(lines) == len(found.examples) == len(rows) // 2
    loaded = load_model(source)
    utility = CoalitionUtility(loaded, source.tokenizer, found.examples, Terms())
    everything = torch.ones(1, 4, 4, dtype=torch.bool)
    for number, (line, example) in enumerate(zip(lines, found.examples, strict=True)):
        row = rows[line["task"], line["name"], "full"]
        document, question, expected, put = example
        tokens = asked_tokens(source.tokenizer, document, question, USUAL, put)
        assert torch.equal(tokens, encoded[document + question + put.answer_prefix])
        assert tokens.shape[1] == row.prompt_tokens
        assert (line["truncated"], list(expected.answers)) == (row.truncated, row.answers)
        assert utility(number, everything) == [row.scores[row.measure]]
    methods = [winnow.method("full"), winnow.method("snapkv", 24)]
    for page in put_pages_of((*each[:3], each.put, "") for each in found.examples):
        told = list(put_answers(loaded, source.tokenizer, page, methods))
        names = [each["name"] for each in lines if (each["task"], each["prompt"]["context"]) == page_key(page)]
        for method in methods:
            of_run = [rows[page.puts[0].task, name, str(method)] for name in names]
            assert [worth for each, worth in told if each == method] == [row.scores[row.measure] for row in of_run]
    if case in ("own", "generated"):
        assert any(row.scores[row.measure] for row in rows.values())
    if case == "own":
        assert any(row.truncated for row in rows.values())


def written(winnow_run, *asked: str) -> None:
    code, _, err = winnow_run("eval", *asked, "--write", "prompts.jsonl", "--force")
    assert code == 0, err


def test_what_is_written_is_told_and_nothing_is_replaced_unasked(winnow_run, folder, no_weights):
    rows = [longbench_row(number, context=f"A cat is in house {number}. " * 4) for number in range(40)]
    write_lines(folder / "bench" / "hotpotqa.jsonl", rows)
    given = ("eval", *CASES["headkv"], "--write", "prompts.jsonl")
    code, out, err = winnow_run(*given)
    assert (code, out) == (0, "")
    assert "longbench-headkv has no limit for a model of this name" in flat(err)
    assert "prompts.jsonl: 6 of hotpotqa, 1 of trec" in flat(err)
    code, _, err = winnow_run(*given)
    assert (code, "--force to replace it" in flat(err)) == (1, True)
    parts = {part: names(winnow_run, "headkv", part) for part in ("test", "validation", "rest")}
    assert parts["test"] == parts["validation"] | parts["rest"]
    assert not parts["validation"] & parts["rest"]
    # CoKV's rows are of what validation does not hold, HeadKV's of all.
    assert names(winnow_run, "validation", "test") == names(winnow_run, "validation", "rest") == parts["rest"]


def names(winnow_run, case: str, part: str) -> set[tuple[str, str]]:
    written(winnow_run, *CASES[case][:-1], part)
    return {(line["task"], line["name"]) for line in map(json.loads, Path("prompts.jsonl").read_text().splitlines())}


def test_examples_with_the_same_texts_are_written_once(winnow_run, folder, no_weights):
    """As a run counts them."""
    lines = (folder / "own.jsonl").read_text().splitlines(keepends=True)
    (folder / "own.jsonl").write_text("".join([*lines, lines[0], lines[4], lines[0]]))
    code, _, err = winnow_run("eval", *CASES["own"], "--write", "prompts.jsonl")
    assert code == 0, err
    assert "3 of 35 examples repeat others and count once with them." in flat(err)
    assert "prompts.jsonl: 16 of even, 16 of odd" in flat(err)
    assert len(Path("prompts.jsonl").read_text().splitlines()) == 32


@pytest.mark.parametrize(
    ("given", "code", "told"),
    [
        (("facts",), 2, "is required: name the folder of the run"),
        (("facts", "--out", "run", "--write", "a.jsonl"), 2, "it runs nothing, so leave --out out"),
        (("facts", "--shard", "1/2", "--write", "a.jsonl"), 2, "it runs nothing, so leave --shard out"),
        (("facts", "--write", "a.txt"), 1, "is not a name for a .jsonl file"),
        (
            ("text", "--lengths", "200", "--examples", "1", "--write", "a.jsonl"),
            1,
            "judged by probabilities (fidelity)",
        ),
        (("facts", "--split", "rest", "--write", "a.jsonl"), 2, "plain holds no examples out"),
    ],
)
def test_what_cannot_be_written_is_told(winnow_run, folder, no_weights, given, code, told):
    ended, _, err = winnow_run("eval", *given)
    assert (ended, told in flat(err)) == (code, True), err
    assert not Path("a.jsonl").exists()


def test_prompts_of_another_model_are_refused(winnow_run, folder, model, no_weights):
    written(winnow_run, *CASES["own"], "--model", str(model))
    heads = ("heads", "cokv", "--examples", "prompts.jsonl", "--out", "a.safetensors")
    code, _, err = winnow_run(*heads)
    assert code == 1
    assert "has prompts for reads-300; winnow-bundled has another tokenizer, chat template or limit" in flat(err)
    assert "winnow eval file --protocol plain --split test --model" in flat(err)


def cokv(*more: str) -> tuple[str, ...]:
    return ("heads", "cokv", "--examples", "prompts.jsonl", "--out", "a.safetensors", "--samples", "8", *more)


def tune(*more: str) -> tuple[str, ...]:
    given = ("--method", "cokv", "--out", "tuned.json", "--budgets", "24", "--values", "1,5")
    return ("heads", "tune", "--examples", "prompts.jsonl", *given, *more)


def curves(*more: str) -> tuple[str, ...]:
    return ("heads", "curves", "--examples", "prompts.jsonl", "--out", "c.safetensors", *more)


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (cokv("--metric", "token_f1"), "--metric"),
        (cokv("--max-new-tokens", "5"), "--max-new-tokens"),
        (cokv("--no-chat-template"), "--no-chat-template"),
        (cokv("--questions", "3"), "--questions"),
        (tune("--system", "Be short."), "--system"),
        (tune("--metric", "token_f1"), "--metric"),
        (curves("--max-new-tokens", "5"), "--max-new-tokens"),
        (curves("--length", "300"), "--length"),
    ],
)
def test_options_that_prompts_have_themselves_are_refused(winnow_run, folder, no_weights, command, option):
    written(winnow_run, *CASES["own"])
    code, _, err = winnow_run(*command)
    assert code == 2, err
    assert option in err


def test_prompts_without_their_question_are_for_curves_alone(winnow_run, folder, no_weights):
    written(winnow_run, *CASES["own"], "--protocol", "plain-agnostic")
    for command in (cokv(), tune()):
        code, _, err = winnow_run(*command)
        assert code == 1
        assert "plain-agnostic, which compresses a context before the question is known" in flat(err)
    assert read_prompts("prompts.jsonl", open_model(str(MODEL_PATH)), seen=False).origin.protocol == "plain-agnostic"


def test_lines_that_are_none_of_a_file_are_told(winnow_run, folder, source):
    written(winnow_run, *CASES["own"])
    first, second, *_ = Path("prompts.jsonl").read_text().splitlines()
    for changed, told in (
        (second.replace('"split": "test"', '"split": "rest"'), "line 2: it has another benchmark, protocol, part"),
        (second.replace('"max_new_tokens": 3', '"max_new_tokens": 0'), "line 2: max_new_tokens must be"),
        (second[:40], "line 2: not JSON"),
    ):
        Path("prompts.jsonl").write_text(f"{first}\n{changed}\n")
        with pytest.raises(WinnowError, match=told):
            read_prompts("prompts.jsonl", source)
    Path("prompts.jsonl").write_text(json.dumps({"context": "a", "question": "b", "answer": "c"}))
    assert not is_prompts("prompts.jsonl")
    # Whoever takes such a file for questions is told.
    Path("prompts.jsonl").write_text(first)
    code, _, err = winnow_run("run", "--batch", "prompts.jsonl")
    assert (code, "no question" in err) == (1, True)


def test_heads_are_estimated_tuned_and_profiled_by_prompts(winnow_run, folder):
    """Only prompts of the validation part would do so for numbers that are told."""
    lines = [json.loads(line) for line in (folder / "own.jsonl").read_text().splitlines()]
    write_lines(folder / "own.jsonl", [line for line in lines if line["answer_prefix"] == "Answer: the"][::2])
    written(winnow_run, *CASES["own"])
    code, _, err = winnow_run(*cokv("--keep-noise", "--keep-missed"))
    assert code == 0, err
    table = HeadScores.load("a.safetensors")
    benchmark = {"name": "file", "protocol": "plain", "split": "test"}
    assert json.loads(table.settings)["benchmark"] == benchmark
    assert "the tasks' metrics of 8 validation examples of file (protocol plain, test); window 8" in table.notes
    given = ("--examples", "prompts.jsonl", "--share", "0.01")
    code, _, err = winnow_run("heads", "verify", "a.safetensors", *given)
    assert code in (0, 3), err
    code, _, err = winnow_run(
        "heads", "merge", "a.journal.jsonl", "--keep-missed", "--keep-noise", "--out", "b.safetensors"
    )
    assert code == 0, err
    assert HeadScores.load("b.safetensors").values.equal(table.values)
    code, _, err = winnow_run(*tune("--split", "0.5"))
    assert code == 0, err
    told = json.loads(Path("tuned.json").read_text())["protocol"]
    assert told["benchmark"] == benchmark
    assert "metric" not in told
    # Half of each task's contexts.
    assert told["documents"] == {"validation": 4, "test": 4}
    code, _, err = winnow_run(*curves())
    assert code == 0, err
    assert json.loads(BudgetCurves.load("c.safetensors").settings)["benchmark"] == benchmark
    # Prompts that were written anew are others for a journal.
    Path("own.jsonl").write_text("".join(Path("own.jsonl").read_text().splitlines(keepends=True)[:6]))
    written(winnow_run, *CASES["own"])
    code, _, err = winnow_run(*cokv("--force"))
    assert (code, "examples" in err) == (1, True)


def test_a_document_that_questions_cut_in_several_ways_is_in_one_part_of_tuning(winnow_run, folder, model):
    pages = [generate_document(seed, 400, 1) for seed in range(4)]
    lines = [
        {"context": page.text, "question": f" {'Well ' * number}{question.text}", "answers": [question.answer]}
        for page in pages
        for number, question in enumerate(page.questions[:2])
    ]
    write_lines(folder / "own.jsonl", lines)
    written(winnow_run, *CASES["own"], "--model", str(model))
    found = [json.loads(line) for line in Path("prompts.jsonl").read_text().splitlines()]
    assert len({line["prompt"]["context"] for line in found}) == 8
    assert len({line["document"] for line in found}) == 4
    given = ("--split", "0.5", "--model", str(model), "--values", "1", "--scores", str(HEADS_PATH / "cokv.safetensors"))
    code, _, err = winnow_run(*tune(*given))
    assert code == 0, err
    told = json.loads(Path("tuned.json").read_text())["protocol"]
    assert told["documents"] == {"validation": 2, "test": 2}
    assert told["questions"] == {"validation": 4, "test": 4}
    # Files of earlier versions know a document by what is left of it.
    write_lines(Path("prompts.jsonl"), [{name: line[name] for name in line if name != "document"} for line in found])
    assert read_prompts("prompts.jsonl", open_model(str(model))).documents == ("",) * 8
