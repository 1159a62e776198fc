"""Files of an earlier Winnow: journals resume without new work, head scores load and are shown as before.

The files in data/ were written at commit 1069bce by the commands below, with `--dtype float32`; show.json is what
`winnow heads show --json needle.safetensors cokv.safetensors` printed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch

from winnow.bundled import MODEL_PATH
from winnow.commands.failures import FAILED
from winnow.heads import HeadScores
from winnow.models import open_model

pytestmark = pytest.mark.usefixtures("one_thread")

DATA = Path(__file__).parent / "data"
JOURNALS = ("cokv", "tune")
COMMANDS = {
    "needle": "needle --kind r --lengths 0,96 --depths 1 --out needle.safetensors",
    "cokv": "cokv --questions 2 --samples 8 --batch 4 --out cokv.safetensors",
    "tune": "tune --method cokv --documents 1 --values 2,4 --budgets 64 --out tune.json",
}
WORK = {
    "cokv": "winnow.estimate.cokv.utility.CoalitionUtility.__call__",
    "tune": "winnow.estimate.tune.answering.evaluate",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def hashed(value: object) -> str:
    """The hash of a journal's configuration, computed as it always was."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def copied(name: str, folder: Path) -> Path:
    """The old journal in a folder, as if it had been written with the transformers that is installed here."""
    header, *records = (DATA / f"{name}.journal.jsonl").read_text().splitlines(keepends=True)
    content = json.loads(header)
    assert content["hash"] == hashed(content["config"])
    if name == "needle":
        # The configuration of a model names the version of transformers.
        facts = open_model(MODEL_PATH).config.to_dict()
        facts.pop("_name_or_path", None)
        content["config"]["model_config"] = hashed(facts)
        content["hash"] = hashed(content["config"])
    path = folder / f"{name}.journal.jsonl"
    path.write_text(
        "".join([json.dumps(content) + "\n", *records]).replace('{"winnow_journal": 1', '{"winnow_journal":1')
    )
    return path


@pytest.mark.parametrize("name", JOURNALS)
def test_the_same_command_resumes_from_an_old_journal_without_new_work(winnow_run, folder, monkeypatch, name):
    journal = copied(name, folder)
    before = journal.read_bytes()
    monkeypatch.setattr(WORK[name], lambda *_, **__: pytest.fail("work was done again"))
    code, _, err = winnow_run("heads", *COMMANDS[name].split(), "--dtype", "float32", "--device", "cpu")
    assert code == 0, err
    assert journal.read_bytes() == before
    if name == "tune":
        found, old = (json.loads((where / "tune.json").read_text()) for where in (folder, DATA))
        for both in (found, old):
            del both["protocol"]["date"], both["protocol"]["versions"]
        assert found == old
        return
    found, old = (HeadScores.load(where / f"{name}.safetensors") for where in (folder, DATA))
    assert torch.equal(found.values, old.values)
    assert (found.settings, found.samples, found.license) == (old.settings, old.samples, "Apache-2.0")


def test_an_old_journal_that_does_not_tell_whose_weights_it_is_of_is_refused(winnow_run, folder):
    journal = copied("needle", folder)
    before = journal.read_bytes()
    code, _, err = winnow_run("heads", *COMMANDS["needle"].split(), "--dtype", "float32", "--device", "cpu")
    assert code == FAILED
    assert "scores of kind r are too coarse to tell if they are this model's: give another --out or --journal" in err
    assert journal.read_bytes() == before


def test_old_head_scores_are_shown_as_before(winnow_run, folder):
    files = ("needle.safetensors", "cokv.safetensors")
    for file in files:
        shutil.copy(DATA / file, folder)
    code, out, err = winnow_run("heads", "show", "--json", *files)
    assert code == 0, err
    assert json.loads(out) == json.loads((DATA / "show.json").read_text())


def test_head_scores_are_saved_as_before(tmp_path):
    table = HeadScores.load(DATA / "cokv.safetensors")
    assert table.license == table.licence == table.facts()["licence"] == "Apache-2.0"
    assert table.save(tmp_path / "again.safetensors").read_bytes() == (DATA / "cokv.safetensors").read_bytes()
