"""`winnow run`: its answers, and every way to use it wrongly."""

from __future__ import annotations

import json

import pytest
import torch

import winnow
from support.asked import ASK_RUN, DOCUMENT, QUESTION, write_asked
from winnow.bundled import MODEL_PATH
from winnow.commands import run_prefills
from winnow.heads import HeadScores
from winnow.models import open_model
from winnow.runs.environment import environment

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files that commands of this module read."""
    folder = tmp_path_factory.mktemp("cli")
    write_asked(folder)
    (folder / "empty.txt").write_text(" \n", encoding="utf-8")
    (folder / "latin.txt").write_bytes("caf\xe9".encode("latin-1"))
    return folder


def test_run_answers_and_says_what_it_held(winnow_run):
    code, out, err = winnow_run(*ASK_RUN, "--budget", "32")
    assert code == 0, err
    assert "question seen at compression: yes" in out
    assert "adakv @ 32" in out
    assert "32 (" in out


def test_run_as_json(winnow_run):
    code, out, err = winnow_run(*ASK_RUN, "--budget", "32", "--compare", "full,snapkv(window=4,kernel=5)", "--json")
    assert code == 0, err
    answers = [json.loads(line) for line in out.splitlines()]
    assert [(a["method"], a["budget"]) for a in answers] == [
        ("adakv", "32"),
        ("full", "everything"),
        ("snapkv(window=4, kernel=5)", "32"),
    ]
    for answer in answers:
        assert answer["question"] == QUESTION.text
        assert answer["question_seen_at_compression"] is True
        assert 0 < answer["compress_seconds"] < answer["prefill_seconds"]
        assert 0 < answer["new_tokens"] <= 4
        assert answer["slots_min"] <= answer["slots_mean"] <= answer["slots_max"]
    assert answers[0]["held_bytes"] < answers[1]["held_bytes"]
    assert answers[1]["slots_mean"] == answers[1]["prompt_tokens"]


def test_times_in_json_name_their_place(winnow_run):
    """Type of the weights, machine, kernels and versions, with every answer."""
    code, out, err = winnow_run(*ASK_RUN, "--budget", "32", "--compare", "full", "--weights", "int8", "--json")
    assert code == 0, err
    for answer in map(json.loads, out.splitlines()):
        assert (answer["dtype"], answer["weights"]) == ("bfloat16", "int8")
        assert answer["environment"] == environment(torch.device("cpu"))
        assert answer["environment"]["winnow"] == winnow.__version__
    plain = json.loads(winnow_run(*ASK_RUN, "--json")[1])
    assert (plain["dtype"], plain["weights"]) == ("float32", None)


def test_parameters_and_budgets_can_be_written_in_several_ways(winnow_run):
    for arguments in (("--set", "window=16", "--set", "floor=0.5"), ("--method", "adakv(16, floor=0.5)")):
        code, out, err = winnow_run(*ASK_RUN, "--budget", "10%", "--json", *arguments)
        assert code == 0, err
        answer = json.loads(out)
        assert (answer["method"], answer["budget"]) == ("adakv(window=16, floor=0.5)", "10%")
    code, out, err = winnow_run(*ASK_RUN, "--method", "adakv@24", "--json")
    assert json.loads(out)["budget"] == "24", err


def test_question_agnostic(winnow_run):
    code, out, err = winnow_run(*ASK_RUN, "--budget", "32", "--question-agnostic")
    assert code == 0, err
    assert "question seen at compression: no" in out


def test_chunked_prefill_changes_nothing(winnow_run):
    answers = [json.loads(winnow_run(*ASK_RUN, "--json", *extra)[1]) for extra in ((), ("--chunk", "64"))]
    assert answers[0]["answer"] == answers[1]["answer"]
    assert answers[0]["slots"] == answers[1]["slots"]


def test_answers_are_folded(winnow_run):
    long = (*ASK_RUN, "--compare", "full", "--budget", "48", "--max-new-tokens", "40", "--fold", "8", "--json")
    for agnostic in ((), ("--question-agnostic",)):
        code, out, err = winnow_run(*long, *agnostic)
        assert code == 0, err
        assert [json.loads(line)["budget"] for line in out.splitlines()] == ["48", "everything"]


def test_document_from_standard_input(winnow_run, monkeypatch, folder):
    with open(folder / "document.txt", encoding="utf-8") as text:
        monkeypatch.setattr("sys.stdin", text)
        code, out, err = winnow_run(*ASK_RUN, "--document", "-", "--json")
    assert code == 0, err
    assert json.loads(out)["prompt_tokens"] > 100


@pytest.mark.parametrize("how", [(), ("--question-agnostic",)])
def test_batch(winnow_run, how):
    ask = ("run", "--document", "document.txt", "--batch", "questions.jsonl", "--max-new-tokens", "3", *how)
    code, out, err = winnow_run(*ask, "--json")
    assert code == 0, err
    answers = [json.loads(line) for line in out.splitlines()]
    assert [a["question"] for a in answers] == [q.text for q in DOCUMENT.questions]
    assert [a["expected"] for a in answers] == [q.answer for q in DOCUMENT.questions]
    assert all(isinstance(a["right"], bool) for a in answers)
    code, out, err = winnow_run(*ask)
    assert all(q.text in out for q in DOCUMENT.questions)
    assert f"/{len(DOCUMENT.questions)}" in out


def test_a_batch_is_judged_by_any_metric_against_several_right_answers(winnow_run, folder):
    questions = [{"question": QUESTION.text, "answer": [QUESTION.answer, "no lemon"]} for _ in range(2)]
    questions[1] = {"question": QUESTION.text, "answers": ["a lemon and " + QUESTION.answer]}
    (folder / "several.jsonl").write_text("\n".join(map(json.dumps, questions)), encoding="utf-8")
    ask = ("run", "--document", "document.txt", "--batch", "several.jsonl", "--method", "full", "--metric", "token_f1")
    code, out, err = winnow_run(*ask, "--max-new-tokens", "3", "--json")
    assert code == 0, err
    first, second = map(json.loads, out.splitlines())
    assert first["expected"] == [QUESTION.answer, "no lemon"]
    assert second["expected"] == f"a lemon and {QUESTION.answer}"
    assert (first["metric"], first["score"], first["right"]) == ("token_f1", 1.0, True)
    said, more = len(QUESTION.answer.split()), len("lemon and".split())
    assert second["score"] == pytest.approx(2 * said / (2 * said + more))
    assert second["right"] is False
    code, out, err = winnow_run(*ask, "--max-new-tokens", "3")
    assert "token_f1" in out
    assert f"{50 * (1 + second['score']):.1f}" in out
    assert f"(expected: a lemon and {QUESTION.answer})" in out


def test_a_metric_that_is_none_or_cannot_judge_is_told_before_any_work(winnow_run, no_weights):
    ask = ("run", "--document", "document.txt", "--batch", "questions.jsonl", "--metric")
    code, _, err = winnow_run(*ask, "token_f2")
    assert (code, "did you mean 'token_f1'" in " ".join(err.split())) == (2, True)
    code, _, err = winnow_run(*ask, "classification")
    assert (code, err.startswith("questions.jsonl, line 1: The right answer")) == (1, True)


def test_batch_lines_may_bring_their_documents(winnow_run, folder):
    lines = [
        {"question": QUESTION.text, "document": "document.txt"},
        {"text": QUESTION.text, "context": "The sun is yellow.", "kind": "ignored"},
    ]
    (folder / "own").mkdir(exist_ok=True)
    (folder / "own" / "document.txt").write_text("The lemon is yellow.", encoding="utf-8")
    (folder / "own" / "q.jsonl").write_text("\n\n".join(map(json.dumps, lines)), encoding="utf-8")
    code, out, err = winnow_run("run", "--batch", "own/q.jsonl", "--json", "--max-new-tokens", "2")
    assert code == 0, err
    answers = [json.loads(line) for line in out.splitlines()]
    assert answers[0]["prompt_tokens"] == answers[1]["prompt_tokens"] < 30
    assert answers[0]["right"] is None


@pytest.mark.parametrize(
    "how",
    [(), ("--compare", "full,h2o @ 24,kvzip @ 24"), ("--chunk", "40"), ("--fold", "8"), ("--method", "kvzip")],
    ids=["alone", "compared", "in chunks", "folded", "read twice"],
)
def test_questions_in_a_row_about_a_document_read_it_once(winnow_run, folder, monkeypatch, how):
    other = {"context": "The lemon is yellow. " * 20}
    lines = [{"question": question.text} for question in DOCUMENT.questions[:3]]
    lines += [
        {"question": "What is yellow?"} | other,
        {"question": "What is the color of the lemon?"} | other,
        lines[0],
    ]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    ask = ("run", "--document", "document.txt", "--batch", "rows.jsonl", "--max-new-tokens", "2", "--json", *how)
    begun: list[int] = []
    original = run_prefills.start_of
    monkeypatch.setattr(run_prefills, "start_of", lambda *of: begun.append(len(of[1])) or original(*of))
    found = told(winnow_run(*ask))
    assert begun == ([] if "kvzip" in how else [3, 2])
    monkeypatch.setattr(run_prefills, "is_worth_sharing", lambda *_: False)
    assert found == told(winnow_run(*ask))
    assert begun == ([] if "kvzip" in how else [3, 2])
    assert found[0] == found[-len(found) // 6]


def told(ended: tuple[int, str, str]) -> list[dict[str, object]]:
    """Answers of a command, without anything that a clock has part in."""
    code, out, err = ended
    assert code == 0, err
    facts = (
        "question",
        "method",
        "answer",
        "prompt_tokens",
        "slots_mean",
        "held_bytes",
        "question_seen_at_compression",
    )
    return [{fact: answer[fact] for fact in facts} for answer in map(json.loads, out.splitlines())]


def test_a_seed_draws_the_same_answers_under_every_method(winnow_run):
    drawn = (*ASK_RUN, "--temperature", "5", "--top-p", "0.99", "--max-new-tokens", "12", "--json", "--method", "full")
    answers = [json.loads(winnow_run(*drawn, "--seed", seed)[1])["answer"] for seed in ("1", "1", "2")]
    assert answers[0] == answers[1] != answers[2]
    code, out, err = winnow_run(*drawn, "--seed", "1", "--compare", "snapkv@190")
    assert code == 0, err
    assert [json.loads(line)["answer"] for line in out.splitlines()] == answers[:1] * 2


@pytest.mark.parametrize("how", [(), ("--question-agnostic",)])
def test_a_system_prompt_stands_before_the_document(winnow_run, how):
    plain, told = (
        json.loads(winnow_run(*ASK_RUN, "--json", *how, *extra)[1])
        for extra in ((), ("--system", "The lemon is yellow."))
    )
    assert told["prompt_tokens"] == plain["prompt_tokens"] + 5


NO_DOCUMENT = ("run", "--question", "Why?")
NO_QUESTION = ("run", "--document", "document.txt")
WRONG_USAGE = {
    "no document": (NO_DOCUMENT, "--document"),
    "no question": (NO_QUESTION, "--question"),
    "empty question": ((*NO_QUESTION, "--question", "  "), "cannot be empty"),
    "budget zero": ((*ASK_RUN, "--budget", "0"), "must be positive"),
    "budget negative": ((*ASK_RUN, "--budget", "-5"), "must be positive"),
    "budget below the window": ((*ASK_RUN, "--budget", "4"), "at least 8"),
    "budget unreadable": ((*ASK_RUN, "--budget", "lots"), "64MiB"),
    "budget above 100%": ((*ASK_RUN, "--budget", "200%"), "100%"),
    "budget above the memory": ((*ASK_RUN, "--budget", "900000GiB"), "memory"),
    "budget of the full cache": ((*ASK_RUN, "--method", "full", "--budget", "64"), "budget"),
    "unknown method": ((*ASK_RUN, "--method", "snapkvv"), "did you mean 'snapkv'"),
    "no method to compare": ((*ASK_RUN, "--compare", ","), "has no method"),
    "unknown method to compare": ((*ASK_RUN, "--compare", "full,nothing"), "'nothing'"),
    "unknown parameter": ((*ASK_RUN, "--set", "windows=9"), "did you mean 'window'"),
    "parameter without value": ((*ASK_RUN, "--set", "window"), "window=16"),
    "parameter that is an option": ((*ASK_RUN, "--set", "budget=9"), "--budget"),
    "unknown device": ((*ASK_RUN, "--device", "tpu"), "'tpu'"),
    "unknown option": ((*ASK_RUN, "--fast"), "--fast"),
    "a model without its option": ((*ASK_RUN, "model.gguf"), "Name a model with --model"),
    "chunk of zero": ((*ASK_RUN, "--chunk", "0"), "--chunk"),
    "folds of zero": ((*ASK_RUN, "--fold", "0"), "--fold"),
    "a method that cannot fold": ((*ASK_RUN, "--method", "snapkv+kivi", "--fold", "8"), "leave fold_every out"),
    "a temperature below zero": ((*ASK_RUN, "--temperature", "-1"), "--temperature"),
    "no temperature": ((*ASK_RUN, "--temperature", "nan"), "--temperature"),
    "a share above one": ((*ASK_RUN, "--temperature", "1", "--top-p", "1.5"), "--top-p"),
    "a seed where nothing is drawn": ((*ASK_RUN, "--seed", "9"), "needs --temperature"),
    "a share where nothing is drawn": ((*ASK_RUN, "--top-p", "0.9"), "needs --temperature"),
    "a seed below zero": ((*ASK_RUN, "--seed", "-1"), "--seed"),
    "question and batch": ((*ASK_RUN, "--batch", "questions.jsonl"), "--batch"),
}


@pytest.mark.parametrize("case", WRONG_USAGE)
def test_wrong_usage_is_one_line_and_code_2(winnow_run, no_weights, case):
    arguments, expected = WRONG_USAGE[case]
    code, out, err = winnow_run(*arguments)
    assert (code, out) == (2, "")
    assert expected in err
    assert err.count("\n") == 1, err


UNUSABLE = {
    "no such file": (("--document", "nowhere.txt"), "no file nowhere.txt"),
    "a directory": (("--document", "."), "directory"),
    "not UTF-8": (("--document", "latin.txt"), "not UTF-8"),
    "an empty document": (("--document", "empty.txt"), "empty"),
    "a long document": (("--document", "long.txt"), "at most"),
    "no such model": (("--model", "./nowhere"), "no file or directory ./nowhere"),
    "a file as model": (("--model", "document.txt"), "is a file"),
    "an empty model": (("--model", "."), "no config.json"),
    "no CUDA": (("--device", "cuda"), "CUDA"),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_what_cannot_be_used_is_one_line_and_code_1(winnow_run, no_weights, monkeypatch, case):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    arguments, expected = UNUSABLE[case]
    code, out, err = winnow_run(*ASK_RUN, *arguments)
    assert (code, out) == (1, "")
    assert expected in err
    assert err.count("\n") == 1, err


MODELS = {
    "encoder-decoder": ({"model_type": "t5"}, "decoder-only"),
    "sparse attention": ({"model_type": "deepseek_v32"}, "an index of its own"),
    "unknown": ({"model_type": "of-the-future"}, "Cannot load the configuration"),
    "no tokenizer": ({"model_type": "llama"}, "has no tokenizer"),
}


@pytest.mark.parametrize("case", MODELS)
def test_models_that_cannot_be_compressed(winnow_run, no_weights, tmp_path, case):
    config, expected = MODELS[case]
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    code, _, err = winnow_run(*ASK_RUN, "--model", str(tmp_path))
    assert code == 1
    assert expected in err
    assert err.count("\n") == 1, err


def test_a_model_without_weights(winnow_run, tmp_path):
    source = open_model(MODEL_PATH)
    source.config.save_pretrained(tmp_path)
    source.tokenizer.save_pretrained(tmp_path)
    code, _, err = winnow_run(*ASK_RUN, "--model", str(tmp_path))
    assert code == 1
    assert "Cannot load the weights" in err
    assert err.count("\n") == 1, err


LINES = {
    "not JSON": ("{question", "not JSON"),
    "not an object": ("[1]", "not a JSON object"),
    "no question": ('{"answer": "x"}', "no question"),
    "an empty question": ('{"question": " "}', '"question" must be a non-empty text'),
    "a number as question": ('{"question": 3}', '"question" must be a non-empty text'),
    "an empty answer": ('{"question": "Why?", "answer": " "}', '"answer" must be a non-empty text'),
    "an empty answer of several": ('{"question": "Why?", "answers": ["x", ""]}', '"answers" must be a non-empty text'),
    "a number among answers": ('{"question": "Why?", "answers": ["x", 3]}', '"answers" must be a non-empty text'),
    "no answers": ('{"question": "Why?", "answers": []}', '"answers" must be a non-empty text'),
    "a missing document": ('{"question": "Why?", "document": "nowhere.txt"}', "no file nowhere.txt"),
}


@pytest.mark.parametrize("case", LINES)
def test_bad_lines_of_a_batch_are_named(winnow_run, no_weights, folder, case):
    line, expected = LINES[case]
    (folder / "bad.jsonl").write_text(f'{{"question": "Why?"}}\n\n{line}\n', encoding="utf-8")
    code, out, err = winnow_run("run", "--document", "document.txt", "--batch", "bad.jsonl")
    assert (code, out) == (1, "")
    assert err.startswith("bad.jsonl, line 3: ")
    assert expected in err
    assert err.count("\n") == 1, err


def test_a_batch_without_documents_or_questions(winnow_run, no_weights, folder):
    code, _, err = winnow_run("run", "--batch", "questions.jsonl")
    assert (code, "questions.jsonl, line 1: there is no document" in err) == (1, True)


def test_the_full_cache_can_be_compared_with_others_at_a_budget(winnow_run):
    code, out, err = winnow_run(*ASK_RUN, "--method", "full", "--compare", "snapkv", "--budget", "16", "--json")
    assert code == 0, err
    assert [json.loads(line)["budget"] for line in out.splitlines()] == ["everything", "16"]


def test_methods_without_a_budget_need_none(winnow_run, folder):
    HeadScores(torch.rand(4, 4) + 0.1, "duoattention").save(folder / "gates.safetensors")
    name = "duoattention(sinks=4, recent=12, scores=gates.safetensors)"
    code, out, err = winnow_run(*ASK_RUN, "--method", name, "--compare", "full,snapkv", "--json")
    assert (code, err) == (0, "")
    assert [json.loads(line)["budget"] for line in out.splitlines()] == ["everything", "everything", "128"]
    code, out, err = winnow_run(*ASK_RUN, "--method", name, "--budget", "64")
    assert code == 2
    assert "takes no budget; drop budget='64'" in err


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("--method", "snapkv@10%", "--budget", "20%", "--compare", "full"), "No method uses the budget 20%"),
        (("--method", "snapkv@10%", "--budgets", "5%,20%", "--compare", "full,h2o@8"), "No method uses the budget 5%"),
        (("--method", "snapkv@10%", "--budget", "much", "--compare", "full"), "A budget is 128"),
    ],
)
def test_a_budget_that_nothing_uses_is_refused(winnow_run, given, told):
    code, out, err = winnow_run(*ASK_RUN, *given)
    assert (code, out) == (2, "")
    assert told in " ".join(err.split())
