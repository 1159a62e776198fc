"""Text files: questions, needles, documents and head scores, cut, flipped, nested, with types and values swapped.

Each is either read as what it says, or refused by an error of winnow's own that names the file, in one short line.
"""

from __future__ import annotations

import json
import random

import pytest

from support.attack import seeds
from support.ready import random_scores
from winnow.commands.batch_file import read_answered, read_batch
from winnow.commands.failures import readable
from winnow.commands.inputs import read_document
from winnow.errors import WinnowError
from winnow.estimate.needle.examples import read_examples
from winnow.estimate.tune.questions import pages_of
from winnow.estimate.verify.settings import cokv_settings, needle_settings
from winnow.heads import HeadScores, read_scores, summarize
from winnow.heads.readers import read_tables

VALUES = (None, True, False, 0, -1, 1.5, 10**400, 1e308, "", " ", "text", "\u2028", "half\ud800", "nul\0", [], [[]],
          [1], [None], {}, {"a": 1}, ["x"] * 3, "9" * 5000)  # fmt: skip
TEXTS = ("NaN", "Infinity", "-Infinity", "1e999", "9" * 5000, "[" * 200 + "]" * 200, "[" * 50_000, '{"a":' * 50_000,
         "01", "'x'", "\\", '"\\ud800"', '"\\u12"', '{"a":1,"a":2}', "\x00", "\ufeff", "//", "yes",
         '"' + "x" * 100_000 + '"')  # fmt: skip


# --- good files, by their names ---------------------------------------------------------------------------------------


def batch():
    lines = [
        {"question": "Why?", "context": "Because.", "answer": "so"},
        {"text": "Who?", "document": "d.txt", "answer": "I"},
    ]
    return "\n".join(map(json.dumps, lines)).encode()


def needles():
    line = {
        "needle": "The sun is red. It is.",
        "question": "What is red?",
        "answer": "the sun",
        "span": "The sun is red.",
    }
    return "\n".join([json.dumps(line)] * 3).encode()


def headkv():
    return json.dumps({f"{layer}-{head}": [0.5, head, 1.0] for layer in range(3) for head in range(2)}).encode()


def cokv():
    table = {
        "n_players": 4,
        "layers": 2,
        "kv_heads": 2,
        "sampling_count": 4,
        "cc_left": [1.0, 2.0, -1.0, -2.0],
        "count_left": [2] * 4,
        "cc_right": [-1.0, -1.0, 1.0, 1.0],
        "count_right": [2] * 4,
        "source": "x: y",
    }
    return json.dumps(table).encode()


def duo():
    return b"1.0\t0.5\n0.0\t-0.001\n"


def own(folder, method):
    settings = {"seed": 0, "examples": 3, "answer_tokens": 4}
    settings |= SETTINGS[method]
    values = random_scores((2, 2), method).values
    path = HeadScores(values, method, samples=4, settings=json.dumps(settings)).save(folder / "own.safetensors")
    return path.read_bytes()


SETTINGS = {
    "cokv": {"players": 4, "sizes": [2], "balanced": False, "window": 8},
    "headkv-r2": {"lengths": [16, 32], "depths": [0.0, 0.5]},
}


def read_own(path):
    table = read_scores(path)
    summarize(table, 1)
    try:
        if table.method == "cokv":
            cokv_settings(table)
        elif table.method == "headkv-r2":
            needle_settings(table)
    except WinnowError as problem:
        short(problem)


FORMATS = {
    "questions.jsonl": (batch, lambda path: pages_of(read_answered(str(path)))),
    "batch.jsonl": (batch, lambda path: read_batch(str(path), "A document.")),
    "needles.jsonl": (needles, read_examples),
    "m_retrieval_heads.json": (headkv, lambda path: summarize(read_scores(path), 1)),
    "cc_llama3_task_size_2.json": (cokv, lambda path: read_tables([path])),
    "duo.tsv": (duo, lambda path: summarize(read_scores(path), 1)),
    "duo.config.json": (
        lambda: b'{"model_name": "a/b", "seed": 3}',
        lambda path: read_scores(path.with_name("duo.tsv")),
    ),
    "document.txt": (lambda: "A text, garçon.".encode(), lambda path: read_document(str(path))),
}


# --- damage -----------------------------------------------------------------------------------------------------------


