"""Packed stores under every kind of eviction, through a model: what is held, what is answered, what is refused."""

from __future__ import annotations

import copy
import gc
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

import winnow
from support.families import build, prompt
from support.oracle import explicit_attention
from support.ready import random_scores, ready
from winnow import CompressedCache, Method
from winnow.errors import BudgetError, CacheError, MethodError
from winnow.kernels import PackedBlock, parts_of

pytestmark = pytest.mark.usefixtures("one_thread")

N, BUDGET, NEW = 150, 60, 5
LAYERS, HEADS, GROUP, DIM = 3, 2, 2, 32
GREEDY: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}


@pytest.fixture(scope="module")
def model() -> Any:
    return made()


@cache
def made(dtype: torch.dtype = torch.float32) -> Any:
    """A Llama whose heads are wide enough for masks, scales and constants of heads to be the smaller part."""
    found = build("llama", head_dim=DIM).to(dtype)
    found.set_attn_implementation("winnow")
    found.generation_config.pad_token_id = 0
    return found


def composed(name: str, budget: int | str | None = BUDGET) -> Method:
    """A method by name; its head scores, where it needs some, are random ones."""
    return ready(name, budget, (LAYERS, HEADS)) if by_scores(name) else winnow.method(name, budget)


def by_scores(name: str) -> bool:
    """Whether heads differ by their scores."""
    return any(part in name for part in ("headkv", "cokv", "bits(8, 4)", "mixedbits"))


def filled(model: Any, ids: Tensor, method: Method, **options: Any) -> CompressedCache:
    past = CompressedCache(model, method)
    with torch.no_grad():
        model(ids, past_key_values=past, **options)
    return past


def fed(model: Any, past: CompressedCache, tokens: Tensor) -> Tensor:
    """Logits [R, T, V] of tokens fed one by one after what a cache holds."""
    with torch.no_grad():
        steps = [model(step, past_key_values=past).logits for step in tokens.split(1, dim=1)]
    return torch.cat(steps, dim=1)


# --- the oracle ------------------------------------------------------------------------------------------------------


def dense_logits(model: Any, past: CompressedCache, ids: Tensor, length: int) -> Tensor:
    """Logits [1, T, V] of the tokens behind a prompt of `length`: plain attention over recovered keys and values.

    The prompt's slots come from `recover`, head by head, in dense tensors [H, N, D] in which all other positions are
    masked; the new tokens' keys and values come from the model's own projections.
    """
    dense = [recovered(past, layer) for layer in range(LAYERS)]
    new = ids[:, length:]
    count = new.shape[1]

    def attend(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, scaling: float, **kwargs: Any
    ) -> tuple[Tensor, None]:
        keys, values, kept = dense[module.layer_idx]
        seen = torch.cat(
            [kept[:, None].expand(-1, count, -1), torch.ones(HEADS, count, count, dtype=torch.bool).tril()], -1
        )
        mask = seen.repeat_interleave(GROUP, 0)[None]
        whole = (torch.cat([keys, key[0]], 1)[None], torch.cat([values, value[0]], 1)[None])
        return explicit_attention(module, query, *whole, mask, scaling)

    positions = torch.arange(length, length + count)[None]
    with torch.no_grad(), attending(model, attend):
        return model(new, position_ids=positions, use_cache=False).logits


@contextmanager
def attending(model: Any, function: Any) -> Iterator[None]:
    """Within, a model attends with a function of the test's own."""
    AttentionInterface.register("test-recovered", function)
    AttentionMaskInterface.register("test-recovered", sdpa_mask)
    model.set_attn_implementation("test-recovered")
    try:
        yield
    finally:
        model.set_attn_implementation("winnow")


def recovered(past: CompressedCache, layer: int, row: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Keys [H, N, D], values [H, N, D] and which of them are kept [H, N], of one layer of one sequence."""
    prefix = past.compressed_layers()[layer].prefixes[row]
    assert prefix is not None
    keys, values = torch.zeros(HEADS, prefix.length, DIM), torch.zeros(HEADS, prefix.length, DIM)
    kept = torch.zeros(HEADS, prefix.length, dtype=torch.bool)
    found_keys, found_values = prefix.block.recover(torch.arange(len(prefix.positions)))
    for head, (start, stop) in enumerate(pairwise(prefix.block.offsets.tolist())):
        where = prefix.positions[start:stop].long()
        keys[head, where], values[head, where] = found_keys[start:stop], found_values[start:stop]
        kept[head, where] = True
    return keys, values, kept


@contextmanager
def new_objects() -> Iterator[None]:
    """Within, `gc.get_objects` tells of objects made since only, which is quick."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def alive() -> int:
    """Bytes of every tensor that Python can reach."""
    gc.collect()
    tensors = [each for each in gc.get_objects() if isinstance(each, Tensor)]
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}
    return sum(storages.values())


