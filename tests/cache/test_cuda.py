"""Caches of models on a GPU: exact with every budget, in batches, folding, on the way to a file and back, captured."""

from __future__ import annotations

import copy
import gc
from unittest import mock

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM
from transformers.cache_utils import DynamicCache

import winnow
from support.alive import alive, alive_since
from winnow.cache import overlap
from winnow.cache.cuda_graph import CudaGraph
from winnow.cache.tail import Tail
from winnow.kernels import AttentionSpec, DecodePlan, DenseBlock
from winnow.kernels.formats.serialize import on_device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here"),
]
STEPS = 12
PROMPT = 96
CLOSE = {torch.float32: 2e-4, torch.bfloat16: 6e-2, torch.float16: 8e-3}
"""Absolute, on logits of a random model; matrix products of the two devices are summed in different orders."""


def made(dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 8, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=512, num_hidden_layers=3, head_dim=64, max_position_embeddings=1024, **sizes)
    model = LlamaForCausalLM(config).eval().to(dtype)
    model.set_attn_implementation("winnow")
    return model


def prompts(rows: int = 1) -> torch.Tensor:
    return torch.randint(0, 512, (rows, PROMPT), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def decoded(model: LlamaForCausalLM, cache, ids: torch.Tensor, forced: torch.Tensor | None = None) -> torch.Tensor:
    """Logits [STEPS, R, V] on the CPU of greedy steps after a prompt, or of tokens [STEPS, R] that are given."""
    ids, found = ids.to(model.device), []
    for step in range(STEPS):
        found.append(model(ids, past_key_values=cache, use_cache=True).logits[:, -1].float().cpu())
        chosen = found[-1].argmax(-1) if forced is None else forced[step]
        ids = chosen[:, None].to(model.device)
    return torch.stack(found)


@pytest.mark.parametrize("dtype", list(CLOSE), ids=str)
def test_a_full_budget_is_as_the_stock_cache(dtype: torch.dtype) -> None:
    model = made(dtype).cuda()
    found = decoded(model, winnow.CompressedCache(model, "full"), prompts(2))
    model.set_attn_implementation("sdpa")
    expected = decoded(model, DynamicCache(config=model.config), prompts(2), found.argmax(-1))
    torch.testing.assert_close(found, expected, rtol=0, atol=CLOSE[dtype])


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(
    "options",
    [
        {"method": "snapkv @ 24"},
        {"method": "adakv @ 24"},
        {"method": "aperturekv @ 24"},
        {"method": "kvec @ 24"},
        {"method": "critical-adakv @ 24"},
        {"method": "defensivekv @ 24"},
        {"method": "snapkv(pool_first=queries) @ 24"},
        {"method": "snapkv+cake @ 24"},
        {"method": "expectedattention+ada @ 24"},
        {"method": "adakv+spark(0.5) @ 24"},
        {"method": "adakv+bits(8) @ 24"},
        {"method": "adakv+bits(8, scales=signed) @ 24"},
        {"method": "adakv+bits(8, group=64, round=queries) @ 24"},
        {"method": "adakv+kivi(4) @ 64"},
        {"method": "snapkv+think(0.5) @ 24"},
        {"method": "adakv @ 24", "fold_every": 4},
        {"method": "kvec(window=4, wide_window=8) @ 24", "fold_every": 8},
        {"method": "h2o+bits(8) @ 24", "fold_every": 4},
        {"method": "full+bits(8)", "fold_every": 4},
        {"method": "full+spark(0.5)", "fold_every": 4},
        {"method": "knorm+kivi(4, residual=8) @ 64"},
    ],
    ids=lambda options: " ".join(str(each) for each in options.values()),
)
def test_caches_are_as_those_of_the_same_model_on_the_cpu(options: dict[str, object], rows: int) -> None:
    there, here = made().cuda(), made()
    cache, other = winnow.CompressedCache(there, **options), winnow.CompressedCache(here, **options)
    expected = decoded(here, other, prompts(rows))
    found = decoded(there, cache, prompts(rows), expected.argmax(-1))
    assert cache.stats().slots == other.stats().slots
    # Rounded numbers may fall to the other side where products differ in their last bits.
    tolerance = 2e-2 if "bits" in str(options["method"]) or "kivi" in str(options["method"]) else 5e-3
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("padding", [0, 20])
@pytest.mark.parametrize(
    "method", ["full", "snapkv+cake @ 24", "kvec @ 24", "adakv+spark(0.5) @ 24", "h2o+bits(8) @ 24"]
)
def test_layers_compressed_beside_the_next_are_as_those_compressed_at_once(method: str, padding: int) -> None:
    """Again and again, and each cache goes while its last step is under way, so that memory finds other use."""
    model = made().cuda()
    mask = torch.ones(2, PROMPT, dtype=torch.int64, device="cuda")
    mask[0, :padding] = 0

    def steps(ids: torch.Tensor) -> list[torch.Tensor]:
        cache = winnow.CompressedCache(model, method)
        given = [ids.cuda(), *(ids[:, -1:].cuda() for _ in range(2))]
        masks = [mask, *(torch.cat([mask, mask[:, -step:]], dim=1) for step in (1, 2))]
        with torch.no_grad():
            return [
                model(each, attention_mask=valid, past_key_values=cache).logits[:, -1]
                for each, valid in zip(given, masks, strict=True)
            ]

    drawn = [torch.randint(0, 512, (2, PROMPT), generator=torch.Generator().manual_seed(seed)) for seed in range(8)]
    beside = [steps(ids) for ids in drawn]
    with mock.patch.object(overlap, "LARGEST", 0):
        at_once = [steps(ids) for ids in drawn]
    for found, expected in zip(beside, at_once, strict=True):
        assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("method", ["adakv @ 24", "h2o+bits(8) @ 24", "kvec+spark(0.5) @ 24"])
def test_a_default_device_changes_nothing(method: str) -> None:
    """One that is the GPU: tensors of the host are made there by name."""
    model = made().cuda()
    ids = prompts(2)
    expected = decoded(model, winnow.CompressedCache(model, method), ids)
    torch.set_default_device("cuda")
    try:
        found = decoded(model, winnow.CompressedCache(model, method), ids)
    finally:
        torch.set_default_device(None)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_generation_with_padding_and_beams() -> None:
    there, here = made().cuda(), made()
    ids, mask = prompts(2), torch.ones(2, PROMPT, dtype=torch.int64)
    mask[0, :20] = 0
    given = {"max_new_tokens": 8, "do_sample": False, "num_beams": 2, "pad_token_id": 0}
    found, expected = (
        model.generate(
            ids.to(model.device),
            attention_mask=mask.to(model.device),
            past_key_values=winnow.CompressedCache(model, "adakv @ 24"),
            **given,
        ).cpu()
        for model in (there, here)
    )
    assert torch.equal(found, expected)


@pytest.mark.parametrize("method", ["adakv @ 24", "adakv+bits(4) @ 24", "adakv+spark(0.5) @ 24"])
def test_contexts_travel_between_devices(method: str, tmp_path) -> None:
    there, here = made().cuda(), made()
    forced = torch.randint(0, 512, (STEPS, 1), generator=torch.Generator().manual_seed(2))
    context = winnow.compress(there, prompts().cuda(), method)
    on_gpu = decoded(there, context.cache(), prompts()[:, :1], forced)
    context.save(tmp_path / "from-gpu")
    opened = winnow.load_context(tmp_path / "from-gpu", here)
    torch.testing.assert_close(decoded(here, opened.cache(), prompts()[:, :1], forced), on_gpu, rtol=0, atol=5e-3)
    opened.save(tmp_path / "from-cpu")
    back = winnow.load_context(tmp_path / "from-cpu", there)
    torch.testing.assert_close(decoded(there, back.cache(), prompts()[:, :1], forced), on_gpu, rtol=0, atol=1e-4)


@pytest.mark.parametrize("method", ["full", "adakv @ 24", "adakv+spark(0.5) @ 24", "adakv+bits(4) @ 24"])
def test_held_bytes_are_the_bytes_of_the_tensors_alive(method: str) -> None:
    """On the GPU and on the host, which has lengths of its own."""
    model = made().cuda()
    decoded(model, winnow.CompressedCache(model, method), prompts(2))  # tables that kernels keep are not a cache's
    before, cache = alive(), winnow.CompressedCache(model, method)
    decoded(model, cache, prompts(2))
    added = alive_since(before)
    stats = cache.stats()
    assert sum(added.values()) == stats.held_bytes == sum(stats.bytes.values())


def test_a_capture_that_fails_leaves_torch_as_it_was() -> None:
    """Its generator draws, and its allocator frees what another stream used."""
    device, numbers = torch.device("cuda"), torch.rand(64, device="cuda")
    with pytest.raises(RuntimeError):
        CudaGraph(lambda: numbers * float(numbers.sum()), device)
    torch.multinomial(numbers, 4)
    torch.cuda.synchronize()
    before, used = torch.cuda.memory_allocated(), torch.zeros(1 << 20, device="cuda")
    used.record_stream(torch.cuda.Stream())
    del used
    torch.cuda.synchronize()
    again = torch.zeros(1, device="cuda")  # the allocator looks at what streams did when it is asked
    assert torch.cuda.memory_allocated() - again.nbytes < before + (1 << 20)
    graph = CudaGraph(lambda: numbers * 2, device)
    graph.replay()
    assert torch.equal(graph.output, numbers * 2)


def test_garbage_that_holds_a_graph_ends_no_capture() -> None:
    """CUDA destroys no graph in a thread that captures, and the garbage of Python goes at any time."""
    device, numbers = torch.device("cuda"), torch.rand(64, device="cuda")
    cycle = {"graph": CudaGraph(lambda: numbers * 2, device)}
    cycle["self"] = cycle
    gc.collect()
    thresholds = gc.get_threshold()

    def work() -> torch.Tensor:
        found = numbers
        for _ in range(50):
            found = found + len([[] for _ in range(8)])
        return found

    del cycle
    gc.set_threshold(1)
    try:
        graph = CudaGraph(work, device)
    finally:
        gc.set_threshold(*thresholds)
    assert gc.isenabled()
    graph.replay()
    torch.testing.assert_close(graph.output, numbers + 400)


def test_a_plan_is_captured_and_replayed_while_its_tail_grows() -> None:
    """Numbers of a step may change between replays, and the tail's length with them; buffers may not."""
    generator = torch.Generator("cuda").manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device="cuda")

    prefix = DenseBlock(random(900, 64), random(900, 64), torch.tensor([0, 800, 900]))
    tail = Tail(random(1, 2, 1, 64), random(1, 2, 1, 64), capacity=32)
    tail.append(random(1, 2, 5, 64), random(1, 2, 5, 64))
    plan = DecodePlan([prefix], tail.segments(), AttentionSpec(0.125))
    query = random(1, 8, 1, 64)
    plan.run(query)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = plan.run(query)
    for _ in range(4):
        assert not tail.append(random(1, 2, 1, 64), random(1, 2, 1, 64))
        query.copy_(random(1, 8, 1, 64))
        graph.replay()
        torch.testing.assert_close(output, plan.run(query), rtol=0, atol=0)


