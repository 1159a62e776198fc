"""Single tokens of models whose heads share latents: by the compiled kernels, in graphs, and with few bits."""

from __future__ import annotations

import copy
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from support.families import LATENT, build, prompt
from support.graphed import PROMPT, Pair, twins_here
from winnow import CacheError, CompressedCache, GraphedDecoder, step_graphs
from winnow.cache import while_graphed
from winnow.cache.latent import Projection
from winnow.cache.latent_layer import LatentLayer
from winnow.cache.latent_plan import LatentPlan
from winnow.kernels import native
from winnow.kernels.latent import LatentAttention
from winnow.models import carrier, quantize_weights
from winnow.models.cache_argument import with_cache
from winnow.models.carrier import Carrier, plain
from winnow.models.few_rows import read_weights_directly

pytestmark = pytest.mark.usefixtures("one_thread")
FAMILIES = tuple(LATENT)
GRAPHED = tuple(each for each in FAMILIES if each != "longcat_flash")
"""Those whose experts do not ask for numbers."""
METHODS = ("full", "snapkv(window=4) @ 9", "adakv(window=4)+bits(8) @ 9", "full+bits(4)", "full+kivi(4)")


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    made = build("deepseek_v3", num_hidden_layers=2)
    made.set_attn_implementation("winnow")
    return made


def filled(model: PreTrainedModel, method: str = "full", rows: int = 1, **options: int) -> CompressedCache:
    cache = CompressedCache(model, method, **options)
    said(model, cache, prompt(rows, length=PROMPT))
    return cache


def said(model: PreTrainedModel, cache: CompressedCache, ids: Tensor) -> Tensor:
    """Logits [R, V] after tokens [R, N]."""
    with torch.no_grad():
        return model(ids, **with_cache(model, cache)).logits[:, -1]


def plans(cache: CompressedCache) -> list[LatentPlan]:
    found = [layer._plan for layer in cache.layers if isinstance(layer, LatentLayer)]
    assert found
    return found


def exactly(both: Pair, count: int) -> list[bool]:
    """Steps that are held to ordinary ones, to the bit."""
    with mock.patch("support.graphed.CLOSE", 0.0):
        return both.steps(count)


# --- by the kernels -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rows", [1, 3])
def test_tokens_are_as_by_torch(model: PreTrainedModel, method: str, rows: int) -> None:
    cache, other = filled(model, method, rows), filled(model, method, rows)
    for ids in (prompt(rows, length=1), prompt(rows, length=1), prompt(rows, length=5)):
        found = said(model, cache, ids)
        assert all(isinstance(each.kernels, native.NativePlan) for each in plans(cache))
        with mock.patch.object(native, "reads", return_value=False):
            expected = said(model, other, ids)
        assert all(isinstance(each.kernels, LatentAttention) for each in plans(other))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_a_weight_that_moved_is_read_where_it_is(model: PreTrainedModel) -> None:
    model = copy.deepcopy(model)
    cache, expected = filled(model), filled(model)
    for _ in range(3):
        assert torch.equal(said(model, cache, prompt(length=1)), said(model, expected, prompt(length=1)))
    step = cache.layers[0]._step
    linear = model.model.layers[0].self_attn.kv_b_proj
    linear.weight = nn.Parameter(2 * linear.weight.detach())
    expected.layers[0]._plan = expected.layers[0]._step = None
    assert torch.equal(said(model, cache, prompt(length=1)), said(model, expected, prompt(length=1)))
    said(model, cache, prompt(length=1))
    assert cache.layers[0]._step not in (None, step)


def test_tokens_go_the_short_way(model: PreTrainedModel) -> None:
    cache = filled(model)
    said(model, cache, prompt(length=1))
    step = cache.layers[1]._step
    with mock.patch.object(LatentLayer, "append", side_effect=AssertionError("the long way")):
        for _ in range(3):
            said(model, cache, prompt(length=1))
    assert cache.layers[1]._step is step
    assert cache.layers[1].tail.lengths.tolist() == [4]