def prefix_bytes(past: CompressedCache) -> int:
    """What the compressed prompt takes, without the tail."""
    return sum(sum(each.bytes().values()) for layer in past.compressed_layers() for each in layer.held_prefixes())


# --- any eviction with any store -------------------------------------------------------------------------------------

EVICTIONS = ["snapkv", "adakv", "pyramidkv", "h2o", "tova", "knorm", "streamingllm", "headkv-r2", "kvec", "aperturekv"]
CHANNELS = ["spark(0.5)", "spark(0.8, values=0.5)", "spark-p(0.9)", "spark-g(4)", "think(0.5)"]
BITS = ["", "bits(8)", "bits(4)", "bits(8, 4)", "mixedbits(5)"]


def combinations() -> list[str]:
    """Every store at least once, evictions taking turns."""
    stores = ["+".join(filter(None, (c, b))) for c in ("", *CHANNELS) for b in BITS]
    stores += ["kivi(4)", "kivi(2)", "think(0.5)+kivi(4)", "think(0.3)+kivi(8)", "spark(0.5, recovery=gaussian)"]
    stores += ["spark(0.5, sign=query, norm=mean)+bits(2)", "spark(0.3, recent=pruned)", "spark-g(5, sign=none)"]
    evictions = [EVICTIONS[index % len(EVICTIONS)] for index in range(len(stores))]
    return [f"{eviction}+{store}" for eviction, store in zip(evictions, stores, strict=True) if store]


@pytest.mark.parametrize("name", combinations())
def test_logits_are_those_of_dense_attention_over_what_is_recovered(model: Any, name: str) -> None:
    method = composed(name)
    ids = prompt(length=N + NEW)
    past = filled(model, ids[:, :N], method)
    assert any(isinstance(part, PackedBlock) for layer in past.compressed_layers() for part in parts(layer))
    expected = dense_logits(model, past, ids, N)
    torch.testing.assert_close(fed(model, past, ids[:, N:]), expected, atol=1e-4, rtol=1e-4)


def parts(layer: Any) -> Sequence[Any]:
    """The blocks of one format that a layer's only prefix consists of."""
    (prefix,) = layer.distinct_prefixes()
    return parts_of(prefix.block)


@pytest.mark.parametrize("name", combinations()[::2])
def test_held_bytes_are_the_bytes_of_the_tensors_alive(model: Any, name: str) -> None:
    method, ids = composed(name), prompt(length=N)
    filled(model, ids, method)  # tables of bits and places are made once
    with new_objects():
        past = filled(model, ids, method)
        stats = past.stats()
        assert alive() == stats.held_bytes == sum(stats.bytes.values())


@pytest.mark.parametrize("name", combinations())
def test_generation_and_names(model: Any, name: str) -> None:
    method, ids = composed(name), prompt(length=N)
    out = model.generate(ids, past_key_values=CompressedCache(model, method), **GREEDY)
    assert out.shape == (1, N + 6)
    past = filled(model, ids, method)
    fork = fed(model, past, out[:, N:-1]).argmax(-1)
    assert torch.equal(fork[:, :-1], out[:, N + 1 : -1])
    if not by_scores(name):
        again = winnow.method(str(method))
        assert again == method
        assert hash(again) == hash(method)


@pytest.mark.parametrize("budget", [BUDGET, "30%"])
@pytest.mark.parametrize("eviction", ["snapkv", "ada-pyramidkv", "criticalkv", "kvec"])
def test_tokens_and_percent_keep_the_same_slots_whatever_the_store(
    model: Any, eviction: str, budget: int | str
) -> None:
    ids = prompt(length=N)
    dense = filled(model, ids, composed(eviction, budget))
    for store in ("spark(0.8)", "spark-p(0.9)+bits(8)", "think+kivi", "bits(8, 4)"):
        packed = filled(model, ids, composed(f"{eviction}+{store}", budget))
        for layer in range(LAYERS):
            assert [k.tolist() for k in packed.kept(layer)] == [k.tolist() for k in dense.kept(layer)]


