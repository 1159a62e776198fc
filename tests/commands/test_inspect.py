"""`winnow inspect`: its table, its JSON, its pictures, and every way to use it wrongly."""

from __future__ import annotations

import json
import re
import shlex
import sys
from urllib.parse import quote

import numpy as np
import pytest

import winnow
from support.asked import QUESTION, write_asked
from support.pictures import pixels
from support.ready import random_scores
from winnow.bundled import QUESTIONS_PATH
from winnow.cli import main
from winnow.commands import inspect_pictures
from winnow.commands.inspect_prompt import read_inspected
from winnow.models import open_model
from winnow.report import Profile, Strip, draw_divergences, draw_overlaps, draw_profiles, draw_retention
from winnow.report.style import DPI
from winnow.tasks.prompt_style import USUAL

pytestmark = pytest.mark.usefixtures("one_thread")

pytest.importorskip("matplotlib.image")

BUNDLED_QUESTION = json.loads(QUESTIONS_PATH.read_text(encoding="utf-8").splitlines()[0])["text"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files that the commands of this module read."""
    folder = tmp_path_factory.mktemp("inspect")
    write_asked(folder)
    (folder / "empty.txt").write_text(" \n", encoding="utf-8")
    random_scores((4, 4), "headkv-r2").save(folder / "scores.safetensors")
    return folder


@pytest.fixture
def winnow_inspect(folder, capsys, monkeypatch):
    """Runs `winnow inspect` in `folder`; returns its exit code, stdout and stderr."""
    monkeypatch.chdir(folder)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["inspect", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def coarse_pictures(monkeypatch):
    """Pictures of few dots, where it does not matter how they look."""
    monkeypatch.setattr("winnow.report.style.DPI", 40)


@pytest.fixture
def no_pictures(monkeypatch):
    """The command without its pictures, which take long."""
    monkeypatch.setattr("winnow.commands.inspect.draw_pictures", lambda *_: [])


ASK = ("--document", "document.txt", "--question", QUESTION.text, "--budget", "32")


# --- what it prints ---------------------------------------------------------------------------------------------------


def test_table_and_pictures(winnow_inspect, coarse_pictures, folder):
    code, out, err = winnow_inspect(*ASK, "--method", "snapkv", "--compare", "kvec", "--out", "pictures")
    assert code == 0, err
    assert f"asked: {QUESTION.text}" in out
    rows = {line.split(" @ ")[0]: line for line in out.splitlines() if " @ 32 " in line}
    assert rows.keys() == {"snapkv", "kvec"}
    assert all("→" in row and "%" in row for row in rows.values())
    kinds = ("retention", "slots", "overlap", "divergence")
    names = [f"{method}-32-{kind}" for method in ("snapkv", "kvec") for kind in kinds]
    assert {path.stem for path in (folder / "pictures").iterdir()} == {*names, "retention", "comparison"}
    for path in (folder / "pictures").iterdir():
        assert f"pictures/{path.name}" in out
        assert (pixels(path) < 0.9).any()


def test_every_measure_says_what_it_is_evidence_of(winnow_inspect, no_pictures):
    code, out, err = winnow_inspect(*ASK, "--method", "snapkv", "--window", "5", "--queries", "17")
    assert code == 0, err
    table, reading = out.split("\n\n")[1:3]
    told = " ".join(reading.split())
    columns = re.findall(r"[A-Za-z]+", re.sub(r"\(.*?\)", "", table.splitlines()[0]))
    assert columns == ["method", "slots", "coverage", "RTD", "IoU", "cosine", "mass", "error"]
    assert all(f"{name} " in told or f"{name}:" in told for name in columns[2:])
    assert "two of the last 5 queries" in told
    assert "attention of the last 17 queries" in told
    assert "answers no measure here tells them: see winnow run --compare" in told
    found = json.loads(winnow_inspect(*ASK, "--method", "snapkv", "--window", "5", "--json")[1])
    assert 0.5 < found["channel_overlap"] < 1
    assert f"channels the saliency of a key channel deviates by {found['channel_cv']:.2f} of its mean" in told
    assert f"{found['channel_overlap']:.0%} are in a token's own half" in told


def test_pictures_are_replaced_unless_they_are_of_others(winnow_inspect, coarse_pictures, folder):
    ask = (*ASK, "--method", "snapkv", "--out", "again")
    for _ in range(2):
        assert winnow_inspect(*ask)[0] == 0
    names = {path.name for path in (folder / "again").iterdir()}
    (folder / "again" / "snapkv-32-slots.png").write_text("precious")
    code, out, err = winnow_inspect(*ask)
    assert (code, out) == (1, "")
    assert "again/snapkv-32-slots.png was not written by winnow; give another folder, or --force" in err
    assert (folder / "again" / "snapkv-32-slots.png").read_text() == "precious"
    assert winnow_inspect(*ask, "--force")[0] == 0
    assert (folder / "again" / "snapkv-32-slots.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in (folder / "again").iterdir()} == names


def test_json_is_the_diagnosis(winnow_inspect, no_pictures):
    code, out, err = winnow_inspect(*ASK, "--compare", "full", "--json", "--window", "4", "--queries", "16")
    assert code == 0, err
    adakv, full = (json.loads(line) for line in out.splitlines())
    assert (adakv["method"], adakv["budget"], adakv["question"]) == ("adakv", "32", QUESTION.text)
    assert (adakv["window"], adakv["queries"]) == (4, 16)
    assert (full["coverage"], full["mass_min"], full["error_mean"]) == (1.0, 1.0, 0.0)
    assert len(adakv["layers"]) == 4
    assert all(len(layer["kept"]) == len(layer["iou"]) == 4 for layer in adakv["layers"])
    assert adakv["slots_mean"] == np.mean([layer["slots"] for layer in adakv["layers"]]) == 32
    assert "Written:" in err


def test_a_document_alone(winnow_inspect, no_pictures):
    code, out, err = winnow_inspect("--document", "document.txt", "--json")
    assert code == 0, err
    alone = json.loads(out)
    assert alone["question"] is None
    asked = json.loads(winnow_inspect(*ASK, "--json")[1])
    assert asked["prompt_tokens"] - 30 < alone["prompt_tokens"] < asked["prompt_tokens"]


def test_the_bundled_document_and_its_first_question(winnow_inspect, monkeypatch):
    shown = []
    monkeypatch.setattr("winnow.commands.inspect.draw_pictures", lambda *given: shown.append(given[-1]) or [])
    code, out, err = winnow_inspect("--method", "streamingllm")
    assert code == 0, err
    assert BUNDLED_QUESTION in out
    assert shown[0].inspected.facts
    assert winnow_inspect("--method", "streamingllm", "--question", "Why?")[0] == 0
    assert shown[1].inspected.question == "Why?"
    assert not shown[1].inspected.facts


def test_facts_hold_the_answer():
    source = open_model(str(QUESTIONS_PATH.parent))
    inspected = read_inspected(source, None, None, USUAL)
    (start, stop), *_ = inspected.facts
    question = json.loads(QUESTIONS_PATH.read_text(encoding="utf-8").splitlines()[0])
    assert question["answer"].split()[-1] in source.tokenizer.decode(inspected.prompt[0, start:stop])
    assert read_inspected(source, None, question["text"], USUAL).facts == inspected.facts


@pytest.mark.parametrize(
    "how",
    [
        ("--method", "headkv-r2(scores=scores.safetensors)"),
        ("--method", "headkv-r2", "--set", "scores=scores.safetensors"),
    ],
)
def test_head_scores_are_taken_by_name(winnow_inspect, no_pictures, how):
    code, out, err = winnow_inspect(*ASK, "--json", *how)
    assert code == 0, err
    assert len({slots for layer in json.loads(out)["layers"] for slots in layer["slots"]}) > 1


def test_without_matplotlib_the_table_is_printed(winnow_inspect, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, out, err = winnow_inspect(*ASK, "--method", "snapkv")
    assert code == 0
    assert "snapkv @ 32" in out
    assert err == 'Pictures need matplotlib: pip install "winnow-kv[plot]"\n'


def test_interrupting_keeps_what_was_finished(winnow_inspect, monkeypatch):
    diagnose = winnow.diagnose

    def interrupted(model, ids, method, **counts):
        if method.name == "kvec":
            raise KeyboardInterrupt
        return diagnose(model, ids, method, **counts)

    monkeypatch.setattr("winnow.commands.inspect.diagnose", interrupted)
    code, out, err = winnow_inspect(*ASK, "--method", "snapkv", "--compare", "kvec")
    assert code == 130
    assert "snapkv @ 32" in out
    assert "kvec" not in out
    assert err == "Interrupted.\n"


WRONG = {
    "empty question": (("--question", " "), 2, "cannot be empty"),
    "window of zero": (("--window", "0"), 2, "--window"),
    "queries of zero": (("--queries", "0"), 2, "--queries"),
    "budget below the window": (("--budget", "4"), 2, "at least 8"),
    "unknown method": (("--method", "snapkvv"), 2, "did you mean 'snapkv'"),
    "unknown device": (("--device", "tpu"), 2, "'tpu'"),
    "no such file": (("--document", "nowhere.txt"), 1, "no file nowhere.txt"),
    "an empty document": (("--document", "empty.txt"), 1, "empty"),
    "a long document": (("--document", "long.txt"), 1, "at most"),
    "a file as folder": (("--out", "document.txt"), 1, "is a file"),
    "no such model": (("--model", "./nowhere"), 1, "no file or directory ./nowhere"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_usage_is_one_line(winnow_inspect, monkeypatch, case):
    monkeypatch.setattr("winnow.commands.loading.load_model", lambda *_: pytest.fail("the model was loaded"))
    arguments, expected_code, expected = WRONG[case]
    code, out, err = winnow_inspect(*arguments)
    assert (code, out) == (expected_code, "")
    assert expected in err
    assert err.count("\n") == 1, err


# --- pictures ---------------------------------------------------------------------------------------------------------


def assert_nothing_is_cut(picture):
    for edge in (picture[0], picture[-1], picture[:, 0], picture[:, -1]):
        assert np.all(edge == 1)


def strip(layers=4, heads=4, length=300, step=7):
    counts = np.zeros((layers, length), dtype=np.int64)
    for layer in range(layers):
        counts[layer, layer :: step + layer] = 1 + layer % heads
    return Strip("snapkv @ 64", "kept in a layer: 10.0% of all tokens", counts, heads)


@pytest.mark.parametrize(
    ("layers", "heads", "length", "strips"), [(1, 1, 1, 1), (4, 4, 300, 3), (32, 8, 9000, 2), (2, 32, 40, 1)]
)
def test_retention_map(tmp_path, layers, heads, length, strips):
    facts = [(0, 1)] if length > 1 else []
    path = draw_retention(tmp_path / "r.png", [strip(layers, heads, length)] * strips, "Title", "subtitle", facts)
    picture = pixels(path)
    assert picture.shape[1] == 11 * DPI
    assert_nothing_is_cut(picture)
    assert (picture[..., 2] > picture[..., 0] + 0.2).mean() > 0.002
    assert (picture[..., 0] > picture[..., 2] + 0.15).any() == bool(facts)


def test_every_kept_token_shows_in_a_long_prompt(tmp_path):
    def blue(kept):
        counts = np.zeros((1, 20_000), dtype=np.int64)
        counts[0, kept] = 2
        picture = pixels(draw_retention(tmp_path / "r.png", [Strip("m", "", counts, 2)], "T"))
        return (picture[..., 2] > picture[..., 0] + 0.2).sum()

    assert blue([]) < blue([12_345]) < blue([1, 12_345])


# From 13 layers on, they stand side by side as small as 32 do.
@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (4, 4), (5, 2), (13, 8)])
def test_overlaps(tmp_path, layers, heads):
    matrices = [np.full((heads, heads), (index + 1) / layers) for index in range(layers)]
    means = [None if heads == 1 else float(matrix[0, 1]) for matrix in matrices]
    assert_nothing_is_cut(pixels(draw_overlaps(tmp_path / "o.png", matrices, means, "Title", "subtitle")))


@pytest.mark.parametrize(
    ("layers", "heads", "reach"), [(1, 1, 0.0), (1, 1, 3e-9), (2, 3, 0.0), (2, 3, 3e-9), (32, 32, 3e-9)]
)
def test_divergences(tmp_path, layers, heads, reach):
    matrices = [np.full((heads, heads), reach * (index + 1) / layers) for index in range(layers)]
    means = [None if heads == 1 else float(matrix[0, 1]) for matrix in matrices]
    assert_nothing_is_cut(pixels(draw_divergences(tmp_path / "d.png", matrices, means, "Title", "subtitle")))


@pytest.mark.parametrize(("methods", "layers"), [(1, 1), (4, 4), (9, 32)])
def test_profiles(tmp_path, methods, layers):
    profiles = [
        Profile(f"method {i} of a long name @ 64", 1 / (i + 1), [0.1] * layers, [0.0] * layers) for i in range(methods)
    ]
    assert_nothing_is_cut(pixels(draw_profiles(tmp_path / "p.png", profiles, "Title", "subtitle")))


def test_files_of_methods_are_told_apart():
    names = [
        "snapkv @ 64",
        "snapkv(window=16) @ 64",
        "kvec @ 2%",
        "headkv-r2(scores=/some/where.json) @ 8",
        "kvec @ 2%",
        "snapkv(scores=/Körbe & Kisten/100%.json)+ada @ 0.5%",
    ]
    stems = inspect_pictures._stems(names)
    assert stems == [
        "snapkv-64",
        "snapkv-window=16-64",
        "kvec-2pct",
        "headkv-r2-scores=-some-where.json-8",
        "kvec-2pct-5",
        "snapkv-scores=-K-rbe-Kisten-100pct.json-+ada-0.5pct",
    ]
    # What neither a shell nor an address needs in quotes.
    assert all(shlex.quote(stem) == stem == quote(stem, safe="+=") for stem in stems)
