"""The race with llama.cpp: what is read of its benchmark, slopes and ratios, and whole runs on a tiny GGUF file."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from math import pi
from pathlib import Path
from random import Random
from statistics import fmean, linear_regression
from textwrap import dedent
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.gguf_files import tiny_model, write_gguf
from support.llama_turns_program import (
    FIXED_MS,
    MS_OF_A_TOKEN,
    PROMPT_MS,
    WEIGHT_BYTES,
    token_ms,
    write_program,
)

pytest.importorskip("gguf")
pytest.importorskip("accelerate")
pytestmark = pytest.mark.usefixtures("one_thread")

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS / "peers")]

import comparison  # noqa: E402
import contenders  # noqa: E402
import genai_rival  # noqa: E402
import llama_build  # noqa: E402
import llama_cpp  # noqa: E402
import llama_rival  # noqa: E402
import race_page  # noqa: E402
import rewritten  # noqa: E402
from contenders import Answering, PeerError  # noqa: E402
from measured import RECORDS, Measured  # noqa: E402
from own_steps import METHODS  # noqa: E402
from reporting import of_this_processor  # noqa: E402
from winnow.estimate.journal import Journal  # noqa: E402

PAGE = of_this_processor("llama_cpp")
SMALL = ("--depths", "0,64,128", "--threads", "1,2", "--steps", "2", "--rounds", "2", "--weights", "float32")


@pytest.fixture(autouse=True, scope="module")
def no_rest() -> Iterator[None]:
    """Turns that begin at once: nothing is measured here."""
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(contenders, "REST", 0.0)
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "Tiny.Q8_0.gguf", tiny_model())


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_program(tmp_path_factory.mktemp("bin") / "llama-turns")


def run(model: Path, program: Path, folder: Path, *more: str) -> None:
    written = ("--journal", str(folder / "j.jsonl"), "--out", str(folder))
    llama_cpp.main([str(model), "--llama-turns", str(program), *written, *SMALL, *more])


@pytest.fixture(scope="module")
def folder(model: Path, program: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that a whole run wrote."""
    folder = tmp_path_factory.mktemp("race")
    run(model, program, folder)
    return folder


def results(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / f"{PAGE}.json").read_text(encoding="utf-8"))["results"]
    return found


def test_every_cache_of_both_engines_is_measured_at_every_depth(folder: Path) -> None:
    tokens = [each for each in results(folder) if each["what"] == "token"]
    assert all(list(each["ms"]) == ["0", "64", "128"] for each in tokens)
    for threads in (1, 2):
        named = {(each["engine"], each["cache"]) for each in tokens if each["threads"] == threads}
        theirs = {("llama.cpp", cache.name) for cache in llama_rival.CACHES}
        assert named == theirs | {("winnow", method) for method in METHODS}
    assert {len(each["ms"]["64"]) for each in tokens} == {2}  # a repetition in every round
    assert min(ms for each in tokens for ms in each["ms"]["64"]) > 0


def test_caches_take_turns(folder: Path) -> None:
    """All are measured at a depth before the next one; rounds begin with another cache and turn the depths around."""
    records = Journal.existing(folder / "j.jsonl").read(RECORDS)
    turns = [each for each in records if each.what == "token" and each.threads == 1]
    for done, depths in (("0", [0, 64, 128]), ("1", [128, 64, 0])):
        mine = [each for each in turns if each.turn == done]
        assert list(dict.fromkeys(each.depth for each in mine)) == depths
        at = [[each.cache for each in mine if each.depth == depth] for depth in depths]
        assert at[0] == at[1] == at[2]
        assert len(set(at[0])) == len(at[0]) == len(llama_rival.CACHES) + len(METHODS)
    assert turns[0].cache != next(each.cache for each in turns if each.turn == "1")


def test_the_other_engines_times_are_those_that_its_program_printed(folder: Path) -> None:
    for each in results(folder):
        if each["engine"] == "llama.cpp" and each["what"] == "token":
            kind = each["cache"].partition(",")[0]
            for depth, ms in each["ms"].items():
                assert ms == pytest.approx([token_ms(kind, int(depth), each["threads"])] * 2)
            assert each["ms_per_1000_tokens"] == pytest.approx(1000 * MS_OF_A_TOKEN[kind] / each["threads"], rel=1e-4)
            assert each["weight_bytes"] == WEIGHT_BYTES
        if each["engine"] == "llama.cpp" and each["what"] == "prompt":
            assert (each["threads"], each["ms"]) == (2, [PROMPT_MS * each["depth"]])


