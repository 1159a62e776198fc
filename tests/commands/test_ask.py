"""`winnow compress` and `winnow ask`: a document read once, asked for ever."""

from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import winnow
from support.asked import DOCUMENT, write_asked
from support.days import OF_DAY, dated_model, every_day_anew
from support.launcher import COMMANDS, launcher
from winnow.bundled import MODEL_PATH
from winnow.cache import container
from winnow.cache.disk import ContextFile
from winnow.cli import main
from winnow.commands import opened_context
from winnow.commands.compress import PROBES, document_start
from winnow.evaluate.prompts import encode_prompt
from winnow.models import open_model

pytestmark = pytest.mark.usefixtures("one_thread")

QUESTIONS = [question.text for question in DOCUMENT.questions]
COMPRESS = ("compress", "document.txt", "--budget", "32", "--method", "adakv")
ASK = ("ask", "report.safetensors", "--max-new-tokens", "4")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A document and its context."""
    folder = tmp_path_factory.mktemp("ask")
    write_asked(folder)
    out = str(folder / "report.safetensors")
    assert main([COMPRESS[0], str(folder / "document.txt"), "-o", out, *COMPRESS[2:]]) == 0
    return folder


def test_compress_says_what_it_held_and_wrote(winnow_run, tmp_path):
    out = tmp_path / "new folder" / "c.safetensors"
    code, text, err = winnow_run(*COMPRESS, "-o", str(out))
    assert code == 0, err
    assert "question seen at compression: no" in text
    assert "adakv @ 32" in text
    assert f'winnow ask {out} "' in text
    stats = ContextFile.open(out).container.facts["stats"]
    assert stats["used_bytes"] < stats["full_bytes"] / 2
    assert out.stat().st_size < 1.2 * stats["used_bytes"] + 10_000


def test_a_document_that_was_repeated_is_asked_as_any_other(winnow_run, tmp_path):
    out = str(tmp_path / "kvzip.safetensors")
    code, text, err = winnow_run(*COMPRESS[:2], "--method", "kvzip(chunk=90)+bits(4)", "--budget", "25%", "-o", out)
    assert code == 0, err
    assert "kvzip(chunk=90)" in text
    code, text, err = winnow_run("ask", out, QUESTIONS[0], *ASK[2:])
    assert code == 0, err
    assert "kvzip(chunk=90)+bits" in text


def test_answers_are_those_of_one_process(winnow_run):
    questions = "\n".join(json.dumps({"question": question}) for question in QUESTIONS)
    Path("questions.jsonl").write_text(questions, encoding="utf-8")
    limit = ("--max-new-tokens", "4", "--json")
    batch = ("--batch", "questions.jsonl", "--question-agnostic")
    code, together, err = winnow_run("run", "--document", "document.txt", "--budget", "32", *batch, *limit)
    assert code == 0, err
    code, later, err = winnow_run("ask", "report.safetensors", *QUESTIONS, *limit)
    assert code == 0, err
    same = ("question", "answer", "method", "budget", "question_seen_at_compression", "prompt_tokens", "slots")
    same += ("held_bytes", "full_bytes", "new_tokens")
    for one, other in zip(together.splitlines(), later.splitlines(), strict=True):
        one, other = json.loads(one), json.loads(other)
        assert {key: one[key] for key in same} == {key: other[key] for key in same}


def test_another_process_gives_the_same_answer_without_the_document(winnow_run, folder, tmp_path):
    shutil.copy(folder / "report.safetensors", tmp_path / "copy")
    _, here, _ = winnow_run(*ASK, QUESTIONS[0], "--json")
    command = ["ask", "copy", QUESTIONS[0], *ASK[2:], "--json"]
    assert launcher(COMMANDS).run("import winnow.cli; winnow.cli.program()", command, tmp_path) == 0
    there = (tmp_path / "out.txt").read_text(encoding="utf-8")
    same = ("question", "answer", "prompt_tokens", "new_tokens", "slots", "held_bytes", "compress_seconds")
    here, there = json.loads(here), json.loads(there)
    assert {key: here[key] for key in same} == {key: there[key] for key in same}


def test_a_context_loaded_by_hand_answers_as_the_command(winnow_run):
    model = AutoModelForCausalLM.from_pretrained(MODEL_PATH)
    model.set_attn_implementation("winnow")
    tokenizer = AutoTokenizer.from_pretrained(MODEL_PATH)
    context = winnow.load_context("report.safetensors", model, tokenizer=tokenizer)
    prompt = encode_prompt(tokenizer, DOCUMENT.text, QUESTIONS[0])
    out = model.generate(prompt, past_key_values=context.cache(), max_new_tokens=4, do_sample=False)
    answer = tokenizer.decode(out[0, prompt.shape[1] :], skip_special_tokens=True).strip()
    assert json.loads(winnow_run(*ASK, QUESTIONS[0], "--json")[1])["answer"] == answer


def test_the_start_of_a_prompt_does_not_depend_on_the_question():
    tokenizer = AutoTokenizer.from_pretrained(MODEL_PATH)
    for template in (None, "{% for m in messages %}<s>{{ m.content | trim }}</s>{% endfor %}<s>answer"):
        tokenizer.chat_template = template
        start = document_start(tokenizer, DOCUMENT.text)
        assert start.shape[1] > 150
        for question in (*PROBES, *QUESTIONS):
            prompt = encode_prompt(tokenizer, DOCUMENT.text, question)
            assert torch.equal(prompt[:, : start.shape[1]], start)
            assert prompt.shape[1] > start.shape[1]


def test_several_questions_and_standard_input(winnow_run, monkeypatch):
    given = f"{QUESTIONS[1]}\n\n  {QUESTIONS[2]}\n".encode()
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(given)))
    code, out, err = winnow_run(*ASK, QUESTIONS[0], "-", "--json")
    assert code == 0, err
    assert [json.loads(line)["question"] for line in out.splitlines()] == QUESTIONS[:3]
    code, out, err = winnow_run(*ASK, *QUESTIONS[:2])
    assert code == 0, err
    assert all(question in out for question in QUESTIONS[:2])
    assert "of full" in out
    assert "first token after" in out
    code, out, err = winnow_run(*ASK, QUESTIONS[0])
    assert QUESTIONS[0] not in out


def test_bfloat16_is_read_back_as_bfloat16(winnow_run, tmp_path):
    out = str(tmp_path / "c")
    code, _, err = winnow_run(*COMPRESS, "-o", out, "--dtype", "bfloat16", "--chunk", "64")
    assert code == 0, err
    code, text, err = winnow_run("ask", out, QUESTIONS[0], "--max-new-tokens", "2")
    assert code == 0, err
    assert "bundled, bfloat16" in text


def test_a_model_in_a_directory_is_found_again(winnow_run, folder, tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    for path in MODEL_PATH.glob("*.json"):
        shutil.copy(path, tmp_path / "model")
    shutil.copy(MODEL_PATH / "model.safetensors", tmp_path / "model")
    shutil.copy(folder / "document.txt", tmp_path)
    monkeypatch.chdir(tmp_path)
    code, _, err = winnow_run(*COMPRESS, "-o", "c", "--model", "model")
    assert code == 0, err
    monkeypatch.chdir("/")
    code, out, err = winnow_run("ask", str(tmp_path / "c"), QUESTIONS[0], "--json", "--max-new-tokens", "2")
    assert code == 0, err
    # The file knows the whole path; what is printed names no folders.
    assert json.loads(out)["model"] == "model"


def test_a_system_prompt_is_the_same_in_both_commands(winnow_run, tmp_path):
    out, told = str(tmp_path / "c"), ("--system", "The lemon is yellow.")
    code, _, err = winnow_run(*COMPRESS, "-o", out, *told)
    assert code == 0, err
    code, text, err = winnow_run("ask", out, QUESTIONS[0], *told, "--json")
    assert code == 0, err
    together = ("run", "--document", "document.txt", "--question", QUESTIONS[0], "--question-agnostic", *told)
    expected = json.loads(winnow_run(*together, "--budget", "32", "--json")[1])
    assert {key: json.loads(text)[key] for key in ("answer", "prompt_tokens")} == {
        key: expected[key] for key in ("answer", "prompt_tokens")
    }


@pytest.mark.parametrize(("compressed", "asked"), [(None, "Be brief."), ("Alice.", "Bob.")])
def test_another_system_prompt_is_found_before_the_weights_are_loaded(
    winnow_run, tmp_path, monkeypatch, compressed, asked
):
    def told(text):
        return () if text is None else ("--system", text)

    code, _, err = winnow_run(*COMPRESS, "-o", str(tmp_path / "c"), *told(compressed))
    assert code == 0, err
    monkeypatch.setattr("winnow.commands.loading.load_model", lambda *_: pytest.fail("loaded"))
    code, _, err = winnow_run("ask", str(tmp_path / "c"), QUESTIONS[0], *told(asked))
    assert (code, "Give the same --system as to winnow compress" in err) == (1, True)


@pytest.fixture
def dated(tmp_path):
    """A model whose chat template tells the time."""
    return dated_model(tmp_path / "dated")


def test_a_context_is_asked_on_another_day(winnow_run, monkeypatch, dated):
    question = (QUESTIONS[0], "--json", "--max-new-tokens", "4")
    code, _, err = winnow_run(*COMPRESS, "--model", str(dated), "-o", str(dated / "c"))
    assert code == 0, err
    code, today, err = winnow_run("ask", str(dated / "c"), *question)
    assert code == 0, err
    every_day_anew(monkeypatch)
    code, later, err = winnow_run("ask", str(dated / "c"), *question)
    assert code == 0, err
    assert json.loads(later)["answer"] == json.loads(today)["answer"]


def test_a_file_without_a_day_is_of_the_day_when_it_was_made(winnow_run, monkeypatch, dated):
    # As files that Python saved: of their day alone, so that the template has no hours.
    (dated / "chat_template.jinja").write_text(OF_DAY)
    monkeypatch.setattr("winnow.commands.compress.on_one_day", lambda tokenizer, style, day: style)
    code, _, err = winnow_run(*COMPRESS, "--model", str(dated), "-o", str(dated / "c"))
    assert code == 0, err
    assert not ContextFile.open(dated / "c").prompt
    every_day_anew(monkeypatch)
    code, _, err = winnow_run("ask", str(dated / "c"), QUESTIONS[0], "--max-new-tokens", "2")
    assert code == 0, err


def test_a_file_tells_a_day_only_where_its_chat_template_does(winnow_run, dated):
    for model, told in ((dated, ["day"]), (MODEL_PATH, [])):
        code, _, err = winnow_run(*COMPRESS, "--model", str(model), "-o", str(dated / "c"), "--force")
        assert code == 0, err
        assert list(ContextFile.open(dated / "c").prompt) == told


def test_drawn_answers(winnow_run):
    drawn = (*ASK[:2], QUESTIONS[0], "--temperature", "9", "--seed", "3", "--json", "--max-new-tokens", "12")
    first, second = (json.loads(winnow_run(*drawn)[1])["answer"] for _ in range(2))
    greedy = json.loads(winnow_run(*ASK[:2], QUESTIONS[0], "--json", "--max-new-tokens", "12")[1])["answer"]
    assert first == second != greedy


WRONG_USAGE = {
    "no output": (COMPRESS, "-o"),
    "no document": (("compress", "-o", "x"), "DOC"),
    "budget zero": ((*COMPRESS, "-o", "x", "--budget", "0"), "must be positive"),
    "unknown method": ((*COMPRESS, "-o", "x", "--method", "adakvv"), "did you mean 'adakv'"),
    "unknown parameter": ((*COMPRESS, "-o", "x", "--set", "windows=9"), "did you mean 'window'"),
    "no question": (ASK, "QUESTION"),
    "an empty question": ((*ASK, " "), "cannot be empty"),
    "no tokens": (("ask", "report.safetensors", "Why?", "--max-new-tokens", "0"), "--max-new-tokens"),
}


@pytest.mark.parametrize("case", WRONG_USAGE)
def test_wrong_usage_is_one_line_and_code_2(winnow_run, no_weights, case):
    arguments, expected = WRONG_USAGE[case]
    code, out, err = winnow_run(*arguments)
    assert (code, out) == (2, "")
    assert expected in err
    assert err.count("\n") == 1, err


UNUSABLE = {
    "no such document": (("compress", "nowhere.txt", "-o", "x"), "no file nowhere.txt"),
    "a name that is not UTF-8": (("compress", "nowhere.txt", "-o", os.fsdecode(b"x\xff")), "is not a UTF-8 name"),
    "a long document": (("compress", "long.txt", "-o", "x"), "at most"),
    "a file that exists": ((*COMPRESS, "-o", "report.safetensors"), "--force"),
    "a directory as file": ((*COMPRESS, "-o", "."), "is a directory"),
    "a file as folder": ((*COMPRESS, "-o", "document.txt/x"), "is a file"),
    "no such context": (("ask", "nowhere.safetensors", "Why?"), "no file nowhere.safetensors"),
    "a document as context": (("ask", "document.txt", "Why?"), "document.txt is not a context"),
    "a model's weights": (("ask", str(MODEL_PATH / "model.safetensors"), "Why?"), "is not a context"),
    "no such model": ((*ASK, "Why?", "--model", "./nowhere"), "no file or directory ./nowhere"),
    "cut off": (("ask", "cut", "Why?"), "is damaged"),
    "changed header": (("ask", "header", "Why?"), "header was changed"),
    "changed content": (("ask", "content", "Why?"), "content was changed"),
    "newer": (("ask", "newer", "Why?"), "format version 9, but this Winnow reads version 1"),
    "another model": ((*ASK, "Why?", "--model", "larger"), "vocab_size 810, not 811"),
    "another tokenizer": ((*ASK, "Why?", "--model", "other-words"), "another tokenizer"),
}


@pytest.fixture(scope="module")
def damaged(folder):
    """Copies of the context with something wrong in each, and models that it does not belong to."""
    whole = (folder / "report.safetensors").read_bytes()
    (folder / "cut").write_bytes(whole[:-100])
    (folder / "header").write_bytes(whole.replace(b"float32", b"float16", 1))
    (folder / "content").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    (folder / "newer").write_bytes(whole.replace(b'{\\"version\\": 1', b'{\\"version\\": 9', 1))
    for name, file in (("larger", "config.json"), ("other-words", "tokenizer.json")):
        shutil.copytree(MODEL_PATH, folder / name, ignore=shutil.ignore_patterns("*.py", "*.md", "*.safetensors"))
        text = (folder / name / file).read_text(encoding="utf-8")
        changed = text.replace('"vocab_size": 810', '"vocab_size": 811').replace('"lemon"', '"melon-lemon"')
        assert changed != text
        (folder / name / file).write_text(changed, encoding="utf-8")


@pytest.mark.parametrize("case", UNUSABLE)
def test_what_cannot_be_used_is_one_line_and_code_1(winnow_run, no_weights, damaged, case):
    arguments, expected = UNUSABLE[case]
    code, out, err = winnow_run(*arguments)
    assert (code, out) == (1, "")
    assert expected in err
    assert err.count("\n") == 1, err
    assert not Path("x").exists()


def test_a_fine_tune_of_the_same_shape_is_refused(winnow_run, folder):
    model = AutoModelForCausalLM.from_pretrained(MODEL_PATH)
    with torch.no_grad():
        model.model.layers[2].self_attn.q_proj.weight.mul_(1.001)
    model.save_pretrained(folder / "tuned")
    AutoTokenizer.from_pretrained(MODEL_PATH).save_pretrained(folder / "tuned")
    code, out, err = winnow_run(*ASK, QUESTIONS[0], "--model", "tuned")
    assert (code, out) == (1, "")
    assert "same shape but other weights (winnow-bundled)" in err
    assert err.count("\n") == 1, err


INCOMPLETE = {
    "without tokenizer": ({"document": "A text."}, 1, "without its tokenizer"),
    "without document": ({"tokenizer": True}, 1, "without its document"),
    "with another document": ({"tokenizer": True, "document": "A text."}, 1, "does not hold the start"),
    "without a model's name": ({"name": ""}, 2, "--model"),
    "of two documents": ({"tokenizer": True, "rows": 2}, 1, "2 documents"),
}


@pytest.mark.parametrize("case", INCOMPLETE)
def test_files_from_python_that_cannot_be_asked(winnow_run, no_weights, tmp_path, monkeypatch, case):
    options, expected_code, expected = INCOMPLETE[case]
    model = AutoModelForCausalLM.from_pretrained(MODEL_PATH)
    model.set_attn_implementation("winnow")
    tokenizer = AutoTokenizer.from_pretrained(MODEL_PATH)
    ids = encode_prompt(tokenizer, DOCUMENT.text, "").repeat(options.get("rows", 1), 1)
    context = winnow.compress(model, ids, winnow.method("adakv", budget=16))
    model.config.name_or_path = options.get("name", str(MODEL_PATH))
    given = tokenizer if options.get("tokenizer") else None
    context.save(tmp_path / "c", tokenizer=given, document=options.get("document"))
    opened = []
    monkeypatch.setattr(opened_context, "open_model", lambda name: opened.append(name) or open_model(name))
    code, out, err = winnow_run("ask", str(tmp_path / "c"), "Why?")
    assert (code, out) == (expected_code, ""), err
    # A tokenizer, of a GGUF file above all, takes seconds: what the header says is told before.
    assert bool(opened) == (case == "with another document")
    assert expected in err
    assert err.count("\n") == 1, err


def test_interrupting_leaves_no_file_or_the_old_one(winnow_run, tmp_path, monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(container.os, "fsync", interrupt)
    code, out, err = winnow_run(*COMPRESS, "-o", str(tmp_path / "c"))
    assert (code, out) == (130, "")
    assert err.endswith("\nInterrupted.\n")
    assert list(tmp_path.iterdir()) == []


def test_interrupting_keeps_what_was_answered(winnow_run, monkeypatch):
    def lines():
        yield QUESTIONS[0].encode()
        raise KeyboardInterrupt

    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=lines()))
    code, out, err = winnow_run(*ASK, "-")
    assert (code, err) == (130, "Interrupted.\n")
    assert QUESTIONS[0] in out
    assert "first token after" in out


def test_force_replaces(winnow_run, tmp_path):
    (tmp_path / "c").write_text("old", encoding="utf-8")
    code, _, err = winnow_run(*COMPRESS, "-o", str(tmp_path / "c"), "--force", "--method", "full@everything")
    assert code == 2, err
    assert (tmp_path / "c").read_text(encoding="utf-8") == "old"
    code, _, err = winnow_run("compress", "document.txt", "-o", str(tmp_path / "c"), "--force", "--method", "full")
    assert code == 0, err
    code, out, err = winnow_run("ask", str(tmp_path / "c"), QUESTIONS[0], "--json", "--max-new-tokens", "2")
    assert code == 0, err
    assert json.loads(out)["budget"] == "everything"
