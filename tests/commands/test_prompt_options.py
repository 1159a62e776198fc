"""Prompt styles and texts without their middle on the command line."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import AutoModelForCausalLM

import winnow
from support.asked import DOCUMENT, write_asked
from winnow.bundled import MODEL_PATH
from winnow.cache.disk import ContextFile
from winnow.commands.compress import document_start
from winnow.evaluate.prompts import encode_prompt
from winnow.models import open_model
from winnow.tasks.prompt_style import PromptStyle

pytestmark = pytest.mark.usefixtures("one_thread")

QUESTION = DOCUMENT.questions[0].text
TEMPLATE = "the text : {document}\n\n{system} {question} answer :\n"
FILLED = PromptStyle(system="alice", template=TEMPLATE.rstrip("\n"))
ASKED = ("--document", "document.txt", "--question", QUESTION, "--max-new-tokens", "2", "--json", "--method", "full")
CHAT = "{% for m in messages %}<s> {{ m.role }} : {{ m.content }} {% endfor %}answer :"
LONG = DOCUMENT.text * 40
"""As `write_asked` writes it."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Documents, a prompt template, and a model with a chat template."""
    folder = tmp_path_factory.mktemp("prompts")
    write_asked(folder)
    (folder / "template.txt").write_text(TEMPLATE, encoding="utf-8")
    chatty = folder / "chatty"
    chatty.mkdir()
    for name in ("config.json", "generation_config.json", "tokenizer.json", "model.safetensors"):
        shutil.copy(MODEL_PATH / name, chatty)
    config = json.loads((MODEL_PATH / "tokenizer_config.json").read_text()) | {"chat_template": CHAT}
    (chatty / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def prompt_length(model: str | Path, style: PromptStyle, document: str = DOCUMENT.text) -> int:
    return encode_prompt(open_model(model).tokenizer, document, QUESTION, style).shape[1]


STYLES = {
    (): PromptStyle(),
    ("--no-chat-template",): PromptStyle(chat_template=False),
    ("--prompt-template", "template.txt", "--system", "alice"): FILLED,
    ("--prompt-template", "template.txt", "--no-chat-template", "--system", "alice"): PromptStyle(
        False, "alice", TEMPLATE.rstrip("\n")
    ),
}


@pytest.mark.parametrize("options", STYLES)
def test_options_make_the_prompt(winnow_run, folder, options):
    code, out, err = winnow_run("run", "--model", "chatty", *ASKED, *options)
    assert code == 0, err
    lengths = [prompt_length(folder / "chatty", style) for style in STYLES.values()]
    assert len(set(lengths)) == len(lengths)
    assert json.loads(out)["prompt_tokens"] == prompt_length(folder / "chatty", STYLES[options])


def test_a_context_remembers_its_prompt(winnow_run, folder, tmp_path, monkeypatch):
    file = str(tmp_path / "c")
    styled = ("--prompt-template", "template.txt", "--no-chat-template")
    code, _, err = winnow_run("compress", "document.txt", "--model", "chatty", "-o", file, *styled, "--system", "alice")
    assert code == 0, err
    Path("template.txt").rename("moved.txt")
    code, out, err = winnow_run("ask", file, QUESTION, "--json", "--max-new-tokens", "2")
    Path("moved.txt").rename("template.txt")
    assert code == 0, err
    style = PromptStyle(False, "alice", TEMPLATE.rstrip("\n"))
    assert json.loads(out)["prompt_tokens"] == prompt_length(folder / "chatty", style)
    # What is said again must be the same.
    assert winnow_run("ask", file, QUESTION, "--max-new-tokens", "2", *styled)[0] == 0
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(QUESTION.encode()), isatty=lambda: False))
    code, _, err = winnow_run("chat", "--context", file, "--max-new-tokens", "2")
    assert code == 0, err


