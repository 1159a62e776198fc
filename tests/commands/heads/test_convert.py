"""`winnow heads convert`: published tables, written in Winnow's own format."""

from __future__ import annotations

import json
from pathlib import Path

from support.published_tables import R2, R
from support.text import flat
from winnow.heads import HeadScores, read_scores


def test_convert_writes_our_own_format(winnow_heads):
    code, out, err = winnow_heads("convert", R2, "-o", "r2.safetensors", "--kv-heads", "2", "--license", "MIT")
    assert code == 0, err
    assert not out
    assert flat(err) == "r2.safetensors: headkv-r2, 3 layers of 2 KV heads"
    scores = HeadScores.load("r2.safetensors")
    assert scores.values.tolist() == [[1, 3], [2, 4], [3, 5]]
    assert (scores.heads, scores.samples, scores.model, scores.license) == ("kv", 2, "Tiny", "MIT")


def test_convert_keeps_query_heads_unless_told(winnow_heads):
    winnow_heads("convert", R2, "-o", "r2.safetensors", "--model", "Other")
    scores = HeadScores.load("r2.safetensors")
    assert (scores.heads, scores.shape, scores.model) == ("query", (3, 4), "Other")
    code, _, _ = winnow_heads("convert", "r2.safetensors", "-o", "kv.safetensors", "--kv-heads", "2")
    assert code == 0
    assert HeadScores.load("kv.safetensors").shape == (3, 2)


def test_convert_takes_the_kind_of_an_unnamed_table(winnow_heads):
    code, _, err = winnow_heads("convert", "unnamed.json", "-o", "a.safetensors")
    assert code == 1
    assert "give the kind, r, er or r2" in flat(err)
    assert not Path("a.safetensors").exists()
    code, _, _ = winnow_heads("convert", "unnamed.json", "-o", "a.safetensors", "--kind", "er")
    assert code == 0
    assert HeadScores.load("a.safetensors").method == "headkv-er"


def test_convert_one_cokv_task(winnow_heads):
    files = ("cc_llama3_lcc_2.json", "cc_llama3_lcc_3.json")
    code, _, err = winnow_heads("convert", *files, "-o", "lcc.safetensors")
    assert code == 0, err
    assert HeadScores.load("lcc.safetensors") == read_scores(files)


def test_convert_takes_a_plain_dump_with_the_number_of_kv_heads(winnow_heads):
    content = json.loads(Path("cc_llama3_lcc_3.json").read_text())
    Path("cc_lcc_3.json").write_text(
        json.dumps({name: value for name, value in content.items() if name not in ("n_players", "layers", "kv_heads")})
    )
    code, _, err = winnow_heads("convert", "cc_lcc_3.json", "-o", "a.safetensors")
    assert code == 1
    assert "give the KV heads of the model (--kv-heads N" in flat(err)
    code, _, err = winnow_heads("convert", "cc_lcc_3.json", "-o", "a.safetensors", "--kv-heads", "2")
    assert code == 0, err
    assert HeadScores.load("a.safetensors").values.equal(read_scores("cc_llama3_lcc_3.json").values)


def test_convert_averages_tasks_only_when_asked(winnow_heads):
    files = ("cc_llama3_lcc_2.json", "cc_llama3_lcc_3.json", "cc_llama3_trec_2.json", "cc_llama3_trec_3.json")
    code, _, err = winnow_heads("convert", *files, "-o", "mean.safetensors")
    assert code == 2
    assert "these are 2 tables" in flat(err)
    assert "--mean" in err
    code, _, err = winnow_heads("convert", *files, "-o", "mean.safetensors", "--mean")
    assert code == 0, err
    scores = HeadScores.load("mean.safetensors")
    assert scores.values.tolist() == HeadScores.mean([read_scores(files[:2]), read_scores(files[2:])]).values.tolist()
    assert scores.notes.startswith("mean of 2 tables; task lcc;")


def test_an_average_takes_no_table_twice(winnow_heads):
    Path("cc_llama3_qasper_3.json").write_text(Path("cc_llama3_lcc_3.json").read_text())
    code, _, err = winnow_heads(
        "convert", "cc_llama3_lcc_3.json", "cc_llama3_qasper_3.json", "-o", "a.safetensors", "--mean"
    )
    assert code == 1
    assert "hold the same scores" in flat(err)


def test_tables_of_different_methods_have_no_mean(winnow_heads):
    code, _, err = winnow_heads("convert", R2, R, "-o", "a.safetensors", "--mean")
    assert code == 1
    assert "of one model and method" in flat(err)


def test_the_british_spelling_of_an_option_is_understood(winnow_heads):
    code, _, err = winnow_heads("convert", R2, "-o", "a.safetensors", "--licence", "MIT")
    assert code == 0, err
    assert HeadScores.load("a.safetensors").license == "MIT"
    assert "licence" not in winnow_heads("convert", "--help")[1]


def test_an_option_counts_for_the_tables_that_it_is_for(winnow_heads):
    code, out, err = winnow_heads("show", "unnamed.json", "cc_llama3_lcc_3.json", "--kind", "er", "--halves", "first")
    assert code == 0, err
    assert "headkv-er" in out
    assert "first half only" in out
