"""GGUF files against the models that they were made of."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import struct
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from transformers import AutoConfig, AutoTokenizer, GPT2Config, LlamaConfig, Qwen2Config

import winnow
from support.gguf_files import END, START, TEMPLATE, TEXT_END, TOKENS, tiny_model, write_gguf
from support.plain_layers import load_plain
from winnow.bundled import MODEL_PATH
from winnow.cache.disk import ContextFile
from winnow.commands.model_names import model_name
from winnow.errors import ModelError
from winnow.models import dtypes, gguf_strings, load_model, open_model, open_skeleton, weights_of
from winnow.models import gguf as gguf_module
from winnow.models.gguf import read_gguf
from winnow.models.gguf_strings import lists_in_one_pass
from winnow.models.source import _tokenizer_options

pytest.importorskip("gguf")
pytest.importorskip("accelerate")
pytestmark = pytest.mark.usefixtures("one_thread")

TEXT = "the thin man who lives there is here "
RUN = ("--document", "text.txt", "--question", "who?", "--max-new-tokens", "3", "--dtype", "float32")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A GGUF file beside the tokenizer of another model, and a text."""
    folder = tmp_path_factory.mktemp("gguf")
    model = tiny_model()
    write_gguf(folder / "Tiny.Q8_0.gguf", model)
    model.save_pretrained(folder / "dense")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODEL_PATH / name, folder)
    (folder / "text.txt").write_text(TEXT * 4, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def file(folder):
    return folder / "Tiny.Q8_0.gguf"


@pytest.fixture(scope="module")
def source(file):
    return open_model(file)


@pytest.fixture(scope="module")
def model(source):
    return load_model(source, "cpu", "float32")


def test_the_logits_are_those_of_the_unpacked_weights(folder, source, model):
    from transformers import AutoModelForCausalLM

    dense = AutoModelForCausalLM.from_pretrained(folder / "dense", dtype=torch.float32)
    ids = source.tokenizer(TEXT, return_tensors="pt").input_ids
    with torch.no_grad():
        expected, found = dense(ids).logits, model(ids).logits
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert expected.std() > 0.01


def test_the_tokenizer_is_the_files_own(source):
    ids = source.tokenizer(f"{START}the{END}").input_ids
    assert [TOKENS[each] for each in ids] == [START, "t", "he", END]
    assert source.tokenizer.chat_template == TEMPLATE
    assert source.context == 512


def test_a_file_of_any_name_is_known_by_its_content(file, tmp_path):
    blob = tmp_path / "sha256-0123"
    shutil.copy(file, blob)
    assert load_model(open_model(blob), "cpu", "float32").num_parameters() > 10_000


def test_the_skeleton_has_the_same_shapes(source, model):
    skeleton = open_skeleton(source, "cpu", "float32")
    assert {name: each.shape for name, each in skeleton.named_parameters()} == {
        name: each.shape for name, each in model.named_parameters()
    }
    assert all(each.is_meta for each in skeleton.parameters())


@pytest.mark.parametrize(("eos", "template"), [(END, TEMPLATE), (TEXT_END, TEMPLATE), (TEXT_END, None)])
def test_answers_end_where_a_turn_does(tmp_path, eos, template):
    """Some files name the end of all text only, which chat models never write."""
    file = write_gguf(tmp_path / "m.gguf", tiny_model(), eos=eos, template=template)
    ends = load_model(open_model(file), "cpu", "float32").generation_config.eos_token_id
    found = {TOKENS[each] for each in ends}
    assert (END in found) == (template is not None or eos == END)
    # Older releases of transformers add the family's own.
    assert {eos} <= found <= {END, TEXT_END}


def test_a_context_of_such_a_model_is_loaded_again(source, model, file, tmp_path):
    ids = source.tokenizer(TEXT * 4, return_tensors="pt").input_ids
    saved = winnow.compress(model, ids, "snapkv @ 20%").save(tmp_path / "c", tokenizer=source.tokenizer)
    facts = ContextFile.open(saved)
    assert facts.model.name == str(file)
    again = load_model(open_model(facts.model.name), "cpu", "float32")
    assert winnow.load_context(saved, again, tokenizer=source.tokenizer).stats().tokens_seen == ids.shape[1]


def test_weights_are_unpacked_without_advice_for_packed_ones(source, caplog):
    """Also where this transformers has kernels for the blocks of the file."""
    logger = logging.getLogger("transformers.quantizers.quantizer_gguf")
    logger.addHandler(caplog.handler)
    model = load_model(source, "cpu", "bfloat16")
    logger.removeHandler(caplog.handler)
    assert caplog.messages == []
    assert not getattr(model, "is_quantized", False)


def test_its_weights_may_have_few_bits_again(source):
    again = load_model(source, "cpu", weights="int8")
    assert (weights_of(again), weights_of(load_model(source, "cpu"))) == ("int8", None)


def test_names_in_results_are_those_of_the_file(source, model):
    assert model_name(source) == "Tiny.Q8_0"
    assert model.config.name_or_path == source.config.name_or_path == source.name


def test_commands_take_a_file(winnow_run, file):
    code, out, err = winnow_run("run", "--model", file.name, *RUN, "--compare", "full")
    assert code == 0, err
    assert "model: Tiny.Q8_0, float32 on cpu" in out
    assert "quantizing" not in err
    code, _, err = winnow_run(
        "compress", "text.txt", "--model", file.name, "-o", "c", "--dtype", "float32", "--budget", "20%"
    )
    assert code == 0, err
    code, out, err = winnow_run("ask", "c", "who?", "--json", "--max-new-tokens", "3")
    assert code == 0, err
    assert json.loads(out)["model"] == "Tiny.Q8_0"


def cut(path):
    path.write_bytes(path.read_bytes()[:-20_000])


def cut_short(path):
    path.write_bytes(path.read_bytes()[:200])


def no_gguf(path):
    path.write_bytes(b"PK" + path.read_bytes())


DAMAGES = {
    cut: "Cannot load the configuration of .* The file is damaged",
    cut_short: "Cannot load the configuration of .* The file is damaged",
    no_gguf: "is a file, and no GGUF file; give one, the directory",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_told_in_a_line(file, tmp_path, damage):
    copy = tmp_path / "m.gguf"
    shutil.copy(file, copy)
    damage(copy)
    with pytest.raises(ModelError, match=DAMAGES[damage]) as caught:
        open_model(copy)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("seed", range(12))
def test_changed_headers_are_told_in_a_line(file, tmp_path, seed):
    copy, chance = tmp_path / "m.gguf", random.Random(seed)
    content = bytearray(file.read_bytes())
    place = chance.randrange(4, content.index(b"blk.1.ffn_norm"))
    content[place : place + 8] = chance.randbytes(8)
    copy.write_bytes(content)
    told = ""
    try:
        open_model(copy)  # the change may not matter
    except ModelError as problem:
        told = str(problem)
    assert "\n" not in told
    assert "winnow-" not in told.replace("winnow-kv", "")


def test_an_architecture_that_is_not_read_is_told_in_a_line(tmp_path):
    with pytest.raises(ModelError, match=r"architecture wavenet.*or give the model's directory") as caught:
        open_model(write_gguf(tmp_path / "m.gguf", tiny_model(), architecture="wavenet"))
    assert "\n" not in str(caught.value)


def test_a_part_of_a_file_is_told(file, tmp_path):
    part = tmp_path / "m-00002-of-00003.gguf"
    shutil.copy(file, part)
    with pytest.raises(ModelError, match="part 2 of 3; join them"):
        open_model(part)


def test_missing_packages_name_the_extra(file, monkeypatch):
    monkeypatch.setattr(gguf_module, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"need gguf and accelerate: pip install 'winnow-kv\[gguf\]'"):
        open_model(file)


def test_a_directory_of_gguf_files_says_which_to_give(folder):
    with pytest.raises(ModelError, match=r"no config.json; .* or its GGUF file .*Tiny.Q8_0.gguf"):
        open_model(folder)


def test_a_directory_that_may_not_be_read_is_told(folder, monkeypatch):
    # Permissions stop no superuser, as whom a suite may run.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ModelError, match="cannot be read: you have no permission"):
        open_model(folder)


def test_a_file_that_is_not_there():
    with pytest.raises(ModelError, match=r"no file or directory none.gguf"):
        open_model("none.gguf")


@pytest.mark.parametrize(("instructions", "expected"), [(True, torch.bfloat16), (False, torch.float32)])
def test_blocks_become_what_the_cpu_computes_with(source, monkeypatch, instructions, expected):
    monkeypatch.setattr(dtypes, "cpu_has_bfloat16", lambda: instructions)
    monkeypatch.setattr(dtypes, "multiplies_many", lambda _: False)
    assert load_model(source, "cpu").dtype == open_skeleton(source, "cpu").dtype == expected


@pytest.mark.parametrize("device_map", ["auto", {"": "cpu"}])
def test_a_device_map_loads_a_file_as_well(source, device_map):
    plain, spread = load_plain(source, "float32"), load_model(source, device_map=device_map, dtype="float32")
    ids = source.tokenizer(TEXT, return_tensors="pt").input_ids
    with torch.no_grad():
        assert torch.equal(spread(ids).logits, plain(ids).logits)
    assert Path(source.name).exists()


def test_the_tokenizer_is_the_one_that_transformers_makes_without_help(file):
    """Without help it reads the configuration anew."""
    plain = read_gguf(str(file), "tokenizer", lambda arguments: AutoTokenizer.from_pretrained(**arguments))
    with patch.object(AutoConfig, "for_model", side_effect=AutoConfig.for_model) as read:
        found = open_model(file).tokenizer
    assert not read.called
    assert type(found) is type(plain)
    assert found.backend_tokenizer.to_str() == plain.backend_tokenizer.to_str()
    assert (found.chat_template, found.special_tokens_map) == (plain.chat_template, plain.special_tokens_map)
    kept = [{name: str(fact) for name, fact in each.init_kwargs.items()} for each in (found, plain)]
    for facts in kept:
        facts.pop("name_or_path")
    assert kept[0] == kept[1]


def test_a_kind_without_a_tokenizer_of_its_own_is_left_to_transformers():
    assert _tokenizer_options(Qwen2Config()) == {"tokenizer_type": "qwen2"}
    assert _tokenizer_options(GPT2Config(model_type="nobody-knows")) == {}
    assert _tokenizer_options(Qwen2Config(tokenizer_class="LlamaTokenizer")) == {}
    assert _tokenizer_options(LlamaConfig()) == {}


def test_lists_are_read_in_one_pass_as_gguf_reads_them(file, tmp_path):
    """All parts, so that nothing can be missing that a reader of fields asks for."""
    import gguf

    path = tmp_path / "lists.gguf"
    writer = gguf.GGUFWriter(path, "qwen2")
    for name, facts in (("b", [True, False]), ("f", [0.5, -2.0]), ("i", [-1, 2, 3]), ("s", ["", "é", "the thin man"])):
        writer.add_array(f"lists.{name}", facts)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    plain = gguf.GGUFReader
    for each in (file, path):
        expected = plain(each)
        with lists_in_one_pass():
            assert gguf.GGUFReader is not plain
            with patch.object(gguf_strings, "_list_at", side_effect=gguf_strings._list_at) as quick:
                found = gguf.GGUFReader(each)
        assert quick.call_count == sum(field.types[0] == gguf.GGUFValueType.ARRAY for field in found.fields.values())
        assert list(found.fields) == list(expected.fields)
        for field, other in zip(found.fields.values(), expected.fields.values(), strict=True):
            assert field[:2] + field[3:] == other[:2] + other[3:]
            assert [(part.dtype, part.tobytes()) for part in field.parts] == [
                (part.dtype, part.tobytes()) for part in other.parts
            ]
    assert gguf.GGUFReader is plain


def test_values_are_those_that_transformers_reads_itself(file):
    from transformers import modeling_gguf_pytorch_utils as unpacking

    plain = unpacking._gguf_parse_value
    expected = unpacking.load_gguf_checkpoint(file)
    with lists_in_one_pass():
        assert unpacking._gguf_parse_value is not plain
        found = unpacking.load_gguf_checkpoint(file)
    assert found == expected
    assert found["tokenizer"]["tokens"] == TOKENS
    assert unpacking._gguf_parse_value is plain


@pytest.mark.parametrize("other", [lambda value, types: None, lambda value: None])
def test_a_transformers_that_reads_values_otherwise_reads_by_itself(other, monkeypatch):
    from transformers import modeling_gguf_pytorch_utils as unpacking

    other.__module__ = unpacking._gguf_parse_value.__module__
    monkeypatch.setattr(unpacking, "_gguf_parse_value", other)
    with lists_in_one_pass():
        assert unpacking._gguf_parse_value is other


def test_a_release_of_gguf_that_reads_otherwise_reads_by_itself(monkeypatch):
    import gguf

    class Other(gguf.GGUFReader):
        def _get_field_parts(self, orig_offs, raw_type):
            return super()._get_field_parts(orig_offs, raw_type)[:3]

    class Renamed:
        pass

    for each in (Other, Renamed):
        each.__module__ = "gguf.gguf_reader"
        monkeypatch.setattr(gguf, "GGUFReader", each)
        with lists_in_one_pass():
            assert gguf.GGUFReader is each


def test_a_list_that_ends_early_is_refused(file, tmp_path):
    """Also one that would have more numbers than memory holds."""
    whole = file.read_bytes()
    types = whole.index(b"tokenizer.ggml.token_type") + len(b"tokenizer.ggml.token_type")
    damaged = tmp_path / "m.gguf"
    for count in (1 << 20, 1 << 60):
        damaged.write_bytes(whole[: types + 8] + struct.pack("<Q", count) + whole[types + 16 : types + 500])
        with pytest.raises(ModelError, match="damaged"):
            open_model(damaged)
