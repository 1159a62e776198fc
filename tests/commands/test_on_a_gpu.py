"""Commands with the model on a GPU: what they say there is what they say on the CPU."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from queue import SimpleQueue

import pytest
import torch

import winnow
from support.asked import ASK_RUN, DOCUMENT, write_asked
from winnow.evaluate.sampling import GREEDY
from winnow.evaluate.turns import Subject
from winnow.models import load_model, open_model
from winnow.serve.asked import Asked, Failed, Finished, Said
from winnow.serve.beginnings import Beginning, Prompt
from winnow.serve.engine import Engine, Limits
from winnow.tasks.prompt_style import PromptStyle

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here"),
    pytest.mark.usefixtures("one_thread"),
]
DEVICES = ("cpu", "cuda")
SMALL_NEEDLES = ("--kind", "r", "--lengths", "256", "--depths", "2", "--keep-noise", "--keep-going")
SMALL_GAME = ("--questions", "2", "--samples", "8", "--batch", "8", "--sizes", "n/2", "--keep-noise")
METHODS = ("full", "adakv", "kvec", "aperturekv", "h2o", "kvzip", "adakv+spark(0.5)", "adakv+bits(4)")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_asked(tmp_path)
    return tmp_path


def answers(text: str) -> list[tuple[str, str, str]]:
    """Method, budget and answer of every line of JSON."""
    return [(row["method"], row["budget"], row["answer"]) for row in map(json.loads, text.splitlines())]


@pytest.mark.parametrize("method", METHODS)
def test_run_answers_as_on_the_cpu(winnow_run, method: str) -> None:
    budget = () if method == "full" else ("--budget", "48")
    found = {}
    for device in DEVICES:
        code, text, err = winnow_run(*ASK_RUN, "--method", method, *budget, "--device", device, "--json")
        assert code == 0, err
        found[device] = answers(text)
    assert found["cuda"] == found["cpu"]


def test_batches_of_questions_answer_as_on_the_cpu(winnow_run) -> None:
    found = {}
    for device in DEVICES:
        batch = ("--batch", "questions.jsonl", "--budget", "48", "--max-new-tokens", "4")
        code, text, err = winnow_run("run", "--document", "document.txt", *batch, "--device", device, "--json")
        assert code == 0, err
        found[device] = answers(text)
    assert found["cuda"] == found["cpu"]


@pytest.mark.parametrize("method", ["adakv", "kvzip", "adakv+spark(0.5)", "adakv+bits(4)"])
def test_contexts_are_asked_where_they_were_not_made(winnow_run, tmp_path: Path, method: str) -> None:
    found = set()
    for made in DEVICES:
        out = str(tmp_path / f"{made}.safetensors")
        written = ("--method", method, "--budget", "64", "--device", made, "-o", out)
        code, _, err = winnow_run("compress", "document.txt", *written)
        assert code == 0, err
        for asked in DEVICES:
            question = (DOCUMENT.questions[0].text, "--max-new-tokens", "4", "--json", "--device", asked)
            code, text, err = winnow_run("ask", out, *question)
            assert code == 0, err
            found.add(answers(text)[0][2])
    assert len(found) == 1


def test_a_conversation(winnow_run, monkeypatch: pytest.MonkeyPatch) -> None:
    said = []
    for device in DEVICES:
        questions = "\n".join(question.text for question in DOCUMENT.questions[:3])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{questions}\n".encode())))
        code, text, err = winnow_run("chat", "--document", "document.txt", "--budget", "64", "--device", device)
        assert code == 0, err
        said.append(text.replace("on cuda", "on cpu"))
    assert said[0] == said[1]


def said(events: SimpleQueue) -> tuple[str, str]:
    """An answer of a server, and why it ended."""
    text = ""
    while not isinstance(event := events.get(timeout=120), Finished):
        if isinstance(event, Failed):
            raise event.problem
        text += event.text if isinstance(event, Said) else ""
    return text, event.reason


def test_answers_of_a_server_side_by_side() -> None:
    """Rows come and go, so that graphs are captured for caches of one row and of several."""
    found = []
    for device in DEVICES:
        source = open_model("winnow-bundled")
        model = load_model(source, device, "float32")
        engine = Engine(source, model, Limits(rows=3, longest_pause=0, shortest_piece=64))

        def begun(length: int, model=model) -> winnow.CompressedCache:
            return winnow.CompressedCache(model, "adakv @ 48", prompt_length=length)

        beginning, told = Beginning("m", winnow.method("adakv @ 48"), Subject(), (), begun), []
        try:
            for number, question in enumerate(DOCUMENT.questions * 2):
                told.append(SimpleQueue())
                prompt = Prompt(f"{DOCUMENT.text} Question: {question.text} Answer:", False, PromptStyle())
                engine.ask(Asked(beginning, prompt, GREEDY, 4 + 6 * (number % 3), (), told[-1].put))
            found.append([said(each) for each in told])
        finally:
            engine.close()
    assert found[0] == found[1]


def test_head_scores_and_runs(winnow_run, tmp_path: Path) -> None:
    for kind in (["needle", *SMALL_NEEDLES], ["cokv", *SMALL_GAME]):
        out = str(tmp_path / f"{kind[0]}.safetensors")
        code, _, err = winnow_run("heads", *kind, "--out", out, "--device", "cuda")
        assert code == 0, err
    scores = f"headkv-r(scores={tmp_path}/needle.safetensors),cokv(scores={tmp_path}/cokv.safetensors),adakv"
    asked = ("--methods", scores, "--budgets", "48", "--examples", "2", "--device", "cuda")
    code, text, err = winnow_run(
        "eval", "facts", "--lengths", "700", "--allow-zero", *asked, "--out", str(tmp_path / "run")
    )
    assert code == 0, err
    assert "adakv" in text
