"""`winnow heads fetch`: from a server of this machine, and the registry against copies of the published files."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from winnow.cli import main
from winnow.commands.failures import FAILED
from winnow.commands.heads import fetch as fetching
from winnow.heads import HeadScores, published, read_scores
from winnow.heads.published import PICKLES, PUBLISHED, PublishedTable

DATA = Path(__file__).parents[4] / "shared" / "data"
MODEL = "Meta-Llama-3-8B-Instruct"
FILE = f"{MODEL}_retrieval_reasoning_heads.json"
TABLE = '{"0-0": [1.0, 0.5], "0-1": [0.0, 0.5], "1-0": [0.25, 0.25], "1-1": [0.0, 0.0]}'


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server of a folder with one table."""
    served = tmp_path / "served"
    served.mkdir()
    (served / FILE).write_text(TABLE)
    monkeypatch.chdir(tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(served))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/{FILE}"
        server.shutdown()


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Makes an address known, with a SHA-256."""

    def known(url: str, sha256: str) -> None:
        monkeypatch.setattr(published, "PUBLISHED", (PublishedTable(MODEL, "headkv-r2", url, sha256, "MIT", 1),))

    return known


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().err.split())


def test_a_table_is_fetched_checked_and_written_per_kv_head(address, register, capsys):
    register(address, hashlib.sha256(TABLE.encode()).hexdigest())
    assert main(["heads", "fetch", f"meta-llama/{MODEL.lower()}", "headkv-r2"]) == 0
    table = HeadScores.load(f"{MODEL}-headkv-r2.safetensors")
    assert table.values.tolist() == [[0.5], [0.125]]
    assert (table.method, table.heads, table.model, table.license) == ("headkv-r2", "kv", MODEL, "MIT")
    assert address in table.notes
    assert "license MIT" in said(capsys)
    assert main(["heads", "fetch", MODEL, "headkv-r2"]) == FAILED
    assert "exists" in said(capsys)


def test_another_file_than_the_known_one_is_refused(address, register, capsys):
    register(address, "0" * 64)
    assert main(["heads", "fetch", MODEL, "headkv-r2"]) == FAILED
    assert "is not the file that Winnow knows" in said(capsys)
    assert not list(Path().glob("*.safetensors"))


def test_without_a_net_one_line_says_what_to_do(address, register, capsys, monkeypatch):
    monkeypatch.setattr(fetching, "SECONDS", 2)
    for url in (address.replace(FILE, "missing.json"), "http://127.0.0.1:9/" + FILE):
        register(url, "0" * 64)
        assert main(["heads", "fetch", MODEL, "headkv-r2", "--out", "mine.safetensors"]) == FAILED
        captured = capsys.readouterr().err
        name = url.rpartition("/")[2]
        assert captured.count("\n") == 1
        assert f"Cannot fetch {url}: " in captured
        assert f"Save it as {name} where the net is open" in captured
        assert f"winnow heads convert {name} --kv-heads 1 -o mine.safetensors" in captured


def test_what_nobody_publishes_is_told_with_what_there_is(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["heads", "fetch", "gpt2", "headkv-r"]) == FAILED
    assert "There are: Llama-2-7B-32K-Instruct (duoattention)" in said(capsys)
    assert main(["heads", "fetch", MODEL, "cokv"]) == FAILED
    told = said(capsys)
    assert "NumPy pickles, which run code when they are read" in told
    assert "winnow heads convert *.json --kv-heads 8 -o" in told


def test_folders_of_pickles_are_those_of_the_state_that_was_looked_at():
    """In snapshot dc9f228 of nawei1010/CoKV; other folders of that name are not there."""
    tree = "https://github.com/nawei1010/CoKV/tree/dc9f228ee95af339b345f5624e38ec705dce995d/"
    assert {model: url.removeprefix(tree) for model, url in PICKLES.items()} == {
        "meta-llama-3-8b-instruct": "code_llama_mistrial/CoKV-main/adaptive_kv/cc_scores/cc_llama",
        "mistral-7b-instruct-v0.2": "code_llama_mistrial/CoKV-main/adaptive_kv/cc_scores/cc_mistral",
        "qwen3-32b": "adaptive_kv/assets/head_scores/complementary_contributions",
    }


@pytest.mark.parametrize("table", PUBLISHED, ids=lambda table: f"{table.model}-{table.method}")
def test_the_registry_names_the_published_files(table):
    folder = DATA / ("duo_patterns" if table.method == "duoattention" else "headkv_scores")
    copy = folder / table.file
    if not copy.exists():
        pytest.skip("no copies of the published files here")
    assert hashlib.sha256(copy.read_bytes()).hexdigest() == table.sha256
    found = read_scores(copy)
    assert (found.method, found.model) == (table.method, table.model)
    assert found.heads == ("kv" if table.kv_heads is None else "query")
    assert table.url.startswith("https://")
    if table.kv_heads is not None:
        assert found.grouped(table.kv_heads).shape[1] == table.kv_heads
