"""Models whose heads share one latent per token: exact with room for everything, else as dense attention, masked."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    DynamicCache,
)
from transformers.masking_utils import sdpa_mask

import winnow
from support.families import COMMON, LATENT, build, prompt, sharpen
from support.oracle import full_layers, masked_logits, oracle_attention
from winnow import CacheError, MethodError, ModelError
from winnow.cache.hybrid import token_bytes
from winnow.composition.method import Method
from winnow.errors import HeadScoresError
from winnow.estimate.shape import table_shape
from winnow.view import LayerView

HEADS, LATENT_DIM, ROTATED_DIM = 4, 32, 8
PROMPT, STEPS = 40, 6
TOLERANCE = {"kimi_linear": 1e-4, "youtu": 5e-5}
"""Linear layers are computed by another formula when stepping than over a whole sequence. Youtu has larger weights."""

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
]


@pytest.fixture(scope="module", params=LATENT)
def family(request):
    model = build(request.param)
    model.family = request.param
    model.set_attn_implementation("winnow")
    return model


@pytest.fixture(scope="module")
def model():
    made = build("deepseek_v3", num_hidden_layers=2)
    made.set_attn_implementation("winnow")
    return made


def fed(model, ids, cache, chunks, mask=None, positions=None):
    """Logits [R, Q, V] of the last chunk and of all after the first."""
    logits, seen = [], 0
    with torch.no_grad():
        for chunk in chunks:
            part = slice(seen, seen + chunk)
            options = {} if mask is None else {"attention_mask": mask[:, : seen + chunk]}
            options |= {} if positions is None else {"position_ids": positions[:, part]}
            logits.append(model(ids[:, part], past_key_values=cache, **options).logits)
            seen += chunk
    return torch.cat([logits[0][:, -1:], *logits[1:]], dim=1)


def kept_by_heads(cache, row: int = 0):
    """Layer -> kept positions of every head, which are the same; None for layers that are not compressed."""
    full = set(full_layers_of(cache))
    return lambda layer: cache.kept(layer, row) * HEADS if layer in full else None


def full_layers_of(cache):
    return [index for index, layer in enumerate(cache.layers) if layer in cache.compressed_layers()]


def test_room_for_everything_changes_nothing(family):
    ids = prompt(rows=2, length=PROMPT + STEPS)
    chunks = [PROMPT] + [1] * STEPS
    with oracle_attention(family):
        expected = fed(family, ids, DynamicCache(config=family.config), chunks)
    family.set_attn_implementation("winnow")
    for method in (winnow.method("full"), winnow.method("aperturekv", budget=PROMPT, window=4)):
        given_logits = fed(family, ids, winnow.CompressedCache(family, method), chunks)
        torch.testing.assert_close(given_logits, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("by", ["sum", "max", "rank"])
def test_a_small_budget_is_dense_attention_with_evicted_tokens_masked(family, by):
    ids = prompt(length=PROMPT + STEPS)
    cache = winnow.CompressedCache(family, winnow.method(f"adakv(window=3)+union(by={by})", budget=9))
    logits = fed(family, ids, cache, [PROMPT] + [1] * STEPS)
    assert cache.stats().slots == [[9]] * len(full_layers(family))
    expected = masked_logits(family, ids, PROMPT, kept_by_heads(cache))[:, PROMPT - 1 :]
    tolerance = TOLERANCE.get(family.family, 1e-5)
    torch.testing.assert_close(logits, expected, atol=tolerance, rtol=tolerance)
    unmasked = masked_logits(family, ids, PROMPT, lambda layer: None)[:, PROMPT - 1 :]
    assert (logits - unmasked).abs().max() > 100 * tolerance


def test_latents_are_counted_once(family):
    tokens = winnow.CompressedCache(family, winnow.method("full"))
    fed(family, prompt(length=PROMPT), tokens, [PROMPT])
    layers = len(full_layers(family))
    stats = tokens.stats()
    assert stats.bytes["keys"] + stats.bytes["values"] == layers * PROMPT * (LATENT_DIM + ROTATED_DIM) * 4
    stock = DynamicCache(config=family.config)
    with torch.no_grad(), oracle_attention(family):
        family(prompt(length=PROMPT), past_key_values=stock)
    family.set_attn_implementation("winnow")
    held = sum(stock.layers[i].keys.nbytes + stock.layers[i].values.nbytes for i in full_layers(family))
    assert stats.full_bytes - stats.other_bytes == held


def test_a_padded_batch_comes_back_from_a_file(family, tmp_path):
    ids, mask = prompt(rows=2, length=PROMPT), torch.ones(2, PROMPT, dtype=torch.int64)
    mask[1, :13] = 0
    context = winnow.compress(family, ids, winnow.method("snapkv(window=3)+bits(8)", budget=9), attention_mask=mask)
    loaded = winnow.load_context(context.save(tmp_path / "context"), family)
    assert loaded.stats() == context.stats()
    new, seen = prompt(rows=2, length=3, seed=5), torch.cat([mask, torch.ones(2, 3, dtype=torch.int64)], dim=1)
    with torch.no_grad():
        saved, back = (
            family(new, past_key_values=each.cache(), attention_mask=seen).logits for each in (context, loaded)
        )
    assert torch.equal(saved, back)


def test_latents_of_the_text_part_of_an_image_text_model():
    tower = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**COMMON, **LATENT["deepseek_v3"], "model_type": "deepseek_v3"}
    config = AutoConfig.for_model("kimi_k25", text_config=text, vision_config=tower, image_token_id=96)
    torch.manual_seed(0)
    model = sharpen(AutoModelForImageTextToText.from_config(config))
    ids = prompt(length=PROMPT + 2).clamp(max=95)
    with torch.no_grad(), oracle_attention(model):
        expected = model(ids, use_cache=False).logits[:, PROMPT - 1 :]
    model.set_attn_implementation("winnow")
    cache = winnow.CompressedCache(model, winnow.method("snapkv(window=4)", budget=PROMPT))
    torch.testing.assert_close(fed(model, ids, cache, [PROMPT, 1, 1]), expected, atol=1e-5, rtol=1e-5)
    assert cache.stats().slots == [[PROMPT]] * 3


METHODS = [
    "random",
    "streamingllm",
    "snapkv",
    "h2o",
    "tova",
    "knorm",
    "keydiff",
    "pyramidkv",
    "adakv",
    "criticalkv",
    "kvec",
    "rkv",
    "defensivekv",
    "aperturekv",
    "aperturekv+union(by=max)",
    "criticalkv+raba+union(by=rank)",
]
SMALL = {"window": 4, "sinks": 2, "recent": 3, "wide_window": 6}


def small(name: str, budget) -> Method:
    offered = {p.name: p for record in winnow.methods() if record.name == name.split("+")[0] for p in record.parameters}
    given = {key: value for key, value in SMALL.items() if key in offered and isinstance(offered[key].default, int)}
    return winnow.method(name, budget, **given)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=3),
    st.sampled_from(METHODS),
    st.integers(10, 40) | st.sampled_from(["40%", "100%"]),
    st.none() | st.integers(1, 30),
    st.booleans(),
)
def test_rows_decode_as_dense_attention_over_what_they_kept(model, lengths, name, budget, chunk, at_once):
    longest, steps = max(lengths), 3
    rows = [prompt(length=n + steps, seed=i) for i, n in enumerate(lengths)]
    ids = torch.zeros(len(rows), longest + steps, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, longest + steps - row.shape[1] :], mask[i, longest + steps - row.shape[1] :] = row[0], 1
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    cache = winnow.CompressedCache(model, small(name, budget), prompt_length=longest)
    step = min(chunk or longest, longest)
    chunks = [step] * (longest // step) + [longest % step] * (longest % step > 0)
    last = fed(model, ids, cache, chunks + ([steps] if at_once else [1] * steps), mask, positions)[:, -steps:]
    for i, (row, n) in enumerate(zip(rows, lengths, strict=True)):
        expected = masked_logits(model, row, n, kept_by_heads(cache, i))[0, n:]
        torch.testing.assert_close(last[i], expected, atol=1e-5, rtol=1e-5)
    model.set_attn_implementation("winnow")


# --- which tokens ---------------------------------------------------------------------------------------------------


@contextmanager
def captured(model):
    """Queries, keys and values of all heads, layer by layer, in float64, from the model's own forward pass."""
    seen = []

    def attention(module, query, key, value, mask, scaling, **kwargs):
        seen.append((query[0].double(), key[0].double(), value[0].double(), scaling))
        logits = (query @ key.mT * scaling).masked_fill(~mask, -torch.inf)
        return (logits.softmax(-1) @ value).transpose(1, 2).contiguous(), None

    AttentionInterface.register("test-latent-capture", attention)
    AttentionMaskInterface.register(
        "test-latent-capture", lambda *a, **k: sdpa_mask(*a, **{**k, "allow_is_causal_skip": False})
    )
    model.set_attn_implementation("test-latent-capture")
    yield seen
    model.set_attn_implementation("winnow")


