"""Fuzz targets of Winnow's readers, for Atheris: whatever the bytes are, a reader returns or raises a WinnowError.

    PYTHONPATH=tests python fuzz/targets.py context|journal|scores [options of libFuzzer, such as -max_total_time=60]

Each starts from files that are right, and keeps what it finds in build/fuzz/corpus.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import atheris
import torch

# Before all that imports them: what they do is what the fuzzer watches.
with atheris.instrument_imports(include=["winnow"]):
    import winnow
    from support.crafted_contexts import model_of, valid
    from support.damaged_contexts import sealed_file, table_and_payload
    from support.ready import random_scores
    from winnow.cache import container
    from winnow.cache.disk import ContextFile
    from winnow.errors import WinnowError
    from winnow.estimate.journal import Journal, fingerprint
    from winnow.heads import read_tables

ROOT = Path(__file__).resolve().parent.parent
Check = Callable[[bytes, Path], None]
NAMES = ("dense", "gemma2", "adakv+think(0.5)", "adakv+spark-g(5)+bits(8, 4)")
"""Contexts whose tensors go with the facts that are tried."""
DEEP = "[" * 5000 + "]" * 5000
CONFIG = {"model": "small", "seed": 3}


def check_context(data: bytes, folder: Path) -> None:
    """Bytes as a whole file, as a header with right checksums, or as the facts of one."""
    path, kind, rest = folder / "context", data[0] if data else 0, data[1:]
    name = NAMES[kind // 3 % len(NAMES)]
    if kind % 3 == 0:
        path.write_bytes(rest)
    elif kind % 3 == 1:
        path.write_bytes(sealed_file(rest, table_and_payload(name)[1]))
    else:
        table, payload = table_and_payload(name)
        path.write_bytes(sealed_file(_header(rest.decode("utf-8", "replace"), table), payload))
    context = winnow.load_context(path, model_of(name))
    context.stats()
    ContextFile.open(path).document  # noqa: B018 (read, and decoded)
    with torch.no_grad():
        model_of(name)(torch.ones(len(context.input_ids), 1, dtype=torch.int64), cache=context.cache())


def check_journal(data: bytes, folder: Path) -> None:
    """Bytes as a journal of any configuration, and of one."""
    for read in (Journal.existing, lambda path: Journal.open(path, CONFIG)):
        path = folder / "journal.jsonl"
        path.write_bytes(data)
        with suppress(WinnowError):
            read(path).records()


def check_scores(data: bytes, folder: Path) -> None:
    """Bytes as a table of head scores in any of its formats."""
    path = folder / ("scores.safetensors", "scores.json", "scores.tsv")[data[0] % 3 if data else 0]
    path.write_bytes(data[1:])
    read_tables([path])


def _header(facts: str, table: dict[str, Any]) -> bytes:
    told = {container.FACTS: facts, container.PAYLOAD: "0" * 64, container.HEADER: "0" * 64}
    return json.dumps({"__metadata__": told, **table}, separators=(",", ":")).encode()


def seeds_of_contexts() -> list[bytes]:
    """Files, headers and facts of contexts that are right."""
    found = []
    for index, name in enumerate(NAMES):
        facts = json.dumps({"version": container.VERSION, **valid(name).facts})
        table, payload = table_and_payload(name)
        found += [bytes([3 * index + 2]) + facts.encode(), bytes([3 * index + 1]) + _header(facts, table)]
        found += [bytes([3 * index + 2]) + facts.replace('"version": 1', f'"version": {DEEP}').encode()]
        found += [bytes([3 * index]) + sealed_file(_header(facts, table), payload)]
    return found


def seeds_of_journals() -> list[bytes]:
    """Journals of two records, and one that broke off."""
    header = json.dumps({"winnow_journal": 1, "hash": fingerprint(CONFIG), "config": CONFIG})
    whole = f'{header}\n{{"task": 1, "u": 0.5}}\n{{"task": [2, "a"], "u": null}}\n'.encode()
    return [whole, whole[:-9], header.encode(), f'{header}\n{{"task": {DEEP}}}\n'.encode()]


def seeds_of_scores() -> list[bytes]:
    """Tables in every format."""
    with tempfile.TemporaryDirectory() as folder:
        own = random_scores((3, 2)).save(Path(folder) / "scores.safetensors").read_bytes()
    headkv = json.dumps({f"{layer}-{head}": [0.5, 0.25] for layer in range(2) for head in range(2)})
    cokv = json.dumps({"0-0": 0.5, "0-1": 1, "1-0": -0.25, "1-1": 0})
    return [
        b"\1" + f'{{"0-0": {DEEP}}}'.encode(),
        b"\0" + own,
        b"\1" + headkv.encode(),
        b"\1" + cokv.encode(),
        b"\2" + b"0.5\t0.25\n1\t0\n",
    ]


TARGETS: dict[str, tuple[Check, Callable[[], list[bytes]]]] = {
    "context": (check_context, seeds_of_contexts),
    "journal": (check_journal, seeds_of_journals),
    "scores": (check_scores, seeds_of_scores),
}


def main() -> None:
    """Runs a target until it finds something or its time is up."""
    name, *options = sys.argv[1:]
    check, seeds = TARGETS[name]
    corpus = ROOT / "build" / "fuzz" / "corpus" / name
    corpus.mkdir(parents=True, exist_ok=True)
    for index, seed in enumerate(seeds()):
        (corpus / f"seed-{index}").write_bytes(seed)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:

        def test_one_input(data: bytes) -> None:
            with suppress(WinnowError):
                check(data, Path(folder))

        found = f"-artifact_prefix={corpus.parent.parent}/{name}-"
        atheris.Setup(
            [sys.argv[0], "-max_len=20000", "-rss_limit_mb=6000", found, *options, str(corpus)], test_one_input
        )
        atheris.Fuzz()


if __name__ == "__main__":
    main()