def test_order_of_parts_does_not_matter() -> None:
    one, other = winnow.method("adakv+bits(4)+spark(0.8)", 60), winnow.method("adakv+spark(0.8)+bits(4)", 60)
    assert one == other
    assert str(one) == "adakv+spark(ratio=0.8)+bits(high=4) @ 60"


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.bfloat16, 0.06), (torch.float16, 0.02)], ids=["bfloat16", "float16"]
)
@pytest.mark.parametrize("store", ["spark(0.5)", "spark-p(0.9)+bits(8)", "think+kivi(4)", "bits(8, 4)"])
def test_half_precision(store: str, dtype: torch.dtype, tolerance: float) -> None:
    model, ids = made(dtype), prompt(length=N + NEW)
    past = filled(model, ids[:, :N], composed(f"snapkv+{store}"))
    with torch.no_grad():
        found = model(ids[:, N:], past_key_values=past).logits.float()
    single = made()
    before = {name: each.clone() for name, each in single.state_dict().items()}
    single.load_state_dict(model.state_dict())
    try:
        expected = dense_logits(single, past, ids, N)
    finally:
        single.load_state_dict(before)
    assert (found - expected).abs().max() < tolerance * expected.abs().max()


# --- nothing evicted -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", ["bits(8)", "spark(0.5)", "kivi(4)", "think+bits(4)", "spark-p(0.99)"])
def test_full_caches_can_be_packed(model: Any, store: str) -> None:
    method = winnow.method(f"full+{store}")
    assert method.full
    ids = prompt(length=N + NEW)
    past = filled(model, ids[:, :N], method)
    assert [[len(head) for head in past.kept(layer)] for layer in range(LAYERS)] == [[N] * HEADS] * LAYERS
    expected = dense_logits(model, past, ids, N)
    torch.testing.assert_close(fed(model, past, ids[:, N:]), expected, atol=1e-4, rtol=1e-4)
    assert prefix_bytes(past) < prefix_bytes(filled(model, ids[:, :N], winnow.method("full")))


def test_eight_bits_are_close_to_the_model_itself(model: Any) -> None:
    ids = prompt(length=N + NEW)
    exact = fed(model, filled(model, ids[:, :N], winnow.method("full")), ids[:, N:])
    for store, limit in (("bits(8)", 0.03), ("kivi(8)", 0.03), ("spark(0.1)", 0.15), ("spark-p(0.999)", 0.03)):
        found = fed(model, filled(model, ids[:, :N], winnow.method(f"full+{store}")), ids[:, N:])
        assert (found - exact).abs().max() < limit * exact.abs().max()


# --- bytes -----------------------------------------------------------------------------------------------------------

LONG = 2000
BYTES = [
    "snapkv+spark(0.5)",
    "adakv+spark(0.8, values=0.5)",
    "pyramidkv+spark-p(0.9)",
    "snapkv+spark-g(4)",
    "adakv+spark-g(5)+bits(8)",
    "ada-pyramidkv+think(0.5)",
    "snapkv+bits(8)",
    "adakv+bits(4)",
    "headkv-r2+bits(8, 4)",
    "ada-pyramidkv+mixedbits(5)",
    "snapkv+kivi(4)",
    "adakv+think(0.5)+kivi(2)",
    "adakv+spark(0.5)+bits(8, 4)",
    "knorm+spark-p(0.99)+bits(4)",
    "streamingllm+spark(0.5, recent=pruned)",
    "cokv+spark(0.3)+bits(2)",
    "snapkv",
]


@pytest.fixture(scope="module")
def prefilled(model: Any) -> CompressedCache:
    """A long prompt that waits for any method to compress it."""
    past = CompressedCache(model, winnow.method("full"))
    past.activate_past_recording()
    with torch.no_grad():
        model(long_prompt(), past_key_values=past, logits_to_keep=1)
    return past


def long_prompt() -> Tensor:
    return prompt(length=LONG)


@pytest.mark.parametrize(
    ("name", "share"),
    list(product(BYTES, [0.3, 0.6])),
)
def test_a_budget_in_bytes_is_filled_and_never_exceeded(prefilled: CompressedCache, name: str, share: float) -> None:
    """At least 99 % of it, all counted; slots here take up to 0.3 % of a layer's part."""
    everything = prefix_bytes(prefilled.compressed_by(composed(name, "100%")))
    amount = int(share * everything)
    past = prefilled.compressed_by(composed(name, f"{amount}B"))
    held = prefix_bytes(past)
    assert held == sum(past.stats().bytes.values()) - tail_bytes(past)
    assert 0.99 * amount <= held <= amount