def test_tova_keeps_what_the_heads_attend_to_together(model):
    """TOVA gives all heads the mean attention of the last token, so that the union is its best tokens."""
    ids = prompt(length=30)
    context = winnow.compress(model, ids, winnow.method("tova", budget=7))
    with torch.no_grad(), captured(model) as layers:
        model(ids, use_cache=False)
    for number, (query, key, _, scaling) in enumerate(layers):
        paid = torch.zeros(30, dtype=torch.float64)
        for head in range(HEADS):
            logits = torch.tensor([float(query[head, -1] @ k) * scaling for k in key[head]], dtype=torch.float64)
            paid += logits.softmax(0) / HEADS
        (kept,) = context.kept(number)
        assert kept.tolist() == sorted(paid.topk(7).indices.tolist())


@pytest.mark.parametrize("by", ["sum", "max"])
def test_snapkv_keeps_what_the_heads_need_together(model, by):
    window, budget = 4, 10
    ids = prompt(length=34, seed=3)
    name = f"snapkv(window={window}, kernel=1)+union(by={by})"
    context = winnow.compress(model, ids, winnow.method(name, budget=budget))
    with torch.no_grad(), captured(model) as layers:
        model(ids, use_cache=False)
    for number, (query, key, _, scaling) in enumerate(layers):
        votes = torch.zeros(HEADS, 30, dtype=torch.float64)
        for head in range(HEADS):
            for last in range(window):
                place = 30 + last
                logits = torch.stack([query[head, place] @ key[head, t] * scaling for t in range(place + 1)])
                votes[head] += logits.softmax(0)[:30] / window
        masses = votes - votes.amin(1, keepdim=True)
        masses /= masses.sum(1, keepdim=True)
        need = masses.sum(0) if by == "sum" else masses.amax(0)
        expected = sorted([*need.topk(budget - window).indices.tolist(), 30, 31, 32, 33])
        assert context.kept(number)[0].tolist() == expected