def test_bytes_are_those_of_each_format(folder: Path) -> None:
    held = {(e["engine"], e["cache"]): e["cache_bytes"] for e in results(folder) if e["what"] == "token"}
    numbers = 128 * 2 * 2 * 2 * 16  # tokens, keys and values, layers, heads, channels
    assert held["llama.cpp", "f16"] == 2 * numbers
    assert held["llama.cpp", "q8_0"] == numbers // 32 * 34
    assert held["llama.cpp", "q4_0"] == numbers // 32 * 18
    assert held["winnow", "full"] >= 4 * numbers  # fp32
    assert held["winnow", "adakv @ 2%"] < held["winnow", "adakv @ 10%"] < held["winnow", "full"]


def test_the_page_says_what_was_found(folder: Path) -> None:
    text = (folder / f"{PAGE}.md").read_text(encoding="utf-8")
    for said in ("Tiny.Q8_0.gguf", "### Threads: 2", "4x flatter than f16", "8x flatter than q4_0", "(float32)"):
        assert said in text
    assert "| `adakv @ 5%`" in text
    assert max(map(len, text.splitlines())) < 600


def test_what_is_in_the_journal_is_not_measured_again(model: Path, program: Path, folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "j.jsonl", tmp_path)
    run(model, write_program(tmp_path / "none", "raise SystemExit('run again')"), tmp_path)
    assert results(tmp_path) == results(folder)
    kept = (tmp_path / "j.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    lost = next(at for at, line in enumerate(kept) if '"winnow"' in line and '"token"' in line)
    (tmp_path / "j.jsonl").write_text("".join(kept[:lost] + kept[lost + 1 :]), encoding="utf-8")
    run(model, tmp_path / "none", tmp_path)  # that one is Winnow's own
    assert len((tmp_path / "j.jsonl").read_text(encoding="utf-8").splitlines()) == len(kept)
    (tmp_path / "j.jsonl").write_text("".join(line for line in kept if "q8_0" not in line), encoding="utf-8")
    run(model, program, tmp_path)  # which reads its prompt before its tokens
    assert {e["cache"]: e["ms"] for e in results(tmp_path) if e["engine"] == "llama.cpp"} == {
        e["cache"]: e["ms"] for e in results(folder) if e["engine"] == "llama.cpp"
    }


def test_a_program_that_fails_is_named_with_its_last_words(model: Path, tmp_path: Path) -> None:
    program = write_program(tmp_path / "llama-turns", "raise SystemExit('failed to load model')")
    with pytest.raises(PeerError, match=r"failed to load model\nRepeat it by hand with .*llama-turns .*gguf 131 f16 1"):
        run(model, program, tmp_path)
    with pytest.raises(PeerError, match=r"Cannot run .*absent: No such file"):
        run(model, tmp_path / "absent", tmp_path)


@pytest.mark.parametrize("line", ["llama.cpp 1.0", "[3]", "{}", '{"weight_bytes": "many"}', '{"weight_bytes": NaN}'])
def test_what_is_not_its_json_is_refused(line: str, tmp_path: Path) -> None:
    program = write_program(tmp_path / "llama-turns", f"print({line!r})")
    with pytest.raises(PeerError, match=r"llama-turns answered something else than expected: .*another version"):
        _ = Answering([str(program)], "llama-turns").weight_bytes


def test_a_program_that_ends_between_questions_is_told_with_its_last_words(tmp_path: Path) -> None:
    body = """
        import sys
        print('{"weight_bytes": 5}', flush=True)
        input()
        print('{"ms": [2.5]}', flush=True)
        input()
        sys.exit("no memory is left")
    """
    program = Answering([str(write_program(tmp_path / "turns", dedent(body)))], "llama-turns")
    assert (program.ask("tokens", 0, 1, 2), program.weight_bytes) == ([2.5], 5)
    for _ in range(2):
        with pytest.raises(PeerError, match="llama-turns ended with 1: no memory is left"):
            program.ask("tokens", 0, 1, 2)
    program.close()
    program.close()


def test_more_tokens_than_the_model_reads_are_refused_before_any_work(
    model: Path, program: Path, tmp_path: Path
) -> None:
    with pytest.raises(PeerError, match="reads 512 tokens at most, not 603"):
        run(model, program, tmp_path, "--depths", "0,597")
    with pytest.raises(PeerError, match="holds no times yet"):
        run(model, program, tmp_path, "--page-only")


@pytest.mark.parametrize("name", ["absent.gguf", ".", "some/name"])
def test_what_is_no_gguf_file_is_refused(name: str, program: Path, tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="is no GGUF file; give the path of one"):
        run(tmp_path / name, program, tmp_path)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--depths", "4096"), "two depths"),
        (("--depths=-1,4",), "-1 is less than 0"),
        (("--threads", "0,1"), "0 is less than 1"),
        (("--threads", "two"), "no list of whole numbers"),
        (("--steps", "0"), "1 at least"),
    ],
)
def test_senseless_options_are_refused(arguments: tuple[str, ...], said: str, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        llama_cpp.parsed(["model.gguf", *arguments])
    assert said in capsys.readouterr().err


def test_without_its_tools_nothing_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(PeerError, match="needs a cmake: pip install cmake, or name a program with --llama-turns"):
        llama_build.built(llama_build.TURNS, tmp_path / "peers")
    assert not (tmp_path / "peers").exists()


def test_a_build_that_fails_leaves_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "llama-cpp-python-0.3.36" / "vendor" / "llama.cpp").mkdir(parents=True)
    failed = subprocess.CompletedProcess([], 2)
    monkeypatch.setattr(shutil, "which", lambda name, **_: name)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(PeerError, match=r"Configuring llama\.cpp failed with 2"):
        llama_build.built(llama_build.TURNS, tmp_path)


