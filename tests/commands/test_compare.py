"""`winnow run` with several methods and budgets: read once, checked first, written to tables and pictures."""

from __future__ import annotations

import csv
import json
import sys

import pytest

from support.asked import ASK_RUN, DOCUMENT, QUESTION, write_asked
from support.pictures import pixels
from winnow.commands import loading, run_prefills
from winnow.commands import run as run_command
from winnow.models import load_model

pytestmark = pytest.mark.usefixtures("one_thread")

METHODS = ("snapkv@24", "adakv@10%", "h2o@20", "full")
BATCH = ("run", "--document", "document.txt", "--batch", "questions.jsonl", "--max-new-tokens", "8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A document, and questions about it."""
    folder = tmp_path_factory.mktemp("compare")
    write_asked(folder)
    return folder


@pytest.fixture
def tokens_read(monkeypatch):
    """Numbers of tokens that the model is given at once, more than one, in the order of the passes."""
    read = []

    def watched(*given):
        model = load_model(*given)
        model.register_forward_pre_hook(lambda _, __, given: read.append(given["input_ids"].shape[1]), with_kwargs=True)
        return model

    monkeypatch.setattr(loading, "load_model", watched)
    return lambda: [count for count in read if count > 1]


def entries(out):
    return [json.loads(line) for line in out.splitlines()]


# --- reading once -----------------------------------------------------------------------------------------------------

SAME = (
    "question",
    "answer",
    "method",
    "budget",
    "slots",
    "held_bytes",
    "prompt_tokens",
    "question_seen_at_compression",
)


@pytest.mark.parametrize("how", [(), ("--question-agnostic",), ("--fold", "4"), ("--question-agnostic", "--fold", "4")])
def test_answers_are_those_of_each_method_alone(winnow_run, how):
    code, out, err = winnow_run(*BATCH, *how, "--method", METHODS[0], "--compare", ",".join(METHODS[1:]), "--json")
    assert (code, err) == (0, "")
    compared = entries(out)
    assert all(each["prefill_shared"] for each in compared)
    for method in METHODS:
        fold = () if method == "full" and "--fold" in how else how
        # Candidates would leave less room behind the tokens, which counts as held.
        alone = winnow_run(*BATCH, *(fold or how[:-2]), "--method", method, "--lookup", "0", "--json")[1]
        alone = entries(alone)
        assert not any(each["prefill_shared"] for each in alone)
        shared = [each for each in compared if each["method"] == alone[0]["method"]]
        assert [{key: each[key] for key in SAME} for each in shared] == [
            {key: each[key] for key in SAME} for each in alone
        ]


@pytest.mark.parametrize("how", [(), ("--question-agnostic",)])
def test_a_prompt_that_is_repeated_is_so_alone_and_beside_others(winnow_run, how):
    method = "kvzip(chunk=90)"
    compared = entries(
        winnow_run(*ASK_RUN, *how, "--method", method, "--compare", "snapkv", "--budget", "20", "--json")[1]
    )
    code, out, err = winnow_run(*ASK_RUN, *how, "--method", method, "--budget", "20", "--json")
    assert (code, err) == (0, "")
    (alone,) = entries(out)
    assert {key: compared[0][key] for key in SAME} == {key: alone[key] for key in SAME}
    assert len({count for layer in alone["slots"] for count in layer}) > 2


def test_prompts_are_read_once_for_all_methods(winnow_run, tokens_read):
    code, out, err = winnow_run(*BATCH, "--compare", "full,snapkv,h2o", "--budgets", "20,30", "--json")
    assert (code, err) == (0, "")
    lengths = [each["prompt_tokens"] for each in entries(out)]
    methods = 7
    assert len(lengths) == methods * len(DOCUMENT.questions)
    start, *rest = tokens_read()
    assert rest == [length - start for length in lengths[::methods]]
    assert start > 0.8 * max(lengths)


def test_a_document_is_read_once_for_all_methods_and_questions(winnow_run, tokens_read):
    code, out, err = winnow_run(*BATCH, "--question-agnostic", "--compare", "full,snapkv", "--budget", "20", "--json")
    assert (code, err) == (0, "")
    document, *rest = tokens_read()
    prompts = [each["prompt_tokens"] for each in entries(out)]
    assert rest == [prompt - document for prompt in prompts]
    assert all(part < document for part in rest)


def test_one_method_alone_holds_no_dense_prompt(winnow_run, monkeypatch):
    monkeypatch.setattr(run_prefills, "DenseReader", lambda *_: pytest.fail("the prompt was kept dense"))
    for how in ((), ("--question-agnostic",), ("--compare", "adakv")):
        assert winnow_run(*ASK_RUN, "--method", "adakv", "--budget", "20", *how)[0] == 0


def test_times_add_up(winnow_run):
    out = winnow_run(*ASK_RUN, "--compare", "full,h2o@24,h2o@40", "--budget", "20", "--json")[1]
    found = entries(out)
    reading = [each["prefill_seconds"] - each["compress_seconds"] for each in found]
    assert reading == pytest.approx([reading[0]] * 4)
    assert all(each["compress_seconds"] > 0 for each in found)


# --- budgets ----------------------------------------------------------------------------------------------------------


def test_budgets_are_for_all_methods_that_have_none_of_their_own(winnow_run):
    compare = "full,snapkv(window=4, kernel=5),tova@33"
    code, out, err = winnow_run(*ASK_RUN, "--budgets", "10%, 24,40KiB", "--compare", compare, "--json")
    assert code == 0, err
    assert [(each["method"], each["budget"]) for each in entries(out)] == [
        *(("adakv", budget) for budget in ("10%", "24", "40KiB")),
        ("full", "everything"),
        *(("snapkv(window=4, kernel=5)", budget) for budget in ("10%", "24", "40KiB")),
        ("tova", "33"),
    ]


def test_one_method_at_several_budgets(winnow_run):
    code, out, err = winnow_run(*ASK_RUN, "--budgets", "20,24,20")
    assert code == 0, err
    assert [line.split(":")[0].strip() for line in out.splitlines()[1:3]] == ["adakv @ 20", "adakv @ 24"]


WRONG = {
    "a method that is unknown": (("--compare", "full,snapkvv"), 2, "did you mean 'snapkv'"),
    "a budget below the window of the last": (("--compare", "full,snapkv@4"), 2, "at least 8"),
    "a method without its head scores": (("--compare", "full,duoattention"), 2, "duoattention"),
    "bytes that hold no window": (("--compare", "full,snapkv@300B"), 2, "8 tokens per head that snapkv keeps"),
    "bytes above the memory": (("--compare", "snapkv@900000GiB"), 2, "memory"),
    "a budget and budgets": (("--budget", "20", "--budgets", "20,30"), 2, "--budgets"),
    "no budgets": (("--budgets", " "), 2, "list of budgets"),
    "an empty budget": (("--budgets", "20,,30"), 2, "list of budgets"),
    "a budget that is unreadable": (("--budgets", "20,lots"), 2, "64MiB"),
    "budgets of a method with its own": (("--method", "adakv@20", "--budgets", "20,30"), 2, "given twice"),
    "budgets of the full cache": (("--method", "full", "--budgets", "20,30"), 2, "takes no budget"),
    "a table that is no .csv": (("--csv", "a.txt"), 1, "call it a.csv"),
    "a table that is there": (("--csv", "there.csv"), 1, "--force"),
    "a picture that is no .png": (("--picture", "a.jpg"), 1, "call it a.png"),
    "a picture that is there": (("--picture", "there.png"), 1, "--force"),
    "a table in a folder that is a file": (("--csv", "document.txt/a.csv"), 1, "is a file"),
}


@pytest.mark.parametrize("case", WRONG)
def test_everything_is_checked_before_weights_are_loaded(winnow_run, no_weights, folder, case):
    for name in ("there.csv", "there.png"):
        (folder / name).write_text("precious")
    arguments, expected_code, expected = WRONG[case]
    code, out, err = winnow_run(*ASK_RUN, *arguments)
    assert (code, out) == (expected_code, "")
    assert expected in err
    assert err.count("\n") == 1, err
    assert (folder / "there.csv").read_text() == (folder / "there.png").read_text() == "precious"


def test_modules_are_checked_before_anything_is_read(winnow_run, tokens_read, monkeypatch):
    monkeypatch.setattr("winnow.cache.extras._attention_modules", lambda model, _: [model.lm_head])
    code, out, err = winnow_run(*ASK_RUN, "--compare", "full,expectedattention", "--budget", "20")
    assert (code, out) == (1, "")
    assert err.count("\n") == 1, err
    assert tokens_read() == []


# --- tables and pictures ----------------------------------------------------------------------------------------------


def test_what_is_printed_says_what_is_shared_and_where_the_memory_is(winnow_run):
    code, out, err = winnow_run(*ASK_RUN, "--budget", "20", "--compare", "full")
    assert code == 0, err
    assert "read once for all methods" in out
    assert "peak process memory: " in out
    held = next(line for line in out.splitlines() if "dense tail" in line)
    assert held.split() == ["method", "compressed", "dense", "tail", "reserve", "cache", "held"]
    code, out, err = winnow_run(*ASK_RUN, "--budget", "20")
    assert "read once" not in out
    assert "peak process memory: " in out


def test_parts_of_what_is_held_are_in_json(winnow_run):
    for each in entries(winnow_run(*ASK_RUN, "--budget", "20", "--compare", "full", "--json")[1]):
        parts = [each[f"{part}_bytes"] for part in ("prefix", "tail", "reserve", "other")]
        assert sum(parts) == each["held_bytes"] < each["peak_process_bytes"]
        assert parts[0] > sum(each["slots"][0]) * len(each["slots"]) * 2 * 32 * 4
        assert parts[1] > 0


def test_a_table_has_what_json_has(winnow_run, folder):
    arguments = (*BATCH, "--compare", "full", "--budgets", "20,10%", "--csv", "new/table.csv", "--json")
    code, out, err = winnow_run(*arguments)
    assert (code, err) == (0, "Written: new/table.csv\n")
    with (folder / "new" / "table.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found = entries(out)
    assert len(rows) == len(found) == 3 * len(DOCUMENT.questions)
    for row, entry in zip(rows, found, strict=True):
        del entry["slots"], entry["peak_process_bytes"], row["peak_process_bytes"]
        entry |= {f"environment_{name}": value for name, value in entry.pop("environment").items()}
        assert row == {key: "" if value is None else str(value) for key, value in entry.items()}
    assert winnow_run(*arguments)[0] == 1
    assert winnow_run(*arguments, "--force")[0] == 0


def test_interrupting_writes_what_was_finished(winnow_run, folder, monkeypatch):
    finish, finished = run_command.finish, []

    def interrupted(*given):
        if len(finished) == 3:
            raise KeyboardInterrupt
        finished.append(given)
        return finish(*given)

    monkeypatch.setattr(run_command, "finish", interrupted)
    code, out, err = winnow_run(*BATCH, "--compare", "full", "--budget", "20", "--csv", "some.csv", "--json")
    assert code == 130
    assert len(out.splitlines()) == 3
    assert err == "Written: some.csv\nInterrupted.\n"
    assert len((folder / "some.csv").read_text(encoding="utf-8").splitlines()) == 4


@pytest.mark.parametrize(
    ("asked", "drawn"),
    [
        ((*BATCH, "--compare", "full,snapkv@16"), "accuracy"),
        ((*BATCH, "--method", "full"), "costs"),
        ((*ASK_RUN, "--compare", "full,snapkv+bits(4)"), "costs"),
    ],
)
def test_a_picture_shows_accuracy_where_it_is_known_and_else_costs(winnow_run, folder, monkeypatch, asked, drawn):
    from winnow.commands import answer_picture

    called = []
    for name in ("accuracy", "costs"):
        draw = getattr(answer_picture, f"draw_{name}")
        monkeypatch.setattr(
            answer_picture, f"draw_{name}", lambda *a, name=name, draw=draw, **k: called.append(name) or draw(*a, **k)
        )
    budgets = () if "--method" in asked else ("--budgets", "20,40")
    code, out, err = winnow_run(*asked, *budgets, "--picture", f"{drawn}.png", "--force")
    assert code == 0, err
    assert called == [drawn]
    assert err == f"Written: {drawn}.png\n"
    assert (pixels(folder / f"{drawn}.png") < 0.9).any()
    assert out


def test_a_picture_has_every_method_at_the_slots_that_its_bytes_held(winnow_run, folder, monkeypatch):
    """Packed slots take fewer bytes than dense ones, so that one budget in bytes is many numbers of slots."""
    from winnow.commands import answer_picture

    drawn = []
    monkeypatch.setattr(answer_picture, "draw_accuracy", lambda path, lines, **k: drawn.append((lines, k)) or path)
    methods = ("snapkv@60KiB", "snapkv+bits(4)@60KiB", "snapkv@16", "h2o@16")
    asked = (*BATCH, "--compare", ",".join(methods[1:]), "--method", methods[0], "--metric", "token_f1", "--json")
    code, out, err = winnow_run(*asked, "--picture", "slots.png", "--force")
    assert code == 0, err
    slots = {}
    for each in entries(out):
        held = [sum(heads) / len(heads) for heads in each["slots"]]
        slots.setdefault(f"{each['method']} @ {each['budget']}", []).append(sum(held) / len(held))
    means = {method: round(sum(found) / len(found), 1) for method, found in slots.items()}
    dense, packed = (means[method] for method in means if method.endswith("KiB"))
    assert packed > 1.5 * dense
    ((lines, given),) = drawn
    assert [[at for at, _ in line.points] for line in lines] == [[dense, 16.0], [packed], [16.0]]
    assert given["measured"] == "token_f1, mean over the questions"


def test_without_matplotlib_nothing_is_begun(winnow_run, no_weights, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, out, err = winnow_run(*ASK_RUN, "--picture", "a.png")
    assert (code, out) == (1, "")
    assert err == 'Pictures need matplotlib: pip install "winnow-kv[plot]"\n'


def test_the_time_left_for_all_is_told(winnow_run, monkeypatch):
    shown = []
    stage = run_command.stage
    monkeypatch.setattr(run_command, "stage", lambda text: shown.append(text) or stage(text))
    assert winnow_run(*BATCH, "--compare", "full", "--budget", "20")[0] == 0
    answering = [text for text in shown if "answering" in text]
    assert len(answering) == 2 * len(DOCUMENT.questions)
    assert answering[0] == f"Question 1 of {len(DOCUMENT.questions)}: adakv @ 20, answering"
    assert all("left for all)" in text for text in answering[1:])


def test_known_answers_are_counted(winnow_run):
    out = winnow_run(*BATCH, "--method", "full", "--compare", "streamingllm@16", "--max-new-tokens", "24")[1]
    rows = {line.split()[0]: line for line in out.splitlines() if "/" in line and "tok/s" in line}
    assert f"{len(DOCUMENT.questions)}/{len(DOCUMENT.questions)}" in rows["full"]
    assert QUESTION.text in out