# --- keys and values that nobody looks at ------------------------------------------------------------------


def expanded(model: PreTrainedModel, cache: CompressedCache, ids: Tensor) -> list[Tensor]:
    """Values that layers hand to attention in a pass."""
    found = []
    module = type(model.model.layers[0].self_attn)
    own = module.expand_kv

    def noting(self: nn.Module, latents: Tensor, rotated: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = own(self, latents, rotated)
        if isinstance(latents, Carrier):
            found.append(plain(values))
        return keys, values

    with mock.patch.object(module, "expand_kv", noting):
        said(model, cache, ids)
    return found


def full_of_nan(inputs: Tensor, outputs: int) -> Tensor:
    return carrier.carried_on(torch.full((*inputs.shape[:-1], outputs), torch.nan), carrier.note_of(inputs))


@pytest.mark.parametrize("directly", [False, True])
def test_new_tokens_are_not_expanded(model: PreTrainedModel, directly: bool) -> None:
    """Values of a prompt are; for those of tokens after it there is only memory, whatever is in it."""
    model = copy.deepcopy(model)
    if directly:
        read_weights_directly(model)
    cache = CompressedCache(model, "full")
    assert all(each.isfinite().all() and each.any() for each in expanded(model, cache, prompt(length=PROMPT)))
    with mock.patch.object(carrier, "_memory_for", full_of_nan):
        values = expanded(model, cache, prompt(length=1))
    assert len(values) == 2
    assert all(each.isnan().all() for each in values)
    assert said(model, cache, prompt(length=1)).isfinite().all()


def test_whoever_hooks_the_expansion_sees_it(model: PreTrainedModel) -> None:
    model = copy.deepcopy(model)
    cache, same = filled(model), filled(model)
    seen = []
    linear = model.model.layers[0].self_attn.kv_b_proj
    said(model, cache, prompt(length=1))
    said(model, same, prompt(length=1))
    with linear.register_forward_hook(lambda _, args, output: seen.append((plain(args[0]), plain(output)))):
        found = said(model, cache, prompt(length=1))
    ((latents, made),) = seen
    assert torch.equal(made, latents @ linear.weight.mT)
    assert torch.equal(found, said(model, same, prompt(length=1)))


# --- graphs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", GRAPHED)
@pytest.mark.parametrize(("rows", "length"), [(1, PROMPT), (2, 1)])
def test_latents_are_in_graphs(family: str, rows: int, length: int) -> None:
    both = twins_here(build(family)).pair(rows=rows, length=length)
    both.graphed()
    assert exactly(both, 8) == [False, False, *[True] * 6]
    both.ordinary(prompt(rows, length=1, seed=8))


@pytest.mark.parametrize("method", METHODS)
def test_every_form_of_latents_is(model: PreTrainedModel, method: str) -> None:
    both = twins_here(model).pair(method)
    both.graphed()
    assert exactly(both, 5)[-1]


def test_folds_are_between_graphs(model: PreTrainedModel) -> None:
    both = twins_here(model).pair("snapkv(window=4) @ 12", fold_every=5)
    both.graphed()
    steps = exactly(both, 16)
    assert sum(steps) >= 6
    assert not all(steps[2:])


def test_tokens_are_taken_back(model: PreTrainedModel) -> None:
    both = twins_here(model).pair()
    both.graphed()
    exactly(both, 4)
    both.decoder.take_back()
    both.expected.crop(-1)
    exactly(both, 4)


@pytest.mark.parametrize("family", GRAPHED)
def test_the_first_answer_of_a_graph_is_checked(family: str) -> None:
    both = twins_here(build(family)).pair()
    with step_graphs(both.device.model):
        for token in range(8):
            both.ordinary(torch.tensor([[token + 2]]))
    assert while_graphed._fit.get(both.device.model) is True


def test_a_replay_that_is_broken_off_leaves_the_cache(model: PreTrainedModel) -> None:
    both = twins_here(model).pair()
    both.graphed()
    exactly(both, 4)
    graph = both.decoder._graph
    assert graph is not None
    with mock.patch.object(graph.captured, "replay", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        both.decoder.step(both.token)
    both.same()
    exactly(both, 4)


# --- few bits -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("weights", ["int8", "int4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_matrices_of_eight_bits(family: str, weights: str, dtype: torch.dtype) -> None:
    """Tokens are those of the small model over its own cache, but for roundings."""
    kinds = {"layer_types": LATENT[family]["layer_types"][:2]} if "layer_types" in LATENT[family] else {}
    model = build(family, num_hidden_layers=2, **kinds).to(dtype)
    quantize_weights(model, weights)
    ids = prompt(2, length=PROMPT + 3)
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits[:, PROMPT - 1 :].float()
    model.set_attn_implementation("winnow")
    cache = CompressedCache(model, "full")
    found = [said(model, cache, ids[:, :PROMPT])]
    found += [said(model, cache, ids[:, each : each + 1]) for each in range(PROMPT, PROMPT + 3)]
    assert all(each._projection.matrices().scales is not None for each in plans(cache))
    assert all(isinstance(each.kernels, native.NativePlan) for each in plans(cache))
    tolerance = 0.06 if dtype is torch.bfloat16 else 1e-4
    difference = (torch.stack(found, dim=1).float() - expected).abs().max()
    assert float(difference / expected.abs().max()) < tolerance


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_matrices_of_eight_bits_are_in_graphs(weights: str) -> None:
    model = build("glm4_moe_lite")
    quantize_weights(model, weights)
    both = twins_here(model).pair()
    both.graphed()
    assert exactly(both, 5)[-1]


def test_matrices_of_eight_bits_by_torch(model: PreTrainedModel) -> None:
    model = copy.deepcopy(model)
    quantize_weights(model, "int8")
    cache, other = filled(model), filled(model)
    found = said(model, cache, prompt(length=1))
    with mock.patch.object(native, "reads", return_value=False):
        expected = said(model, other, prompt(length=1))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_many_tokens_are_expanded_by_eight_bits(model: PreTrainedModel) -> None:
    model = copy.deepcopy(model)
    quantize_weights(model, "int8")
    cache, other = filled(model), filled(model)
    later = prompt(length=20)
    with mock.patch.object(Projection, "__init__", lambda self, *sizes: _expanding(self, 1.0, *sizes)):
        found = said(model, cache, later)
    expected = said(model, other, later)
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-2)


_made = Projection.__init__


def _expanding(projection: Projection, tokens: float, *sizes: object) -> None:
    _made(projection, *sizes)
    projection.tokens_to_expand_for = tokens


def test_a_decoder_of_other_kernels_says_so(model: PreTrainedModel) -> None:
    cache = filled(model)
    with mock.patch.object(native, "reads", return_value=False):
        decoder = GraphedDecoder(model, cache)
        decoder.step(torch.tensor([3]))
        with pytest.raises(CacheError, match=r"runs in torch here.*call the model itself"):
            decoder.step(torch.tensor([4]))


def test_a_graph_of_a_device_does_not_hold_them(model: PreTrainedModel) -> None:
    cache = filled(model)
    on_device = mock.patch.object(PreTrainedModel, "device", torch.device("meta"))
    with (
        on_device,
        pytest.raises(CacheError, match=r"LatentLayer.*cannot be captured in a graph; call the model itself"),
    ):
        GraphedDecoder(model, cache)


def test_a_prompt_is_expanded_once(model: PreTrainedModel) -> None:
    """Scorers see the keys and values that the model made."""
    module = type(model.model.layers[0].self_attn)
    with mock.patch.object(module, "expand_kv", autospec=True, side_effect=module.expand_kv) as expanding:
        filled(model, "snapkv(window=4) @ 9", rows=2)
    assert expanding.call_count == model.config.num_hidden_layers