@pytest.mark.parametrize("options", [{}, {"fold_every": 4}], ids=["grows", "folds"])
@pytest.mark.parametrize("method", ["adakv @ 24", "adakv+bits(8) @ 24", "snapkv+spark(0.5) @ 24"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@torch.no_grad()
def test_graphed_steps_are_those_of_the_same_model(dtype: torch.dtype, method: str, options: dict[str, int]) -> None:
    """Dtypes whose arithmetic the interpreter lacks; fp32 is in tests/kernels/gpu."""
    model = made(dtype).cuda()
    cache = winnow.CompressedCache(model, method, **options)
    model(prompts(2).cuda(), past_key_values=cache, use_cache=True)
    ordinary = copy.deepcopy(cache)
    decoder = winnow.GraphedDecoder(model, cache, room=5)
    tokens = torch.randint(0, 512, (STEPS, 2), generator=torch.Generator().manual_seed(2)).cuda()
    for step, each in enumerate(tokens):
        place = torch.full((2, 1), PROMPT + step, device="cuda")
        expected = model(each[:, None], past_key_values=ordinary, use_cache=True, position_ids=place).logits[:, -1]
        torch.testing.assert_close(decoder.step(each), expected, rtol=0, atol=CLOSE[dtype])
    assert cache.stats().slots == ordinary.stats().slots


@torch.no_grad()
def test_steps_of_experts_are_graphed() -> None:
    """In bf16, in which torch's grouped products send nothing to the device."""
    sizes = {"hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = MixtralConfig(vocab_size=512, num_hidden_layers=2, num_local_experts=4, head_dim=64, **sizes)
    torch.manual_seed(0)
    model = MixtralForCausalLM(config).eval().to("cuda", torch.bfloat16)
    model.set_attn_implementation("winnow")
    cache = winnow.CompressedCache(model, "adakv @ 24")
    model(prompts(2).cuda(), past_key_values=cache, use_cache=True)
    ordinary = copy.deepcopy(cache)
    decoder = winnow.GraphedDecoder(model, cache)
    for step in range(4):
        tokens = torch.tensor([[3 + step], [90 - step]], device="cuda")
        place = torch.full((2, 1), PROMPT + step, device="cuda")
        expected = model(tokens, past_key_values=ordinary, use_cache=True, position_ids=place).logits[:, -1]
        torch.testing.assert_close(decoder.step(tokens), expected, rtol=0, atol=CLOSE[torch.bfloat16])


def test_plans_run_on_several_streams() -> None:
    prefix = DenseBlock(torch.randn(4000, 64, device="cuda"), torch.randn(4000, 64, device="cuda"),
                        torch.tensor([0, 3000, 4000]))  # fmt: skip
    tail = Tail(torch.randn(1, 2, 1, 64, device="cuda"), torch.randn(1, 2, 1, 64, device="cuda"))
    plans = [DecodePlan([prefix], tail.segments(), AttentionSpec(0.125)) for _ in range(4)]
    queries = [torch.randn(1, 8, 1, 64, device="cuda") for _ in plans]
    expected = [plan.run(query).clone() for plan, query in zip(plans, queries, strict=True)]
    torch.cuda.synchronize()
    found = []
    for plan, query in zip(plans, queries, strict=True):
        with torch.cuda.stream(torch.cuda.Stream()):
            found.append(plan.run(query))
    torch.cuda.synchronize()
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two GPUs are here")
def test_a_plan_runs_on_the_device_of_its_layer() -> None:
    """Triton launches on the current device, whatever the tensors are on."""
    prefix = DenseBlock(torch.randn(300, 64), torch.randn(300, 64), torch.tensor([0, 200, 300]))
    query, new = torch.randn(1, 8, 1, 64), torch.randn(1, 2, 1, 64)
    found = []
    for device in ("cuda:0", "cuda:1"):
        tail = Tail(new.to(device), new.to(device))
        tail.append(new.to(device), new.to(device))
        found.append(DecodePlan([on_device(prefix, torch.device(device))], tail.segments(), AttentionSpec(0.125)))
    first, second = (plan.run(query.to(f"cuda:{index}")).cpu() for index, plan in enumerate(found))
    torch.testing.assert_close(first, second, rtol=0, atol=0)


@torch.no_grad()
def test_a_decode_step_does_not_wait_for_the_gpu() -> None:
    model = made().cuda()
    cache, token = winnow.CompressedCache(model, "adakv @ 24"), torch.ones(1, 1, dtype=torch.int64, device="cuda")
    model(prompts().cuda(), past_key_values=cache, use_cache=True)
    for _ in range(2):
        model(token, past_key_values=cache, use_cache=True)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(4):
            place = torch.full((1, 1), PROMPT + 2 + step, device="cuda")
            model(token, past_key_values=cache, use_cache=True, position_ids=place)
    finally:
        torch.cuda.set_sync_debug_mode("default")