def token(engine: str, cache: str, depth: int, ms: float, turn: str = "0") -> Measured:
    return Measured("token", engine, cache, "w", 1, depth, turn, [ms], 10, 20)  # type: ignore[arg-type]


def test_openvino_takes_turns_at_every_number_of_threads(
    model: Path, program: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its program is stood in for; the one of the repository needs packages that are not installed here."""
    body = """
        import json, sys
        print('{"weight_bytes": 5}', flush=True)
        for line in sys.stdin:
            what, *numbers = line.split()
            depth, threads = map(int, numbers[1::-1] if what == "prompt" else numbers[:2])
            ms = 7 * depth if what == "prompt" else (9 + 0.01 * depth) / threads
            print(json.dumps({"ms": [ms]}), flush=True)
    """
    monkeypatch.setattr(genai_rival, "PROGRAM", write_program(tmp_path / "genai", dedent(body)))
    monkeypatch.setattr(llama_cpp, "check_genai", lambda: None)
    caches = genai_rival.GENAI_CACHES[-1:]
    monkeypatch.setattr(llama_cpp, "GENAI_CACHES", caches)
    shutil.copy(folder / "j.jsonl", tmp_path)
    run(model, program, tmp_path, "--openvino")
    tokens = {
        (e["cache"], e["threads"]): e for e in results(tmp_path) if (e["engine"], e["what"]) == ("OpenVINO", "token")
    }
    assert set(tokens) == {(cache.name, threads) for cache in caches for threads in (1, 2)}
    assert tokens["u8 @ 10%", 2]["ms"] == {"0": [4.5] * 2, "64": [4.82] * 2, "128": [5.14] * 2}
    assert tokens["u8 @ 10%", 1]["ms_per_1000_tokens"] == pytest.approx(10)
    prompts = [e for e in results(tmp_path) if (e["engine"], e["what"]) == ("OpenVINO", "prompt")]
    assert [(e["depth"], e["ms"]) for e in prompts] == [(64, [448]), (128, [896])]
    assert "| OpenVINO  | `u8 @ 10%`" in (tmp_path / f"{PAGE}.md").read_text(encoding="utf-8")


def test_openvino_is_asked_for_before_anything_is_built(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(genai_rival, "PACKAGES", ("absent_package",))
    with pytest.raises(PeerError, match="--openvino needs absent_package: pip install openvino-genai"):
        run(model, tmp_path / "absent", tmp_path, "--openvino")


@given(
    st.lists(
        st.tuples(st.integers(0, 10**5), st.floats(0, 1e4)), min_size=2, max_size=6, unique_by=lambda pair: pair[0]
    )
)
def test_a_slope_is_the_least_squares_of_a_loop(points: list[tuple[int, float]]) -> None:
    (line,) = comparison.lines([token("winnow", "full", depth, ms) for depth, ms in points])
    mean_x, mean_y = (sum(each) / len(points) for each in zip(*points, strict=True))
    over = sum((x - mean_x) * (y - mean_y) for x, y in points)
    expected = 1000 * over / sum((x - mean_x) ** 2 for x, _ in points)
    assert line.slope == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_ratios_are_over_the_best_of_their_kind() -> None:
    """f16 is flatter without flash attention here, and is then the reference; a flat line has no finite ratio."""
    times = {
        ("llama.cpp", "f16"): (10, 50),
        ("llama.cpp", "f16, no flash attention"): (15, 47),
        ("llama.cpp", "q8_0"): (10, 60),
        ("winnow", "full"): (20, 24),
        ("winnow", "full+bits(8)"): (20, 22.5),
        ("winnow", "adakv @ 5%"): (20, 20),
    }
    measured = [token(*name, depth, ms[depth > 0]) for name, ms in times.items() for depth in (0, 2000)]
    found = {each["cache"]: each for each in race_page.records(measured)}
    assert found["full"]["flatter_than_f16"] == pytest.approx(32 / 4)
    assert found["full"]["flatter_at_equal_bits"] == pytest.approx(32 / 4)
    assert found["full+bits(8)"]["flatter_at_equal_bits"] == pytest.approx(50 / 2.5)
    assert found["full+bits(8)"]["faster_than_f16"] == pytest.approx(47 / 22.5)
    assert found["adakv @ 5%"]["flatter_than_f16"] is None  # and no infinity, which is no JSON
    rows = race_page.targets_table(comparison.by_threads(measured)).splitlines()[2:]
    assert [row.split("|")[-2].strip() for row in rows] == ["yes", "yes", "yes", "yes"]
    assert "a token at 2,000 faster than with f16, no flash attention" in rows[-1]


def test_tokens_are_compared_at_the_largest_depth_alone() -> None:
    """q8_0 is faster where it was measured, which is not as deep."""
    times = {
        ("llama.cpp", "f16"): {0: 10, 1000: 30, 2000: 50},
        ("llama.cpp", "q8_0"): {0: 10, 1000: 20},
        ("winnow", "adakv @ 5%"): {0: 20, 1000: 20, 2000: 25},
    }
    measured = [token(*name, depth, ms) for name, each in times.items() for depth, ms in each.items()]
    compared = comparison.by_threads(measured)
    met = race_page.targets_table(compared).splitlines()[-1]
    assert [cell.strip() for cell in met.split("|")][-4:-1] == ["a token at 2,000 faster than with f16", "2.00x", "yes"]
    row = next(row for row in race_page.tokens_table(next(iter(compared.values()))).splitlines() if "q8_0" in row)
    assert [cell.strip() for cell in row.split("|")][5:8] == ["10.0", "20.0", ""]


def test_a_slope_in_the_noise_gives_a_bound_and_is_no_reference() -> None:
    noise = (-3.0, 0.0, 3.0)
    measured = [
        token(engine, cache, depth, 50 + slope * depth + error, f"{turn}")
        for engine, cache, slope in (("llama.cpp", "f16", 0.02), ("winnow", "full", 0.0), ("llama.cpp", "q8_0", 0.0))
        for depth in (0, 1000, 2000)
        for turn, error in enumerate(noise)
    ]
    found = {each["cache"]: each for each in race_page.records(measured)}
    # A depth's repetitions deviate by 3, its median by sqrt(pi / 2) of that over the root of three; the depths' squared
    # distances sum up to 2 million.
    error = 1000 * 3 * (pi / 2 / 3) ** 0.5 / 2e6**0.5
    assert found["full"]["standard_error"] == pytest.approx(error)
    assert found["full"]["flatter_than_f16"] == pytest.approx(20 / (2 * error))
    assert found["f16"]["flatter_than_f16"] == pytest.approx(1)
    (compared,) = comparison.by_threads(measured).values()
    assert comparison.flatter(compared.ours[0], compared.theirs[1]) is None
    assert "| over " in race_page.tokens_table(compared)


def test_an_error_is_the_misfit_of_the_medians_where_that_is_larger() -> None:
    """No repetition differs from another, and yet the times say little of a slope."""
    times = {0: 34.9, 1000: 23.7, 2000: 25.5, 3000: 34.6}
    (line,) = comparison.lines(
        [token("winnow", "full", depth, ms, turn) for depth, ms in times.items() for turn in "ab"]
    )
    fitted = linear_regression(list(times), list(times.values()))
    squares = sum((ms - fitted.intercept - fitted.slope * depth) ** 2 for depth, ms in times.items())
    assert line.error == pytest.approx(1000 * (squares / 2 / 5e6) ** 0.5)
    assert not line.straight


def test_the_error_of_a_slope_is_its_deviation_over_many_runs() -> None:
    """Medians of a few repetitions, of times that lie on a line but for noise."""
    drawn, depths = Random(0), (0, 4096, 8192, 16384)
    found = []
    for _ in range(400):
        measured = [token("winnow", "full", depth, 40 + drawn.gauss(0, 1), turn) for depth in depths for turn in "abcd"]
        found += comparison.lines(measured)
    deviation = fmean(line.slope**2 for line in found) ** 0.5
    assert deviation < fmean(line.error for line in found) < 1.6 * deviation


@pytest.mark.parametrize("ours", [(34.9, 23.7, 25.5, 34.6), (40.0, 37.0, 34.0, 31.0)])
def test_no_target_is_judged_where_times_lie_on_no_line_or_fall(ours: tuple[float, ...]) -> None:
    times = {("llama.cpp", "f16"): (20.0, 40.0, 60.0, 80.0), ("winnow", "full"): ours}
    measured = [token(*name, 1000 * at, ms) for name, each in times.items() for at, ms in enumerate(each)]
    (compared,) = comparison.by_threads(measured).values()
    assert comparison.flatter(compared.ours[0], compared.f16) is None
    rows = race_page.targets_table(comparison.by_threads(measured)).splitlines()[2:]
    assert [[cell.strip() for cell in row.split("|")[-3:-1]] for row in rows] == [["", "not judged"]] * 2


def test_pages_are_written_again_from_their_records(folder: Path, tmp_path: Path) -> None:
    for suffix in (".md", ".json"):
        shutil.copy(folder / f"{PAGE}{suffix}", tmp_path)
    rewritten.rewrite(tmp_path / f"{PAGE}.json")
    for suffix in (".md", ".json"):
        assert (tmp_path / f"{PAGE}{suffix}").read_text() == (folder / f"{PAGE}{suffix}").read_text()


def test_a_page_has_the_commands_that_measure_it_again() -> None:
    ours = {1: (0, 4096), 2: (0, 4096, 8192)}
    measured = [
        Measured("token", "winnow", "full", "int4", threads, depth, "0", [1.0], 1, 1)
        for threads, depths in ours.items()
        for depth in depths
    ]
    told = race_page.commands(measured)
    assert "--threads 1 --depths 0,4096 --weights int4` and `python" in told
    assert told.endswith("--threads 2 --depths 0,4096,8192 --weights int4`")


def test_prompts_are_compared_with_as_many_threads() -> None:
    """A run with fewer threads goes on in the same journal."""
    seconds = {("llama.cpp", "f16"): {2: 8, 1: 14}, ("winnow", "full"): {2: 2, 1: 4}}
    measured = [
        Measured("prompt", engine, cache, "w", threads, 512, "0", [1000.0 * each], 10, 20)  # type: ignore[arg-type]
        for (engine, cache), found in seconds.items()
        for threads, each in found.items()
    ]
    rows = race_page.prompts_table(measured).splitlines()[2:]
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]
    assert [(row[0], row[1], row[-1]) for row in cells] == [
        ("1", "llama.cpp", "14.0"),
        ("1", "winnow", "4.0 (3.50x)"),
        ("2", "llama.cpp", "8.0"),
        ("2", "winnow", "2.0 (4.00x)"),
    ]


def test_a_time_is_the_median_of_all_turns() -> None:
    turns = [token("winnow", "full", 8, ms, turn) for turn, ms in zip("abc", (3, 900, 2), strict=True)]
    (line,) = comparison.lines([token("winnow", "full", 0, 1), *turns])
    assert dict(line.ms) == {0: 1, 8: 3}
    assert not comparison.lines(turns)  # one depth has no slope


def test_records_survive_their_journal(folder: Path) -> None:
    read = Journal.existing(folder / "j.jsonl").read(RECORDS)
    assert {each.what for each in read} == {"token", "prompt"}
    assert FIXED_MS / 2 in {ms for each in read for ms in each.ms}
