"""The model "winnow" of lm-evaluation-harness, on a made-up task with the bundled model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from support.processes import environment
from winnow.bundled import MODEL_PATH
from winnow.cache import CompressedCache
from winnow.tasks import format_prompt, generate_document

lm_eval = pytest.importorskip("lm_eval")
pytest.importorskip("accelerate")
from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

from winnow.errors import MethodError  # noqa: E402
from winnow.lm_eval import LikelihoodError, WinnowLM  # noqa: E402

TASK = """
task: made_up
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: {kind}
doc_to_text: "{{{{prompt}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list:
  - metric: {metric}
    ignore_punctuation: true
generation_kwargs:
  until: ["\\n", "."]
  max_gen_toks: 6
"""


@pytest.fixture(scope="module")
def task(tmp_path_factory) -> Path:
    """A folder with the task, its questions about three documents, and one task that asks for probabilities."""
    folder = tmp_path_factory.mktemp("tasks")
    lines = [
        {"prompt": format_prompt(document.text, question.text), "answer": question.answer}
        for document in (generate_document(seed, tokens=400, questions_per_kind=2) for seed in range(3))
        for question in document.questions
        if question.kind == "single"
    ]
    data = folder / "made_up.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "made_up.yaml").write_text(TASK.format(data=data, kind="generate_until", metric="exact_match"))
    rolling = TASK.format(data=data, kind="loglikelihood", metric="acc").replace("task: made_up", "task: likely")
    (folder / "likely.yaml").write_text(
        rolling.partition("generation_kwargs")[0].replace("ignore_punctuation: true", "")
    )
    return folder


def evaluate(task: Path, model: str, tasks: str = "made_up", **arguments):
    return lm_eval.simple_evaluate(
        model=model,
        model_args={"pretrained": str(MODEL_PATH), "device": "cpu", "dtype": "float32", **arguments},
        tasks=[tasks],
        task_manager=TaskManager(include_path=str(task), include_defaults=False),
        batch_size=arguments.pop("batch_size", 2),
        bootstrap_iters=0,
        log_samples=True,
    )


def answers(results) -> list[str]:
    return [sample["filtered_resps"][0] for sample in results["samples"]["made_up"]]


def test_the_full_cache_answers_as_the_harness_own_model(task):
    ours, theirs = evaluate(task, "winnow", method="full"), evaluate(task, "hf")
    assert answers(ours) == answers(theirs)
    assert ours["results"]["made_up"]["exact_match,none"] == 1.0


def test_compressed_answers_are_those_of_the_cache_without_the_harness(task):
    found = answers(evaluate(task, "winnow", method="snapkv @ 5%"))
    model, tokenizer = (each.from_pretrained(MODEL_PATH) for each in (AutoModelForCausalLM, AutoTokenizer))
    model.set_attn_implementation("winnow")
    for answer, line in zip(found, (task / "made_up.jsonl").read_text().splitlines(), strict=True):
        tokens = tokenizer(json.loads(line)["prompt"], return_tensors="pt").input_ids
        cache = CompressedCache(model, "snapkv @ 5%")
        written = model.generate(tokens, past_key_values=cache, max_new_tokens=6, do_sample=False)
        text = tokenizer.decode(written[0, tokens.shape[1] :], skip_special_tokens=True)
        assert answer == text.partition(".")[0].partition("\n")[0]


def test_a_kind_of_cache_that_the_model_asks_for_is_not_made(task):
    expected = answers(evaluate(task, "winnow", method="snapkv @ 5%"))
    model = WinnowLM(str(MODEL_PATH), "snapkv @ 5%", device="cpu", dtype="float32", batch_size=2)
    model.model.generation_config.cache_implementation = "static"
    assert answers(evaluate(task, model)) == expected


def test_results_name_the_method_and_what_was_held(task):
    results = evaluate(task, "winnow", method="streamingllm @ 5%", fold_every=4)
    assert results["results"]["made_up"]["exact_match,none"] < 0.5
    config = results["config"]
    assert (config["winnow_method"], config["winnow_fold_every"]) == ("streamingllm @ 5%", 4)
    assert config["winnow_used_bytes"] < 0.2 * config["winnow_full_bytes"]


def test_tasks_of_probabilities_are_refused_with_the_reason(task):
    with pytest.raises(LikelihoodError, match=r"dense: every method would get the full cache's number.*generate_until"):
        evaluate(task, "winnow", tasks="likely", method="snapkv @ 5%")
    model = WinnowLM(str(MODEL_PATH), "snapkv @ 5%", device="cpu")
    with pytest.raises(LikelihoodError):
        model.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, ("a text",), 0)])


def test_methods_are_checked_before_anything_is_generated():
    with pytest.raises(MethodError, match="snapkw"):
        WinnowLM(str(MODEL_PATH), "snapkw @ 5%", device="cpu")
    with pytest.raises(MethodError, match="fold"):
        WinnowLM(str(MODEL_PATH), "snapkv+kivi(4) @ 50%", fold_every=8, device="cpu")


def test_a_chat_template_is_the_tokenizers(task):
    model = WinnowLM(str(MODEL_PATH), "snapkv @ 5%", device="cpu")
    model.tokenizer.chat_template = "{% for each in messages %}{{ each['role'] }}: {{ each['content'] }} {% endfor %}"
    assert model.apply_chat_template([{"role": "user", "content": "Hello"}]) == "user: Hello "


@pytest.mark.slow  # the harness reads all of its own tasks first
def test_the_command_line_of_the_harness_knows_the_model(task, tmp_path):
    command = [sys.executable, "-m", "winnow.lm_eval", "--model", "winnow", "--tasks", "made_up", "--device", "cpu"]
    command += ["--include_path", str(task), "--output_path", str(tmp_path / "out"), "--limit", "2"]
    command += ["--model_args", f"pretrained={MODEL_PATH},method=snapkv(window=16, kernel=5) @ 50%"]
    ran = subprocess.run(command, env=environment(HF_HUB_OFFLINE="1"), capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert "exact_match" in ran.stdout
    (results,) = (tmp_path / "out").rglob("results_*.json")
    assert json.loads(results.read_text())["config"]["winnow_method"] == "snapkv(window=16, kernel=5) @ 50%"