def tail_bytes(past: CompressedCache) -> int:
    return sum(sum(layer.tail.bytes().values()) for layer in past.compressed_layers() if layer.tail is not None)


@pytest.mark.parametrize("name", BYTES)
def test_a_budget_that_is_too_small_names_one_that_works(model: Any, name: str) -> None:
    ids = prompt(length=N)
    with pytest.raises(BudgetError, match=r"use at least \d+ bytes") as error:
        filled(model, ids, composed(name, "100B"))
    (needed,) = re.findall(r"use at least (\d+) bytes", str(error.value))
    past = filled(model, ids, composed(name, f"{needed}B"))
    assert prefix_bytes(past) <= int(needed)
    with pytest.raises(BudgetError, match="use"):
        filled(model, ids, composed(name, f"{int(needed) // 2}B"))


@pytest.mark.parametrize(
    "name", ["pyramidkv+spark-p(0.999, recent=pruned)", "adakv+spark-g(4, share=0.99, recent=pruned)"]
)
def test_slots_that_are_larger_than_expected_do_not_make_the_named_bytes_too_few(model: Any, name: str) -> None:
    test_a_budget_that_is_too_small_names_one_that_works(model, name)


@pytest.mark.parametrize("name", BYTES)
def test_budgets_in_which_nearly_everything_fits(model: Any, name: str) -> None:
    """Where the expected size of all slots is below the budget, their real size decides."""
    ids = prompt(length=N)
    everything = prefix_bytes(filled(model, ids, composed(name, "100%")))
    for share in (0.8, 0.9, 0.97, 0.995, 1.0):
        amount = int(share * everything)
        assert prefix_bytes(filled(model, ids, composed(name, f"{amount}B"))) <= amount
    past = filled(model, ids, composed(name, f"{everything * 1.02:.0f}B"))
    assert 0.95 * everything <= prefix_bytes(past) <= everything


def test_bytes_go_further_the_more_is_left_out(prefilled: CompressedCache) -> None:
    amount = f"{LAYERS * HEADS * LONG * (2 * DIM * 4 + 4) // 5}B"
    slots = [
        sum(map(sum, prefilled.compressed_by(composed(name, amount)).stats().slots))
        for name in ("snapkv", "snapkv+spark(0.5)", "snapkv+spark(0.8)", "snapkv+bits(8)", "snapkv+bits(4)")
    ]
    assert slots == sorted(slots)
    assert slots[-1] > 4 * slots[0]


# --- refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("snapkv+spark+kivi", "combine spark with bits, or kivi with think"),
        ("snapkv+kivi(2)+spark-p", "combine spark with bits, or kivi with think"),
        ("snapkv+spark+think", "do the same work .choose channels.; keep one of them"),
        ("snapkv+spark+spark-g", "spark and spark-g do the same work"),
        ("snapkv+bits+kivi", "bits and kivi do the same work .choose bits.; keep one of them"),
        ("snapkv+bits(4, 8)", r"low must be below high.*bits\(8, 4\)"),
        ("snapkv+bits(8, 8)", "low must be below high"),
        ("snapkv+bits(16)", "leave it out, or give fewer bits"),
        ("snapkv+bits(3)", "high must be one of 16, 8, 4, 2"),
        ("snapkv+kivi(16)", "width must be one of 8, 4, 2"),
        ("snapkv+mixedbits(1)", "mean must be a number between 2 and 16"),
        ("snapkv+spark(0)", r"spark\(0.8\) drops 80 %"),
        ("snapkv+spark(1)", r"spark\(0.8\) drops 80 %"),
        ("snapkv+spark(0.5, 1)", "values below 1"),
        ("snapkv+spark(1.5)", "ratio must be a number between 0 and 1"),
        ("snapkv+spark(sign=true)", "sign must be one of 'stored', 'query', 'none'"),
        ("snapkv+spark(queries=0)", "queries must be a whole number of at least 1"),
        ("snapkv+spark-g(3)", "groups must be one of 4, 5"),
        ("snapkv+spark-p(1.1)", "share must be a number between 0 and 1"),
        ("snapkv+think(1)", "0.5 drops half of the channels"),
        ("spark", r"'snapkv\+spark'"),
        ("full+ada", "only spark, think, bits … follow it"),
        ("full+ada+spark", "only spark, think, bits … follow it"),
    ],
)
def test_what_is_refused_and_what_to_do_instead(name: str, message: str) -> None:
    with pytest.raises(MethodError, match=message):
        winnow.method(name, None if name.startswith("full") else 60)