class Spy:
    """An observer that remembers what it was shown."""

    queries = 0

    def __init__(self):
        self.views: list[LayerView] = []

    def see(self, view, prefix):
        self.views.append(view)


def test_a_scorer_sees_the_heads_and_a_store_the_latents(model):
    spy = Spy()
    ids = prompt(length=20)
    context = winnow.compress(model, ids, winnow.method("full"), observer=spy)
    with torch.no_grad(), captured(model) as layers:
        model(ids, use_cache=False)
    for view, (_, key, value, _) in zip(spy.views, layers, strict=True):
        torch.testing.assert_close(view.keys.double(), key, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(view.values.double(), value, atol=1e-5, rtol=1e-5)
        assert view.stored.keys.shape == (1, 20, LATENT_DIM)
        assert view.stored.values.shape == (1, 20, ROTATED_DIM)
    assert context.stats().slots == [[20], [20]]


# --- packed, budgets, forks, folds ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bits", "most", "bytes_of_a_slot"), [(8, 0.05, 32 + 8 + 8), (4, 0.6, 16 + 4 + 8)])
def test_packed_latents_take_fewer_bytes_and_answer_alike(model, bits, most, bytes_of_a_slot):
    ids = prompt(length=PROMPT + STEPS)
    dense, packed = (
        winnow.CompressedCache(model, winnow.method(f"snapkv(window=4){part}", budget=12))
        for part in ("", f"+bits({bits})")
    )
    chunks = [PROMPT] + [1] * STEPS
    exact, rounded = fed(model, ids, dense, chunks), fed(model, ids, packed, chunks)
    assert [packed.kept(layer)[0].tolist() for layer in (0, 1)] == [dense.kept(layer)[0].tolist() for layer in (0, 1)]
    assert 0 < float((rounded - exact).abs().max() / exact.abs().max()) < most
    held = packed.stats().bytes
    assert held["keys"] + held["values"] + held["scales"] == 2 * 12 * bytes_of_a_slot


def test_a_budget_in_bytes_is_spent_on_latents(model):
    for part in ("", "+bits(8)"):
        context = winnow.compress(model, prompt(length=60), winnow.method(f"adakv(window=4){part}", budget="6KiB"))
        stats = context.stats()
        # A token is 40 numbers, of 4 bytes or of 1 with two scales, and a position; packed latents of 32 numbers have
        # a mean and a spread of each in both layers.
        slot, once = (40 + 8 + 4, 2 * 2 * 32 * 4) if part else (164, 0)
        assert 6144 - 3 * slot <= stats.prefix_bytes <= 6144
        assert abs(sum(sum(layer) for layer in stats.slots) - min(120, (6144 - once) // slot)) <= 2


def test_pyramid_gives_layers_their_share(model):
    context = winnow.compress(model, prompt(length=60), winnow.method("pyramidkv(window=4)", budget=12))
    (first,), (second,) = context.stats().slots
    assert first + second == 24
    assert first > second


@pytest.mark.parametrize("part", ["", "+bits(8)"])
def test_many_tokens_at_a_time_give_what_single_ones_do(model, part):
    """Many attend to expanded keys and values, single ones to latents."""
    ids, mask = prompt(rows=2, length=PROMPT + 30), torch.ones(2, PROMPT + 30, dtype=torch.int64)
    mask[1, :13] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    context = winnow.compress(
        model, ids[:, :PROMPT], winnow.method(f"snapkv(window=4){part}", budget=12), attention_mask=mask[:, :PROMPT]
    )
    single, many = context.cache(), context.cache()
    with torch.no_grad():
        later = {"attention_mask": mask, "position_ids": positions[:, PROMPT:]}
        whole = model(ids[:, PROMPT:], past_key_values=many, **later).logits
        parts = [
            model(
                ids[:, i : i + 1],
                past_key_values=single,
                attention_mask=mask[:, : i + 1],
                position_ids=positions[:, i : i + 1],
            ).logits
            for i in range(PROMPT, PROMPT + 30)
        ]
    assert many.layers[0].plan(many.layers[0].spec)._projection.tokens_to_expand_for < 30
    torch.testing.assert_close(whole, torch.cat(parts, dim=1), atol=1e-5, rtol=1e-5)


def test_beams_share_their_prefix(model):
    ids = prompt(length=PROMPT)
    options = {"max_new_tokens": 8, "num_beams": 3, "do_sample": False}
    with oracle_attention(model):
        expected = model.generate(ids, **options)
    model.set_attn_implementation("winnow")
    cache = winnow.CompressedCache(model, winnow.method("snapkv(window=4)", budget=PROMPT))
    assert torch.equal(model.generate(ids, past_key_values=cache, **options), expected)
    assert cache.stats().rows == 3
    assert cache.stats().slots == [[PROMPT]] * 2


def test_forks_go_on_by_themselves(model):
    ids = prompt(length=PROMPT + 4)
    context = winnow.compress(model, ids[:, :PROMPT], winnow.method("snapkv(window=4)", budget=9))
    first, second = context.cache(), context.cache()
    alone = fed(model, ids[:, PROMPT:], first, [1] * 4)
    fed(model, prompt(length=7, seed=9), second, [4, 3])
    assert torch.equal(fed(model, ids[:, PROMPT:], context.cache(), [1] * 4), alone)
    joined = winnow.CompressedCache.joined([context.cache(), context.cache()])
    positions = torch.arange(PROMPT, PROMPT + 4)[None].expand(2, -1)
    both = fed(model, ids[:, PROMPT:].expand(2, -1), joined, [1] * 4, positions=positions)
    torch.testing.assert_close(both, alone.expand(2, -1, -1))


def test_assisted_decoding_takes_candidates_back(model):
    ids = prompt(length=PROMPT)
    method = winnow.method("snapkv(window=4)", budget=9)
    options = {"max_new_tokens": 10, "do_sample": False}
    plain = model.generate(ids, past_key_values=winnow.CompressedCache(model, method), **options)
    cache = winnow.CompressedCache(model, method)
    assert torch.equal(model.generate(ids, past_key_values=cache, prompt_lookup_num_tokens=3, **options), plain)


def test_one_prefill_serves_several_methods(model):
    ids = prompt(length=PROMPT)
    waiting = winnow.CompressedCache(model, winnow.method("full"), defer=True)
    fed(model, ids, waiting, [PROMPT])
    for name in ("snapkv(window=4)", "aperturekv(window=4)+bits(8)"):
        method = winnow.method(name, budget=9)
        forked, alone = waiting.compressed_by(method), winnow.compress(model, ids, method)
        assert [forked.kept(layer)[0].tolist() for layer in (0, 1)] == [alone.kept(i)[0].tolist() for i in (0, 1)]
    with pytest.raises(MethodError, match="latents"):
        waiting.compressed_by(winnow.method("snapkv+spark", budget=9))


@contextmanager
def seeing(model, visible):
    """Within, query i of layer l attends to the tokens visible[l][i] only."""

    def attention(module, query, key, value, mask, scaling, **kwargs):
        allowed = torch.zeros(query.shape[2], key.shape[2], dtype=torch.bool)
        for i, tokens in enumerate(visible[module.layer_idx]):
            allowed[i, tokens] = True
        logits = (query.double() @ key.double().mT * scaling).masked_fill(~allowed, -torch.inf)
        return (logits.softmax(-1) @ value.double()).to(query.dtype).transpose(1, 2).contiguous(), None

    AttentionInterface.register("test-latent-seeing", attention)
    AttentionMaskInterface.register("test-latent-seeing", sdpa_mask)
    model.set_attn_implementation("test-latent-seeing")
    yield
    model.set_attn_implementation("winnow")


@pytest.mark.parametrize(
    ("method", "options", "chunks"),
    [
        ("snapkv(window=3, kernel=1)", {"fold_every": 4}, [20] + [1] * 14),
        ("adakv(window=3)+union(by=rank)", {"fold_every": 4}, [20, 1, 1, 5, 1, 1, 1, 1, 1]),
        ("tova", {"fold_turns": 2}, [20, 6, 1, 1, 5, 1]),
        ("knorm", {"fold_every": 3, "fold_turns": 2}, [5, 1, 4, 1, 1, 1, 1]),
        ("kvec(window=3, wide_window=4)", {"fold_every": 4}, [20] + [1] * 14),
    ],
    ids=str,
)
def test_folds_evict_tokens_for_all_heads(model, method, options, chunks):
    budget = 8
    cache = winnow.CompressedCache(model, winnow.method(method, budget=budget), **options)
    ids = prompt(length=sum(chunks), seed=11)
    visible: list[list[list[int]]] = [[], []]
    logits, seen = [], 0
    with torch.no_grad():
        for chunk in chunks:
            before = [_held(cache, layer, seen) for layer in (0, 1)] if seen else [[], []]
            logits.append(model(ids[:, seen : seen + chunk], past_key_values=cache).logits)
            for layer in (0, 1):
                # What was folded before these tokens came, they did not see; a turn that is folded itself saw all.
                own_turn = cache.layers[layer].prefixes[0].length > seen
                held = before[layer] if own_turn else _held(cache, layer, seen)
                for new in range(chunk):
                    visible[layer].append([*held, *range(seen, seen + new + 1)])
            seen += chunk
    assert all(len(cache.kept(layer)[0]) <= budget for layer in (0, 1))
    assert cache.layers[0].prefixes[0].length > chunks[0]
    with torch.no_grad(), seeing(model, visible):
        expected = model(ids, use_cache=False).logits
    torch.testing.assert_close(torch.cat(logits, dim=1), expected, atol=1e-5, rtol=1e-5)


def test_packed_latents_fold(model):
    """StreamingLLM keeps the same tokens whatever packing did to them."""
    ids = prompt(length=36, seed=12)
    dense, packed = (
        winnow.CompressedCache(model, winnow.method(f"streamingllm(sinks=2){part}", budget=8), fold_every=4)
        for part in ("", "+bits(8)")
    )
    exact, rounded = (fed(model, ids, cache, [20] + [1] * 16) for cache in (dense, packed))
    assert dense.kept(1)[0].tolist() == packed.kept(1)[0].tolist()
    assert float((rounded - exact).abs().max() / exact.abs().max()) < 0.05


def _held(cache, layer: int, seen: int) -> list[int]:
    own = cache.layers[layer]
    return [*own.kept(0)[0].tolist(), *range(own.prefixes[0].length, seen)]


# --- dtypes and refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    model = build("deepseek_v2", num_hidden_layers=2).to(dtype)
    ids = prompt(length=PROMPT + 2)
    with torch.no_grad(), oracle_attention(model):
        expected = model(ids, use_cache=False).logits[:, PROMPT - 1 :]
    model.set_attn_implementation("winnow")
    logits = fed(model, ids, winnow.CompressedCache(model, winnow.method("full")), [PROMPT, 1, 1])
    tolerance = 0.05 if dtype is torch.bfloat16 else 0.01
    assert float((logits - expected).abs().max() / expected.abs().max()) < tolerance


@pytest.mark.parametrize(
    ("method", "says"),
    [
        ("snapkv+spark", "prunes channels"),
        ("snapkv+think", "prunes channels"),
        ("expectedattention", "rotation"),
        ("triattention", "rotation"),
        ("kvzip", "a second time"),
        ("snapkv+global", "among layers after the last layer"),
        ("snapkv+cake", "among layers after the last layer"),
    ],
)
def test_methods_that_need_heads_of_their_own_are_refused(model, method, says):
    with pytest.raises(MethodError, match=says):
        winnow.CompressedCache(model, winnow.method(method, budget=40))


@pytest.mark.parametrize("name", ["snapkv+headkv", "snapkv+cokv", "snapkv+masking", "duoattention", "adakv+bits(8, 4)"])
def test_head_scores_are_refused(model, name):
    from support.ready import ready

    with pytest.raises(MethodError, match="share"):
        winnow.CompressedCache(model, ready(name, 64, (2, HEADS)))


def test_diagnoses_measure_the_heads(model):
    ids = prompt(length=PROMPT)
    found = winnow.diagnose(model, ids, winnow.method("adakv(window=4)", budget=10))
    for number, layer in enumerate(found.layers):
        assert len(layer.kept) == len(layer.mass) == HEADS
        assert layer.iou.eq(1).all()
        assert layer.rtd == pytest.approx(10 / PROMPT)
        assert layer.error > 0, number
    with pytest.raises(CacheError, match="leave bits out"):
        winnow.diagnose(model, ids, winnow.method("adakv(window=4)+bits(8)", budget=10))


def test_tables_of_head_scores_are_not_made(model):
    with pytest.raises(HeadScoresError, match="share one latent"):
        table_shape(model)
    assert token_bytes(model) == 2 * (LATENT_DIM + ROTATED_DIM) * 4


def test_h2o_does_not_fold_latents(model):
    with pytest.raises(MethodError, match="sums up attention for every head"):
        winnow.CompressedCache(model, winnow.method("h2o", budget=9), fold_every=4)


def test_a_union_is_for_heads_that_share_latents():
    model = build("llama", num_hidden_layers=2)
    model.set_attn_implementation("winnow")
    with pytest.raises(MethodError, match="leave union out"):
        winnow.CompressedCache(model, winnow.method("snapkv+union", budget=64))


def test_sparse_attention_with_an_index_is_refused():
    config = AutoConfig.for_model("deepseek_v32", **{**COMMON, **LATENT["deepseek_v3"]}, index_topk=8)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    model.set_attn_implementation("winnow")
    with pytest.raises(ModelError, match="index of its own"):
        winnow.CompressedCache(model, winnow.method("snapkv", budget=64))


class Adapted(nn.Linear):
    """A projection with something beside its weight."""

    def forward(self, inputs):
        return super().forward(inputs) + 0.1 * inputs.sum(-1, keepdim=True)


def test_an_adapter_beside_the_weight_is_refused():
    model = build("deepseek_v3", num_hidden_layers=2)
    model.set_attn_implementation("winnow")
    attention = model.model.layers[1].self_attn
    plain, attention.kv_b_proj = attention.kv_b_proj, Adapted(LATENT_DIM, HEADS * 28, bias=False)
    attention.kv_b_proj.weight = plain.weight
    cache = winnow.CompressedCache(model, winnow.method("snapkv(window=4)", budget=9))
    fed(model, prompt(length=20), cache, [20])
    with pytest.raises(ModelError, match="adapter"):
        fed(model, prompt(length=1), cache, [1])


def test_autocast_is_named(model):
    cache = winnow.CompressedCache(model, "full")
    with torch.autocast("cpu", torch.bfloat16):
        fed(model, prompt(length=20), cache, [20])
        with pytest.raises(ModelError, match=r"within torch\.autocast; .*without autocast"):
            fed(model, prompt(length=1), cache, [1])


def test_an_interrupted_pass_can_be_repeated(model, monkeypatch):
    ids = prompt(length=PROMPT + 1)
    cache, same = (winnow.CompressedCache(model, winnow.method("snapkv(window=4)", budget=9)) for _ in range(2))
    fed(model, ids[:, :PROMPT], cache, [PROMPT])
    fed(model, ids[:, :PROMPT], same, [PROMPT])
    attention = type(model.model.layers[0].self_attn)
    expand, calls = attention.expand_kv, []

    def failing(self, *args):
        calls.append(self)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return expand(self, *args)

    monkeypatch.setattr(attention, "expand_kv", failing)
    with pytest.raises(KeyboardInterrupt):
        fed(model, ids[:, PROMPT:], cache, [1])
    monkeypatch.undo()
    with pytest.raises(CacheError):
        cache.get_seq_length()
    cache.take_back_unfinished()
    assert torch.equal(fed(model, ids[:, PROMPT:], cache, [1]), fed(model, ids[:, PROMPT:], same, [1]))
