"""The race of servers: whole runs on a tiny GGUF file, against a stand-in for llama-server."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from support.gguf_files import tiny_model, write_gguf
from support.llama_server_program import write_server

pytest.importorskip("gguf")
pytest.importorskip("accelerate")
pytest.importorskip("starlette")

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS / "peers")]

import contenders  # noqa: E402
import server_program  # noqa: E402
import servers  # noqa: E402
from clients import Heard, Wave  # noqa: E402
from reporting import of_this_processor  # noqa: E402

PAGE = of_this_processor("servers")


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns that begin at once: nothing is measured here."""
    monkeypatch.setattr(contenders, "REST", 0.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "Tiny.Q8_0.gguf", tiny_model(context=1024))


def test_all_servers_take_turns_and_are_told_of(model: Path, tmp_path: Path) -> None:
    program = write_server(tmp_path / "llama-server")
    options = ["--llama-server", str(program), "--weights", "int8", "--methods", "full", "--rounds", "2"]
    servers.main([str(model), "--tiny", *options, "--out", str(tmp_path)])
    rows = json.loads((tmp_path / f"{PAGE}.json").read_text())["results"]
    named = [(row["server"], row["weights"], row["cache"], row["clients"]) for row in rows]
    theirs, ours = ("llama-server", "file", "f16"), ("winnow serve", "int8", "full")
    assert named == [(*theirs, 1), (*ours, 1), (*theirs, 2), (*ours, 2), (*theirs, 2), (*ours, 2)]
    assert [row["shared"] for row in rows] == [0, 0, 0, 0, 100, 100]
    for row in rows:
        assert row["requests_per_second"] == 2 / row["seconds"]
        assert row["tokens_per_second"] > 0
        assert 0 < row["first_seconds"] <= row["seconds"]
        assert 0 < row["gap_seconds"] <= row["long_gap_seconds"]
    text = (tmp_path / f"{PAGE}.md").read_text()
    assert "| winnow serve | int8    | `full` |" in text


def test_medians_and_ratios_are_those_of_rounds() -> None:
    def seen(seconds: float, *arrivals: float) -> Wave:
        return Wave(seconds, [Heard(10, 4, arrivals)] * 2)

    rounds = [
        [seen(8.0, 1.0, 2.0), seen(2.0, 0.5, 0.75)],
        [seen(9.0, 1.0, 2.0), seen(3.0, 0.5, 0.75)],
        [seen(8.0, 1.0, 2.0), seen(1.0, 0.5, 0.75, 1.75)],
    ]
    ours = servers.Contender("winnow serve", "int4", "full", ())
    row = servers.seen_of(1, ours, server_program.Server("nowhere", -1), servers.TINY[0], 2, rounds)
    assert (row.seconds, row.requests_per_second, row.tokens_per_second) == (2.0, 1.0, 4.0)
    assert row.as_fast == 4.0
    assert (row.first_seconds, row.gap_seconds, row.long_gap_seconds) == (0.5, 0.25, 1.0)


def test_a_server_that_ends_at_once_is_told_of_with_its_last_words(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "llama-server"
    program.write_text(f"#!{sys.executable}\nprint('no such model')\n")
    program.chmod(0o755)
    with pytest.raises(SystemExit, match=r"(?s)llama-server --model .* ended at once:\nno such model"):
        servers.main([str(model), "--tiny", "--llama-server", str(program), "--out", str(tmp_path)])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["missing.gguf"], "there is no file missing.gguf"), (["missing.gguf", "--tiny"], "an --out of its own")],
)
def test_senseless_options_are_refused(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        servers.main(arguments)
    assert said in capsys.readouterr().err