@pytest.mark.parametrize("name", ["snapkv+bits(8, 4)", "snapkv+mixedbits(5)", "full+bits(8, 4)"])
def test_bits_by_head_need_scores_of_the_model(model: Any, name: str) -> None:
    chosen = winnow.method(name, None if name.startswith("full") else 60)
    with pytest.raises(MethodError, match=r"need head scores.*scores=FILE.*winnow heads cokv.*bits\(4\)"):
        CompressedCache(model, chosen)
    with pytest.raises(MethodError, match=r"3 layers with 4 KV heads, the model 3 compressed layers with 2 KV heads"):
        CompressedCache(model, ready(name, 60 if "snapkv" in name else None, (3, 4)))
    CompressedCache(model, ready(name, 60 if "snapkv" in name else None, (LAYERS, HEADS)))


def test_scores_can_be_a_file(model: Any, tmp_path: Path) -> None:
    method = composed("snapkv+bits(8, 4)")
    path = random_scores((LAYERS, HEADS)).save(tmp_path / "scores.safetensors")
    named = winnow.method(f"snapkv+bits(8, 4, scores={path})", BUDGET)
    ids = prompt(length=N)
    past, other = filled(model, ids, method), filled(model, ids, named)
    assert past.stats().bytes == other.stats().bytes
    assert torch.equal(fed(model, past, prompt(length=1)), fed(model, other, prompt(length=1)))


def test_scores_can_be_a_path(tmp_path: Path) -> None:
    path = random_scores((LAYERS, HEADS)).save(tmp_path / "scores.safetensors")
    options: dict[str, Any] = {"scores": path}
    assert winnow.method("snapkv+headkv", BUDGET, **options)
    assert winnow.method("snapkv+bits(8, 4)", BUDGET, **options)


def test_coalitions_are_formed_of_dense_slots_only(model: Any) -> None:
    masks = torch.ones(2, LAYERS, HEADS, dtype=torch.bool)
    for store in ("spark", "think+kivi", "bits(4)"):
        past = filled(model, prompt(length=N), winnow.method(f"full+{store}"))
        with pytest.raises(CacheError, match="leave spark, think, bits and kivi out"):
            past.coalitions(masks, 8)


# --- files, rows, turns ----------------------------------------------------------------------------------------------

FEW = [
    "snapkv+spark(0.5)+bits(8)",
    "adakv+think(0.5)+kivi(4)",
    "snapkv+bits(8, 4)",
    "pyramidkv+spark-p(0.9)",
    "knorm+spark(0.8, values=0.5, recovery=gaussian)",
    "adakv+spark-g(5)+bits(8, 4)",
]


@pytest.mark.parametrize("name", FEW)
def test_a_file_answers_as_the_context_it_was_saved_from(model: Any, name: str, tmp_path: Path) -> None:
    context = winnow.compress(model, prompt(length=N), composed(name))
    path = context.save(tmp_path / "context.safetensors")
    loaded = winnow.load_context(path, model)
    assert loaded.stats() == context.stats()
    assert str(loaded.method) == str(context.method)
    for layer in range(LAYERS):
        assert [k.tolist() for k in loaded.kept(layer)] == [k.tolist() for k in context.kept(layer)]
    for seed in (9, 10):
        ids = torch.cat([context.input_ids, prompt(length=5, seed=seed)], 1)
        one = model.generate(ids, past_key_values=context.cache(), **GREEDY)
        assert torch.equal(model.generate(ids, past_key_values=loaded.cache(), **GREEDY), one)
        new = ids[:, N:]
        assert torch.equal(fed(model, loaded.cache(), new), fed(model, context.cache(), new))
    if not by_scores(name):
        assert loaded.save(tmp_path / "again").read_bytes() == path.read_bytes()
    overhead = path.stat().st_size - sum(context.stats().bytes.values())
    assert overhead < 40_000, "a file holds what memory does, and a header"


