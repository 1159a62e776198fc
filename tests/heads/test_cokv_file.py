"""CoKV's published sums against the Shapley value of a small game, pooled by coalition size."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from fractions import Fraction
from itertools import combinations, permutations
from pathlib import Path

import numpy as np
import pytest
import torch

from support.published import DATA, needs_data
from winnow.heads import HeadScores, HeadScoresError, rank_correlation, read_cokv, read_scores, read_tables

COKV = DATA / "cokv_scores"
PLAYERS = 6


def utility(coalition: Iterable[int]) -> Fraction:
    """A game in which players help, hurt and depend on each other."""
    inside = set(coalition)
    alone = sum((Fraction(player * player - 7, 10) for player in inside), Fraction(0))
    return alone + (3 if {0, 4} <= inside else 0) - (2 if {1, 2, 5} <= inside else 0) + Fraction(len(inside) ** 2, 7)


def shapley(player: int) -> Fraction:
    """The mean over all orders of what the player adds to those before it."""
    orders = list(permutations(range(PLAYERS)))
    gains = (utility(order[: order.index(player) + 1]) - utility(order[: order.index(player)]) for order in orders)
    return sum(gains, Fraction(0)) / len(orders)


def cokv_content(coalitions: Iterable[Iterable[int]]) -> dict[str, object]:
    """Sums of the published code over these coalitions of one size."""
    left, right = [Fraction(0)] * PLAYERS, [Fraction(0)] * PLAYERS
    left_count, right_count = [0] * PLAYERS, [0] * PLAYERS
    drawn = [set(coalition) for coalition in coalitions]
    for inside in drawn:
        rest = set(range(PLAYERS)) - inside
        u = utility(inside) - utility(rest)
        for player in inside:
            left[player] += u
            left_count[player] += 1
        for player in rest:
            right[player] -= u
            right_count[player] += 1
    return {
        "n_players": PLAYERS,
        "layers": 3,
        "kv_heads": 2,
        "sampling_count": len(drawn),
        "cc_left": [round(float(value), 8) for value in left],
        "count_left": left_count,
        "cc_right": [round(float(value), 8) for value in right],
        "count_right": right_count,
    }


def cokv_file(folder: Path, content: object, name: str = "cc_game_2.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(content))
    return path


def all_of_size(size: int) -> list[tuple[int, ...]]:
    return list(combinations(range(PLAYERS), size))


def test_all_sizes_give_the_shapley_value(tmp_path):
    """The sizes 1 to n - 1 from files of 1 to n / 2 and both halves; size n gives every player U(all) - U(none)."""
    files = [
        cokv_file(tmp_path, cokv_content(all_of_size(size)), f"cc_game_{size}.json")
        for size in range(1, PLAYERS // 2 + 1)
    ]
    scores = read_cokv(files)
    together = utility(range(PLAYERS)) - utility(())
    exact = [float((shapley(player) * PLAYERS - together) / (PLAYERS - 1)) for player in range(PLAYERS)]
    assert scores.values.flatten().tolist() == pytest.approx(exact, abs=1e-7)
    assert scores.shape == (3, 2)
    assert scores.samples == 6 + 15 + 20
    assert (scores.method, scores.heads) == ("cokv", "kv")
    assert scores.notes == "task game; coalition sizes 1, 2, 3, 4, 5"
    assert scores.path is None


def test_first_half_is_the_sum_over_the_count_per_size(tmp_path):
    contents = [cokv_content(all_of_size(size)[::2]) for size in (2, 3)]
    files = [
        cokv_file(tmp_path, content, f"cc_game_{size}.json") for size, content in zip((2, 3), contents, strict=True)
    ]
    by_size = [np.array(content["cc_left"]) / np.array(content["count_left"]) for content in contents]
    scores = read_scores(files, halves="first")
    assert scores.values.flatten().tolist() == pytest.approx(((by_size[0] + by_size[1]) / 2).tolist())
    assert scores.notes.endswith("coalition sizes 2, 3 (first half only)")


def test_half_of_the_players_pool_both_halves(tmp_path):
    content = cokv_content(all_of_size(3)[:12])
    scores = read_cokv(cokv_file(tmp_path, content))
    sums = np.array(content["cc_left"]) + np.array(content["cc_right"])
    assert scores.values.flatten().tolist() == pytest.approx((sums / 12).tolist())
    assert scores.samples == 12


def test_shards_of_one_size_are_pooled(tmp_path):
    coalitions = all_of_size(3)
    whole_file = read_cokv(cokv_file(tmp_path, cokv_content(coalitions), "all.json"))
    shards = [
        cokv_file(tmp_path, cokv_content(part), f"{index}.json")
        for index, part in enumerate((coalitions[:9], coalitions[9:]))
    ]
    pooled = read_cokv(shards)
    assert pooled.values.flatten().tolist() == pytest.approx(whole_file.values.flatten().tolist(), abs=1e-7)
    assert pooled.samples == 20


def test_a_file_that_repeats_another_counts_once(tmp_path):
    content = cokv_content(all_of_size(2))
    one = cokv_file(tmp_path, content, "cc_game_2.json")
    copy_of_it = cokv_file(tmp_path, content, "cc_game_4.json")
    scores = read_cokv([one, copy_of_it])
    assert scores.values.equal(read_cokv(one).values)
    assert scores.samples == 15
    assert scores.notes.endswith("coalition sizes 2, 4; 1 of 2 files repeat another and were left out")


def test_a_player_without_a_sample_is_an_error(tmp_path):
    never = cokv_file(tmp_path, cokv_content([(0, 1), (1, 2), (2, 3), (3, 4)]))
    with pytest.raises(HeadScoresError, match=r"head 2-1 was in no sampled coalition of 2 players.*1 such"):
        read_cokv(never)
    always = cokv_file(tmp_path, cokv_content([(0, 1), (0, 2), (0, 3), (0, 4), (0, 5)]))
    with pytest.raises(HeadScoresError, match="head 0-0 was in no sampled coalition of 4 players"):
        read_cokv(always)
    assert read_cokv(always, halves="first").shape == (3, 2)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"cc_right": None}, "has no cc_right"),
        ({"layers": None, "kv_heads": None}, r"how many of its 6 players are in a layer: give .*--kv-heads N"),
        ({"layers": 2}, "6 players, which are not 2 layers of 2 heads"),
        ({"n_players": 7, "layers": 7, "kv_heads": 1}, "7 players in 7 layers of 1 heads, and has lists of 6, 6, 6, 6"),
        ({"layers": 0}, "layers must be a whole number from 1 to 1,000,000,000,000, not 0"),
        ({"sampling_count": 10**400}, "sampling_count must be a whole number from 1"),
        ({"sampling_count": "15"}, "sampling_count must be"),
        ({"sampling_count": True}, "sampling_count must be"),
        ({"sampling_count": 14}, "player 0 was counted 15 times in 14 samples"),
        ({"cc_left": [1.0]}, "lists of 1, 6, 6, 6"),
        ({"cc_left": 3}, "cc_left is not a list of numbers"),
        ({"count_left": ["5"] * 6}, "'5' at place 0"),
        (
            {"count_left": [6, 5, 5, 5, 5, 5], "count_right": [9, 10, 10, 10, 10, 10]},
            "mixes coalitions of several sizes",
        ),
        ({"cc_right": [100.0] * 6}, "do not cancel"),
        ({"cc_left": [math.nan] * 6}, "NaN, which is no JSON"),
        ({"cc_left": [0] * 6, "cc_right": [0] * 6}, "All head scores are zero"),
    ],
)
def test_cokv_files_that_are_damaged(tmp_path, change, says):
    content = {key: value for key, value in (cokv_content(all_of_size(2)) | change).items() if value is not None}
    path = cokv_file(tmp_path, content)
    with pytest.raises(HeadScoresError, match=says) as error:
        read_cokv(path)
    assert str(path) in str(error.value)


def dumped(content: dict[str, object]) -> dict[str, object]:
    """The content as the published pickles hold it: no shape, and a place behind the last player that is not filled."""
    sums = {name: [*value, 0.0] for name, value in content.items() if isinstance(value, list)}
    return sums | {"sampling_count": content["sampling_count"]}


def test_a_plain_dump_of_what_is_published_is_read_with_the_number_of_kv_heads(tmp_path):
    contents = {size: cokv_content(all_of_size(size)) for size in (1, 2, 3)}
    whole = [cokv_file(tmp_path, each, f"cc_game_{size}.json") for size, each in contents.items()]
    (tmp_path / "plain").mkdir()
    plain = [cokv_file(tmp_path / "plain", dumped(each), f"cc_game_{size}.json") for size, each in contents.items()]
    assert read_scores(plain, kv_heads=2) == read_cokv(whole)
    assert read_cokv(plain[0], kv_heads=3).shape == (2, 3)
    with pytest.raises(HeadScoresError, match=r"how many of its 6 players are in a layer: give .*--kv-heads N"):
        read_scores(plain)
    with pytest.raises(HeadScoresError, match="6 players, which are not 1 layers of 4 heads"):
        read_scores(plain, kv_heads=4)
    # Where a file says its shape, it holds.
    assert read_cokv(whole, kv_heads=3).shape == (3, 2)
    part = cokv_file(tmp_path, {name: value for name, value in contents[2].items() if name != "kv_heads"}, "part.json")
    assert read_cokv(part).values.equal(read_cokv(whole[1]).values)


def test_cokv_files_that_do_not_belong_together(tmp_path):
    content = cokv_content(all_of_size(2))
    one = cokv_file(tmp_path, content, "cc_llama3_lcc_2.json")
    other_task = cokv_file(tmp_path, content, "cc_llama3_trec_2.json")
    other_model = cokv_file(tmp_path, content, "cc_mistral_lcc_2.json")
    for other in (other_task, other_model):
        with pytest.raises(HeadScoresError, match="different tasks or models"):
            read_cokv([one, other])
    assert len(read_tables([one, other_task, other_model])) == 3
    with pytest.raises(HeadScoresError, match="are 2 tables"):
        read_scores([one, other_task])
    turned = cokv_file(tmp_path, content | {"layers": 2, "kv_heads": 3}, "a.json")
    with pytest.raises(HeadScoresError, match="of one model"):
        read_cokv([cokv_file(tmp_path, content, "b.json"), turned])
    with pytest.raises(HeadScoresError, match="at least one"):
        read_cokv([])
    with pytest.raises(HeadScoresError, match="halves must be"):
        read_cokv(one, halves="second")


@needs_data
def test_published_cokv_sums_cancel():
    """At half of the players left and right sums cancel; at other sizes they do once weighted with the sizes."""
    for path in sorted(COKV.glob("*.json"))[::5]:
        content = json.loads(path.read_text())
        left, right = math.fsum(content["cc_left"]), math.fsum(content["cc_right"])
        players = content["n_players"]
        size = sum(content["count_left"]) // content["sampling_count"]
        scale = math.fsum(map(abs, content["cc_left"]))
        assert (players - size) * left + size * right == pytest.approx(0, abs=1e-6 * players * scale)
        if 2 * size == players:
            assert left + right == pytest.approx(0, abs=1e-6 * scale)


@needs_data
def test_published_cokv_task():
    files = [COKV / f"cc_llama3_qasper_{size}.json" for size in (32, 64, 96, 128)]
    scores = read_scores(files)
    assert (scores.shape, scores.samples, scores.model) == ((32, 8), 3640, "Meta-Llama-3-8B-Instruct")
    assert "coalition sizes 32, 64, 96, 128, 160, 192, 224" in scores.notes
    content = json.loads(files[0].read_text())
    only = read_cokv(files[0])
    player = 3 * 8 + 5
    low = content["cc_left"][player] / content["count_left"][player]
    high = content["cc_right"][player] / content["count_right"][player]
    assert only.values[3, 5].item() == pytest.approx((low + high) / 2)
    assert rank_correlation(scores, read_scores(files, halves="first")) > 0.98


@needs_data
def test_published_cokv_files_that_repeat_each_other():
    files = [COKV / f"cc_llama3_trec_{size}.json" for size in (32, 64, 96, 128)]
    assert read_scores(files).values.equal(read_scores(files[1:3]).values)
    average, report = (read_cokv(COKV / f"cc_qwen3_{task}_size_256.json") for task in ("average", "gov_report"))
    assert average.values.equal(report.values)


def test_own_files_that_are_named_as_those_of_a_task_are_tables_of_their_own(tmp_path):
    files = [tmp_path / f"cc_hotpotqa_{size}.safetensors" for size in (8, 16)]
    for number, file in enumerate(files, start=1):
        HeadScores(torch.full((2, 2), float(number)), "cokv").save(file)
    found = read_tables(files)
    assert list(found) == [(file,) for file in files]
    assert [each.values[0, 0].item() for each in found.values()] == [1, 2]


def test_other_samples_with_the_same_counts_are_no_repetition(tmp_path):
    """All coalitions of a size have every player equally often, whatever they are worth."""
    one = cokv_content(all_of_size(3))
    twice = {**one, **{name: [2 * value for value in one[name]] for name in ("cc_left", "cc_right")}}
    files = [cokv_file(tmp_path, content, f"{index}.json") for index, content in enumerate((one, one, twice))]
    assert read_cokv(files[:2]).samples == 20
    assert read_cokv(files[1:]).samples == 40
    assert read_cokv(files[1:]).values.flatten().tolist() == pytest.approx(
        [1.5 * x for x in read_cokv(files[0]).values.flatten().tolist()]
    )
