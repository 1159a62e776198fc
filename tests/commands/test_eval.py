"""`winnow eval`: a whole run, and every way to use it wrongly."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from support.benchmark_files import longbench_row, write_lines
from winnow.bundled import MODEL_PATH
from winnow.commands.eval_work import prepare
from winnow.commands.executors import workers_of_a_device
from winnow.commands.options.eval import EvalOptions
from winnow.errors import WinnowError
from winnow.evaluate.example_prompts import PromptRules, fitted
from winnow.runs.folder import read_run
from winnow.tasks.registry import benchmarks

pytestmark = pytest.mark.usefixtures("one_thread")

# The bundled model knows few of these words, so that it answers none of the questions.
SMALL = ("eval", "facts", "--lengths", "700", "--examples", "2", "--allow-zero")


@pytest.fixture
def folder(tmp_path):
    return tmp_path


def reading(folder: Path, tokens: int, template: str | None = None) -> Path:
    """The bundled model as if it read so many tokens, or were put questions in another template."""
    model = folder / f"reads-{tokens}"
    shutil.copytree(MODEL_PATH, model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": tokens}))
    if template is not None:
        (model / "chat_template.jinja").write_text(template)
    return model


def lengthy(model: Path, benchmark: str, lengths: str | None, **options) -> EvalOptions:
    return EvalOptions(
        benchmark=benchmark, lengths=lengths, examples=2, model=str(model), methods="full", out=Path("run"), **options
    )


@pytest.fixture
def done(winnow_run, folder):
    """A finished run."""
    out = folder / "run"
    code, said, err = winnow_run(*SMALL, "--methods", "snapkv,adakv@64", "--budgets", "10%,30%", "--out", str(out))
    assert code == 0, err
    return out, said, err


def test_a_run_says_what_it_did_and_keeps_every_answer(done):
    out, said, err = done
    assert "facts · protocol plain · winnow-bundled · question seen at compression: yes" in said
    assert "8 results: 2 examples of 1 task, 4 methods" in err
    assert "does not know" in err
    assert "The full cache scores 0 in all examples of facts" in said
    run = read_run(out)
    assert {row.method for row in run.rows} == {"full", "snapkv @ 10%", "snapkv @ 30%", "adakv @ 64"}
    assert len(run.rows) == 8
    assert run.about.measures == {"facts": "contains_any"}
    assert run.about.planned == {method: {"facts": 2} for method in {row.method for row in run.rows}}
    assert run.missing == 0
    assert run.about.environment["processor"]
    assert run.about.command.startswith("winnow eval facts --lengths 700 --examples 2 --allow-zero --methods snapkv,")


def test_the_same_command_does_nothing_twice_and_more_methods_can_be_added(done, winnow_run):
    out, _, _ = done
    before = (out / "cells.jsonl").read_text()
    code, said, err = winnow_run(*SMALL, "--methods", "snapkv", "--budgets", "10%", "--out", str(out))
    assert code == 0
    assert "4 of them known" in err
    assert (out / "cells.jsonl").read_text() == before
    code, said, err = winnow_run(*SMALL, "--methods", "keydiff", "--budgets", "10%", "--out", str(out), "--json")
    assert code == 0
    assert [each["method"] for each in json.loads(said)] == ["full", "keydiff @ 10%"]
    assert (out / "cells.jsonl").read_text().startswith(before)


def test_what_a_run_says_of_itself_is_written_where_it_differs(done, winnow_run):
    """A finished run can be shown from a full disk."""
    out, said, _ = done
    before = (out / "run.json").stat().st_mtime_ns
    again = (*SMALL, "--methods", "snapkv,adakv@64", "--budgets", "10%,30%", "--out", str(out))
    code, said_again, err = winnow_run(*again)
    assert (code, said_again) == (0, said), err
    assert (out / "run.json").stat().st_mtime_ns == before
    code, _, err = winnow_run(*again, "--batch", "1")
    assert code == 0, err
    assert (out / "run.json").stat().st_mtime_ns != before


def test_an_argument_that_is_no_utf8_is_spelled_out(winnow_run, folder):
    texts, out = folder / "caf\udce9.jsonl", folder / "run"
    example = {"context": "The cat is in the house. " * 20, "question": "Who?", "answers": ["cat"]}
    texts.write_text(json.dumps(example))
    given = ("eval", "file", "--data", str(texts), "--methods", "snapkv@25%", "--allow-zero", "--out", str(out))
    for _ in range(2):
        code, _, err = winnow_run(*given)
        assert code == 0, err
    assert r"caf\xe9.jsonl" in read_run(out).about.command
    odd = out.rename(folder / "caf\udce9")
    for command in (("report", str(odd), "--out", "page"), ("compare", str(odd), "--csv", "table.csv")):
        code, _, err = winnow_run(*command)
        assert code == 0, err


def test_a_folder_keeps_to_its_texts(winnow_run, folder):
    data, out = folder / "texts.jsonl", folder / "run"
    given = ("eval", "file", "--data", str(data), "--methods", "snapkv@25%", "--allow-zero", "--out", str(out))
    for animal, ends in (("cat", 0), ("dog", 1), ("cat", 0)):
        example = {"context": f"The {animal} is in the house. " * 20, "question": "Who?", "answers": [animal]}
        data.write_text(json.dumps(example) + "\n")
        before = (out / "run.json").read_text() if animal == "dog" else ""
        code, _, err = winnow_run(*given)
        assert code == ends, err
        if animal == "dog":
            assert "results of other texts, in which example 1 of file was a different one" in " ".join(err.split())
            assert (out / "run.json").read_text() == before
    assert len(read_run(out).rows) == 2


def test_babilong_has_facts_alone(winnow_run, folder):
    given = ("eval", "babilong", "--lengths", "0", "--tasks", "qa1", "--examples", "1", "--methods", "snapkv@50%")
    code, _, err = winnow_run(*given, "--allow-zero", "--out", str(folder / "run"))
    assert code == 0, err
    assert {row.facts["length"] for row in read_run(folder / "run").rows} == {0}


def test_shards_fill_one_folder(winnow_run, folder):
    given = ["eval", "facts", "--lengths", "700", "--examples", "8", "--allow-zero", "--out", str(folder / "run")]
    given += ["--methods", "snapkv", "--budgets", "10%"]
    # Six questions are about one context.
    for part, told in (("1/2", "12 results of shard 1/2: 6 examples"), ("2/2", "4 results of shard 2/2: 2 examples")):
        code, _, err = winnow_run(*given, "--shard", part)
        assert code == 0, err
        assert told in err
        assert read_run(folder / "run").missing == {"1/2": 4, "2/2": 0}[part]
    run = read_run(folder / "run")
    assert len(run.rows) == 16
    assert sorted(path.name for path in (folder / "run").glob("cells*")) == ["cells.1-of-2.jsonl", "cells.2-of-2.jsonl"]
    # Nothing is left for the whole command, and for shards of another number.
    for more in ((), ("--shard", "2/3")):
        code, _, err = winnow_run(*given, *more)
        assert code == 0, err
    assert read_run(folder / "run").rows == run.rows
    assert [
        len((folder / "run" / name).read_text().splitlines()) for name in ("cells.jsonl", "cells.2-of-3.jsonl")
    ] == [1, 1]
    code, _, err = winnow_run(*given, "--shard", "12/40")
    assert code == 1
    assert "no context for shard 12/40: 2 shards have one" in err


@pytest.fixture
def several(folder):
    """A command about one context with three questions."""
    context = "The code of Anna is 3719. The code of Berta is 5520. The code of Clara is 8004. " * 8
    asked = [{"context": context, "question": f"Code of {name}?"} for name in ("Anna", "Berta", "Clara")]
    write_lines(folder / "several.jsonl", [each | {"answers": ["1"], "max_new_tokens": 3} for each in asked])
    return ("eval", "file", "--data", str(folder / "several.jsonl"), "--allow-zero", "--methods", "snapkv@25%")


def answers_of(folder: Path) -> dict[str, tuple[str, float]]:
    """By cell, each once."""
    rows = [json.loads(line) for line in (folder / "cells.jsonl").read_text().splitlines()[1:]]
    found = {row["cell"]: (row["prediction"], row["held_bytes"]) for row in rows}
    assert len(found) == len(rows) == 6
    return found


def test_every_number_of_a_folder_counts_a_repeated_example_once(several, winnow_run, folder):
    data = folder / "several.jsonl"
    texts = data.read_text().splitlines()
    data.write_text("\n".join([*texts, texts[0], texts[2]]))
    code, said, err = winnow_run(*several, "--out", str(folder / "run"), "--json")
    assert code == 0, err
    assert "2 of 5 examples repeat others and count once with them." in err
    assert [each["examples"] for each in json.loads(said)] == [3, 3]
    assert len(answers_of(folder / "run")) == 6
    code, said, err = winnow_run("compare", str(folder / "run"), "--json")
    assert code == 0, err
    assert json.loads(said)["examples"] == 3


def test_free_memory_decides_how_many_questions_go_side_by_side(several, winnow_run, folder, monkeypatch):
    told = {}
    for name, free, given in (("plenty", 10**12, ()), ("short", 10**3, ()), ("given", 10**3, ("--batch", "2"))):
        monkeypatch.setattr("winnow.models.devices.available_memory", lambda device, free=free: free)
        code, _, told[name] = winnow_run(*several, *given, "--out", str(folder / name))
        assert code == 0, told[name]
    assert answers_of(folder / "plenty") == answers_of(folder / "short") == answers_of(folder / "given")
    assert "Up to 3 questions about one context go side by side, which takes about " in told["plenty"]
    assert "have no room" not in told["plenty"]
    assert "Prompts go one by one, which takes about " in told["short"]
    assert " of the 1000 B that are free: more have no room." in told["short"]
    assert "Only 1000 B are free: use shorter --lengths." in told["short"]
    assert "Up to 2 questions" in told["given"]
    assert "have no room" not in told["given"]
    assert "Only 1000 B are free: use a smaller --batch, or shorter --lengths." in told["given"]


@pytest.mark.parametrize(
    ("executor", "workers", "device", "gpus", "expected"),
    [
        ("local", 4, "auto", 2, 1),
        ("processes", 3, "cpu", 0, 3),
        ("processes", 3, "auto", 2, 2),
        ("processes", 3, "cuda:1", 2, 3),
        ("processes", 2, "cuda", 4, 1),
        ("ray", 3, "auto", 2, 1),
        ("ray", 3, "cpu", 0, 3),
    ],
)
def test_workers_of_a_device_divide_it(monkeypatch, executor, workers, device, gpus, expected):
    monkeypatch.setattr("winnow.commands.executors.gpus_for", lambda device: gpus)
    options = EvalOptions(benchmark="facts", out=Path("run"), executor=executor, workers=workers)
    assert workers_of_a_device(options, device) == expected


def test_a_run_goes_on_with_another_number_of_questions_side_by_side(several, winnow_run, folder):
    out = ("--out", str(folder / "run"))
    code, _, err = winnow_run(*several, *out, "--batch", "1")
    assert code == 0, err
    before = (folder / "run" / "cells.jsonl").read_text()
    code, _, err = winnow_run(*several, *out)
    assert code == 0, err
    assert "6 of them known" in err
    assert (folder / "run" / "cells.jsonl").read_text() == before
    lines = before.splitlines(keepends=True)
    (folder / "run" / "cells.jsonl").write_text("".join(lines[:-2]))  # two questions of a method are gone
    code, _, err = winnow_run(*several, *out)
    assert code == 0, err
    after = (folder / "run" / "cells.jsonl").read_text().splitlines(keepends=True)
    assert after[: len(lines) - 2] == lines[:-2]
    assert len(answers_of(folder / "run")) == 6


def test_a_full_cache_that_fails_stops_the_run_with_what_it_said(winnow_run, folder):
    given = ("eval", "facts", "--lengths", "700", "--examples", "6", "--methods", "snapkv", "--budgets", "10%")
    code, _, err = winnow_run(*given, "--out", str(folder / "run"))
    assert code == 1
    assert "scores 0 in the first" in err
    assert "--allow-zero" in err


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("eval", "fact"), "did you mean 'facts'"),
        (("eval", "facts", "--protocol", "plane"), "did you mean 'plain'"),
        (("eval", "facts", "--protocol", "longbench-cokv"), "is for longbench"),
        (("eval", "facts", "--split", "validation"), "holds no examples out"),
        (("eval", "facts", "--data", "questions.jsonl"), "facts generates its own texts; leave --data out"),
        (("eval", "facts", "--methods", "snapk"), "did you mean 'snapkv'"),
        (("eval", "facts", "--methods", ","), "there is no method in it"),
        (("eval", "facts", "--lengths", "some"), "not a list of numbers of tokens"),
        (("eval", "facts", "--lengths", ","), "',' names nothing"),
        (("eval", "facts", "--tasks", " , "), "names nothing"),
        (("eval", "longbench", "--lengths", "2048"), "longbench is not generated, so its texts have fixed lengths"),
        (("eval", "facts", "--workers", "4"), "also pass --executor processes or ray"),
        (("eval", "facts", "--shard", "3/2"), "not of the form I/N"),
        (("eval", "ruler", "--protocol", "ruler-spark-8k", "--lengths", "4096"), "has prompts of 8,192 tokens"),
        (("eval", "facts", "--budgets", "5%,,"), "not a list of budgets"),
        (("eval", "facts", "--methods", "full,h2o@1MiB,snapkv@300B"), "cannot hold the 8 tokens per head that snapkv"),
        (("eval", "facts", "--fold", "8", "--together", "2"), "methods that fold cannot be decoded side by side"),
    ],
)
def test_mistakes_are_told_before_weights_are_loaded(winnow_run, folder, monkeypatch, given, told):
    monkeypatch.setattr("winnow.commands.loading.load_model", lambda *_: pytest.fail("the model was loaded"))
    code, out, err = winnow_run(*given, "--out", str(folder / "run"))
    assert code == 2
    assert out == ""
    assert told in " ".join(err.split())
    assert not (folder / "run").exists()


def test_a_protocol_about_a_length_has_prompts_of_it(folder):
    model = reading(folder, 9000)
    (task,) = prepare(lengthy(model, "ruler", None, protocol="ruler-spark-8k", tasks="niah_multikey_2")).tasks
    assert {example.facts["length"] for example in task.examples} == {8192}


def test_texts_that_cannot_be_had_are_told_before_weights_are_loaded(winnow_run, folder, monkeypatch):
    monkeypatch.setattr("winnow.commands.loading.load_model", lambda *_: pytest.fail("the model was loaded"))
    code, _, err = winnow_run("eval", "facts", "--lengths", "20", "--out", str(folder / "run"))
    assert code == 1
    assert "do not fit into 20 tokens" in err


@pytest.mark.parametrize(
    ("change", "told"),
    [(("--seed", "1"), "another seed"), (("--protocol", "plain-agnostic"), "another protocol")],
)
def test_a_folder_of_another_run_is_left_as_it_is(done, winnow_run, change, told):
    out, _, _ = done
    before = {path.name: path.read_text() for path in out.iterdir()}
    code, _, err = winnow_run(*SMALL, "--methods", "snapkv", *change, "--out", str(out))
    assert code == 1
    assert told in " ".join(err.split())
    assert {path.name: path.read_text() for path in out.iterdir()} == before


def test_benchmarks_protocols_and_metrics_are_listed(winnow_run):
    code, out, _ = winnow_run("benchmarks")
    assert code == 0
    assert all(each.name in out for each in benchmarks())
    code, out, _ = winnow_run("benchmarks", "facts")
    assert "plain-agnostic" in out
    code, out, _ = winnow_run("benchmarks", "--protocols", "--json")
    assert "ruler-kvpress" in [each["name"] for each in json.loads(out)]
    code, out, _ = winnow_run("benchmarks", "--metrics")
    assert "contains_all" in out
    for each in benchmarks():
        code, out, _ = winnow_run("benchmarks", each.name, "--json")
        assert json.loads(out)["tasks"].keys() == each.tasks.keys()


def test_examples_that_no_metric_can_judge_are_told_before_weights_are_loaded(winnow_run, folder, monkeypatch):
    monkeypatch.setattr("winnow.commands.loading.load_model", lambda *_: pytest.fail("the model was loaded"))
    line = {"context": "A text.", "question": " Why?", "answers": "no number", "metric": "final_number"}
    (folder / "own.jsonl").write_text(json.dumps(line))
    code, _, err = winnow_run("eval", "file", "--data", str(folder / "own.jsonl"), "--out", str(folder / "run"))
    assert code == 1
    assert "file, example 1: " in err


def test_a_protocol_with_limits_says_which_one_it_took(winnow_run, folder):
    write_lines(folder / "qasper.jsonl", [longbench_row(0)])
    given = ["eval", "longbench", "--data", str(folder / "qasper.jsonl"), "--protocol", "longbench-headkv"]
    code, _, err = winnow_run(*given, "--methods", "full", "--out", str(folder / "run"))
    assert code == 0, err
    assert "has no limit for a model of this name" in err
    assert "llama-3" in err
    named = folder / "tiny-Llama-3-8B"
    shutil.copytree(MODEL_PATH, named)
    other = (*given, "--methods", "full", "--model", str(named), "--out")
    about = (folder / "run" / "run.json").read_text()
    code, _, err = winnow_run(*other, str(folder / "run"))
    assert code == 1
    assert "differs in limit" in err
    assert (folder / "run" / "run.json").read_text() == about
    code, _, err = winnow_run(*other, str(folder / "other"))
    assert code == 0, err
    assert "cuts the prompts of this model at 7,950 tokens" in err


def test_what_is_held_out_does_not_depend_on_how_many_are_drawn(folder):
    write_lines(
        folder / "qasper.jsonl", [longbench_row(number) | {"context": f"Text {number}."} for number in range(40)]
    )

    def drawn(split, examples):
        options = EvalOptions(
            benchmark="longbench",
            protocol="longbench-cokv",
            data=folder / "qasper.jsonl",
            split=split,
            examples=examples,
            methods="snapkv@10%",
            out=folder / "run",
        )
        return {example.name for task in prepare(options).tasks for example in task.examples}

    tests, held_out = drawn("test", None), drawn("validation", None)
    assert (len(tests), len(held_out)) == (34, 6)
    assert len(drawn("test", 10)) == 10
    assert drawn("test", 10) < drawn("test", 20) < tests
    assert drawn("validation", 3) < held_out


@pytest.mark.parametrize(("benchmark", "tasks"), [("niah", "single,multi"), ("facts", None), ("text", None)])
def test_generated_prompts_are_never_cut(folder, benchmark, tasks):
    """The longest that is advised fits, template, special tokens and answer included, and no longer one does."""
    model = reading(folder, 1100, "Somebody asks: {{ messages[0]['content'] }} The answer is")
    with pytest.raises(WinnowError, match="reads at most 1,100 tokens, too few for prompts of 1,100 ") as told:
        prepare(lengthy(model, benchmark, "900,1100", tasks=tasks))
    most = int(re.search(r"--lengths of (\d+) at most", str(told.value))[1])
    with pytest.raises(WinnowError, match=f"{most} at most"):
        prepare(lengthy(model, benchmark, str(most + 1), tasks=tasks))
    work = prepare(lengthy(model, benchmark, f"900,{most}", tasks=tasks))
    for task in work.tasks:
        rules = PromptRules(task.judging.chat_template, None, 1100 - task.judging.max_new_tokens)
        assert not any(fitted(work.source.tokenizer, each, rules).truncated for each in task.examples)


def test_usual_lengths_that_a_model_does_not_read_are_told_before_weights_are_loaded(winnow_run, folder, no_weights):
    code, _, err = winnow_run("eval", "niah", "--methods", "full", "--out", str(folder / "run"))
    assert code == 1
    assert "too few for prompts of 2,048 and 4,096 plus what template and task add" in " ".join(err.split())
    assert not (folder / "run").exists()


def test_a_protocol_may_cut_generated_prompts(folder):
    """As papers did: it tells where."""
    model = reading(folder, 8000).rename(folder / "tiny-llama-3")
    work = prepare(lengthy(model, "babilong", "9000", tasks="qa1", protocol="babilong-headkv"))
    assert work.most_prompt_tokens == 7950


def test_an_answer_that_the_model_cannot_write_is_told(winnow_run, folder, monkeypatch):
    monkeypatch.setattr("winnow.commands.loading.load_model", lambda *_: pytest.fail("the model was loaded"))
    line = {"context": "A text.", "question": " Why?", "answers": "no", "max_new_tokens": 5000}
    (folder / "own.jsonl").write_text(json.dumps(line))
    code, _, err = winnow_run("eval", "file", "--data", str(folder / "own.jsonl"), "--out", str(folder / "run"))
    assert code == 1
    assert "Answers to file have up to 5,000 tokens" in " ".join(err.split())