def test_contexts_of_usual_prompts_are_as_before(winnow_run, folder, tmp_path):
    """Neither does an earlier version find anything new in them, nor is anything missing in those that it wrote."""
    file = tmp_path / "c"
    assert winnow_run("compress", "document.txt", "-o", str(file))[0] == 0
    assert "prompt" not in ContextFile.open(file).container.facts
    source = open_model(MODEL_PATH)
    model = AutoModelForCausalLM.from_pretrained(MODEL_PATH)
    model.set_attn_implementation("winnow")
    start = document_start(source.tokenizer, DOCUMENT.text, PromptStyle(system="alice"))
    context = winnow.compress(model, start, "adakv @ 32")
    old = context.save(tmp_path / "old", tokenizer=source.tokenizer, document=DOCUMENT.text)
    assert winnow_run("ask", str(old), QUESTION, "--system", "alice", "--max-new-tokens", "2")[0] == 0
    code, _, err = winnow_run("ask", str(old), QUESTION)
    assert code == 1
    assert "does not hold the start of a prompt" in err


UNUSABLE = {
    "{question}": (1, "template.txt: the prompt template has no {document}"),
    "{document} {question} {x}": (1, "has an unknown place {x}"),
    None: (1, "There is no file"),
}


@pytest.mark.parametrize("template", UNUSABLE)
def test_templates_that_cannot_be_used_are_told_in_a_line(winnow_run, no_weights, tmp_path, template):
    file = tmp_path / "template.txt"
    if template is not None:
        file.write_text(template)
    code, out, err = winnow_run("run", *ASKED, "--prompt-template", str(file))
    assert (code, out, err.count("\n")) == (UNUSABLE[template][0], "", 1)
    assert UNUSABLE[template][1] in err


@pytest.mark.parametrize(
    "command",
    [
        ("run", *ASKED, "--question-agnostic"),
        ("compress", "document.txt", "-o", "x"),
        ("chat", "--document", "document.txt"),
    ],
)
def test_a_question_before_the_document_is_refused_where_none_is_known(winnow_run, no_weights, tmp_path, command):
    (tmp_path / "t").write_text("{question} {document}")
    code, _, err = winnow_run(*command, "--prompt-template", str(tmp_path / "t"))
    assert (code, err.count("\n")) == (1, 1)
    assert "put {document} first" in err


def test_a_template_needs_a_document(winnow_run, no_weights):
    code, _, err = winnow_run("chat", "--budget", "64", "--prompt-template", "template.txt")
    assert code == 2
    assert "--document" in err


def test_what_is_too_long_is_refused_with_the_remedy(winnow_run, no_weights):
    code, _, err = winnow_run("run", "--document", "long.txt", *ASKED[2:])
    assert (code, err.count("\n")) == (1, 1)
    assert "leave its middle out (--truncate middle)" in err


@pytest.mark.parametrize("agnostic", [(), ("--question-agnostic",)])
def test_what_is_too_long_loses_its_middle_if_asked_for(winnow_run, agnostic):
    code, out, err = winnow_run("run", "--document", "long.txt", *ASKED[2:], *agnostic, "--truncate", "middle")
    assert code == 0, err
    assert f"of its {len(LONG):,} characters are left out of the middle" in err
    assert 2048 - 2 - 4 <= json.loads(out)["prompt_tokens"] <= 2048 - 2


def test_a_context_of_a_text_without_its_middle(winnow_run, tmp_path):
    file = tmp_path / "c"
    code, _, err = winnow_run("compress", "long.txt", "-o", str(file), "--truncate", "middle")
    assert code == 0, err
    kept = ContextFile.open(file).document
    assert LONG.startswith(kept[:2000])
    assert LONG.endswith(kept[-2000:])
    code, out, err = winnow_run("ask", str(file), QUESTION, "--json", "--max-new-tokens", "2")
    assert code == 0, err
    assert json.loads(out)["prompt_tokens"] <= 2048 - 512 + 40