def flipped(rng, content):
    changed = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(rng, content):
    start, stop = sorted(rng.choices(range(len(content) + 1), k=2))
    return rng.choice([content[:start], content[stop:], content[:start] + content[stop:]])


def inserted(rng, content):
    at = rng.randrange(len(content) + 1)
    piece = rng.choice(TEXTS).encode("utf-8", "surrogatepass")
    return content[:at] + piece + content[at + rng.randint(0, 5) :]


def bytes_of_others(rng, content):
    return rng.choice(
        [
            rng.randbytes(rng.randint(0, 300)),
            b"\xff\xfe" + content,
            content.decode().encode("utf-16"),
            b"\x80\x04" + content,
            b"PK\x03\x04",
            content * 300,
            b"",
            b"\n" * 100_000,
        ]
    )


def swapped(rng, content):
    """Another value at a random place of a random line, or a key that is another one."""
    lines = content.decode().split("\n")
    at = rng.randrange(len(lines))
    try:
        value = json.loads(lines[at])
    except ValueError:
        return inserted(rng, content)
    if not isinstance(value, dict) or not value:
        return inserted(rng, content)
    key = rng.choice(sorted(value))
    if isinstance(value[key], list) and value[key] and rng.random() < 0.6:
        value[key][rng.randrange(len(value[key]))] = rng.choice(VALUES)
    elif rng.random() < 0.2:
        value[rng.choice(("0-7", "99999-0", "x", "", "10-1"))] = value.pop(key)
    else:
        value[key] = rng.choice(VALUES)
    lines[at] = dumped(value)
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def dumped(value):
    """As JSON, with the numbers that Python does not write."""
    return json.dumps(value, default=str, ensure_ascii=random.Random(str(len(str(value)))).random() < 0.5)


DAMAGE = (flipped, cut, inserted, bytes_of_others, swapped, swapped)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "d.txt").write_text("A document.")
    (tmp_path / "duo.tsv").write_bytes(duo())
    return tmp_path


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("seed", seeds(12, 300))
def test_damaged_files(folder, name, seed):
    made, read = FORMATS[name]
    rng = random.Random(f"{name}-{seed}")
    path = folder / name
    path.write_bytes(DAMAGE[seed % len(DAMAGE)](rng, made()))
    judged(lambda: read(path), path)


@pytest.mark.parametrize("name", FORMATS)
def test_undamaged_files(folder, name):
    made, read = FORMATS[name]
    (folder / name).write_bytes(made())
    read(folder / name)


@pytest.mark.parametrize("seed", seeds(60, 1000))
def test_damaged_files_of_head_scores(folder, seed):
    """Winnow's own: its header is swapped value by value, everything else is flipped and cut."""
    rng = random.Random(f"own-{seed}")
    content = own(folder, rng.choice(sorted(SETTINGS)))
    path = folder / "own.safetensors"
    path.write_bytes((with_header if seed % 2 else rng.choice((flipped, cut)))(rng, content))
    judged(lambda: read_own(path), path)


def with_header(rng, content):
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    facts = json.loads(header["__metadata__"]["winnow_head_scores"])
    place = rng.choice(("facts", "settings", "metadata", "tensor"))
    if place == "facts":
        facts[rng.choice(sorted(facts))] = rng.choice(VALUES)
    elif place == "settings":
        settings = json.loads(facts["settings"])
        settings[rng.choice(sorted(settings))] = rng.choice(VALUES)
        facts["settings"] = dumped(settings)
    told = rng.choice(TEXTS) if place == "metadata" else json.dumps(facts)
    header["__metadata__"]["winnow_head_scores"] = told
    if place == "tensor":
        header["scores"][rng.choice(("dtype", "shape", "data_offsets"))] = rng.choice(
            ("F32", "F8_E4M3", "I64", "X", [4, 1], [2, 2, 1], [-1, 4], [2**63, 2], [0, 2**62], [0, 16], [8, 32], None)
        )
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + length :]


def judged(read, path):
    try:
        read()
    except WinnowError as found:
        problem = found
    else:
        return
    short(problem)
    assert path.stem in str(problem), problem


def short(problem):
    text = str(problem)
    assert text.strip()
    assert "\n" not in text
    assert len(readable(text)) < 1000