@pytest.mark.parametrize("name", FEW)
def test_chunked_prefill_holds_the_same(model: Any, name: str) -> None:
    ids = prompt(length=N)
    one, parts = winnow.compress(model, ids, composed(name)), winnow.compress(model, ids, composed(name), chunk_size=41)
    assert one.stats().bytes == parts.stats().bytes
    new = prompt(length=3, seed=2)
    torch.testing.assert_close(fed(model, one.cache(), new), fed(model, parts.cache(), new), atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("name", FEW)
def test_forks_share_the_prefix_and_nothing_else(model: Any, name: str) -> None:
    past = filled(model, prompt(length=N), composed(name))
    fork = copy.deepcopy(past)
    assert fork.compressed_layers()[1].prefixes[0] is past.compressed_layers()[1].prefixes[0]
    one, two = prompt(length=4, seed=8), prompt(length=4, seed=9)
    first, second = fed(model, past, one), fed(model, fork, two)
    again = filled(model, prompt(length=N), composed(name))
    assert torch.equal(fed(model, copy.deepcopy(again), one), first)
    assert torch.equal(fed(model, copy.deepcopy(again), two), second)


@pytest.mark.parametrize("name", FEW)
def test_beams_read_one_prefix_as_single_rows_do(model: Any, name: str) -> None:
    method, ids = composed(name), prompt(length=N)
    past = CompressedCache(model, method)
    out = model.generate(
        ids,
        past_key_values=past,
        num_beams=3,
        num_return_sequences=3,
        return_dict_in_generate=True,
        output_scores=True,
        length_penalty=0.0,
        **GREEDY,
    )
    assert len({id(prefix) for prefix in past.compressed_layers()[0].prefixes}) == 1
    alone = filled(model, ids, method)
    assert past.stats().slots == alone.stats().slots
    with torch.no_grad():
        start = model(ids, use_cache=False).logits[:, -1:]
    for sequence, score in zip(out.sequences, out.sequences_scores, strict=True):
        logits = torch.cat([start, fed(model, copy.deepcopy(alone), sequence[None, N:-1])], 1).log_softmax(-1)
        total = logits[0].gather(-1, sequence[N:, None]).sum()
        torch.testing.assert_close(score, total, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("name", FEW)
def test_left_padded_rows_are_packed_and_answer_as_if_alone(model: Any, name: str) -> None:
    method, lengths = composed(name), [N, 97, 33, 5]
    rows = [prompt(length=length, seed=length) for length in lengths]
    ids, mask = torch.zeros(len(rows), N, dtype=torch.int64), torch.zeros(len(rows), N, dtype=torch.int64)
    for index, row in enumerate(rows):
        ids[index, N - row.shape[1] :], mask[index, N - row.shape[1] :] = row[0], 1
    past = CompressedCache(model, method)
    together = model.generate(ids, attention_mask=mask, past_key_values=past, **GREEDY)
    held = 0
    for index, row in enumerate(rows):
        alone = CompressedCache(model, method)
        expected = model.generate(row, past_key_values=alone, **GREEDY)
        assert torch.equal(together[index, N:], expected[0, row.shape[1] :])
        for layer in range(LAYERS):
            found = [k.tolist() for k in past.kept(layer, row=index)]
            assert found == [k.tolist() for k in alone.kept(layer)]
        held += prefix_bytes(alone)
    assert prefix_bytes(past) == held


@pytest.mark.parametrize("name", FEW)
def test_a_second_turn_is_attended_to_as_token_by_token(model: Any, name: str) -> None:
    """Several tokens at once, and then generation, over a packed cache that already holds later tokens."""
    method, ids = composed(name), prompt(length=N + 12)
    at_once, singly = filled(model, ids[:, :N], method), filled(model, ids[:, :N], method)
    with torch.no_grad():
        first = model(ids[:, N : N + 5], past_key_values=at_once).logits
        second = model(ids[:, N + 5 :], past_key_values=at_once).logits
    expected = fed(model, singly, ids[:, N:])
    torch.testing.assert_close(torch.cat([first, second], 1), expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(expected, dense_logits(model, at_once, ids, N), atol=1e-4, rtol=1e-4)
    turn = torch.cat([ids, prompt(length=3, seed=4)], 1)
    out = model.generate(turn, past_key_values=at_once, **GREEDY)
    assert torch.equal(out, model.generate(turn, past_key_values=singly, **GREEDY))


@pytest.mark.parametrize("length", [1, 3, 8, 9, 40])
@pytest.mark.parametrize("name", FEW)
def test_short_prompts(model: Any, name: str, length: int) -> None:
    """Prompts no longer than the window, which may stay dense as a whole."""
    ids = prompt(length=length + 2)
    past = filled(model, ids[:, :length], composed(name))
    found = fed(model, past, ids[:, length:])
    torch.testing.assert_close(found, dense_logits(model, past, ids, length), atol=1e-4, rtol=1e-4)
