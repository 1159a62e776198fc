"""Contexts whose facts and tensors were changed before their checksums were made, and what opening them comes to."""

from __future__ import annotations

import copy
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor

import winnow
from support import packed_caches, small_caches
from support.families import prompt
from winnow.cache.container import Container, write_container
from winnow.errors import WinnowError

NEW = 3
"""Tokens that are decoded."""


class Parts(NamedTuple):
    """A context taken apart."""

    facts: dict[str, Any]
    tensors: dict[str, Tensor]


# --- contexts that are right --------------------------------------------------------------------------------------

PACKED = [
    "snapkv+spark(0.5)",
    "adakv+spark(0.8, values=0.5)",
    "snapkv+spark(0.5, sign=query, norm=mean)+bits(2)",
    "tova+spark(0.5, sign=none)",
    "knorm+spark(0.8, values=0.5, recovery=gaussian)",
    "h2o+spark(0.5, recovery=exponential)+bits(4)",
    "pyramidkv+spark-p(0.9)",
    "adakv+spark-p(0.9, recent=pruned)+bits(2)",
    "adakv+spark-g(5)+bits(8, 4)",
    "adakv+think(0.5)",
    "snapkv+think(0.5)+kivi(4)",
    "knorm+think(0.3)+kivi(8)",
    "streamingllm+kivi(2)",
    "adakv+bits(8)",
    "adakv+bits(4)",
    "snapkv+bits(2)",
    "snapkv+bits(k=8, v=4, rotate=true, center=true, smooth=true)",
    "headkv-r2+bits(8, 4)",
    "aperturekv+spark(0.5)+mixedbits(5)",
]
FAMILIES = ["gemma2", "gpt_oss", "llama4_text", "qwen3_next", "lfm2", "falcon_h1", "gemma3n_text"]
NAMES = ["dense", "shared rows", "padded rows", "bf16 spark", *FAMILIES, *PACKED]


@cache
def model_of(name: str) -> Any:
    """The model of a context."""
    if name in FAMILIES:
        return small_caches.made(name)
    if name in PACKED:
        return packed_caches.made()
    return packed_caches.made(torch.bfloat16) if name == "bf16 spark" else small_caches.made()


@cache
def valid(name: str) -> Parts:
    """A small context that is right. Not to be changed."""
    model = model_of(name)
    with tempfile.TemporaryDirectory() as folder:
        path = _compressed(name, model).save(Path(folder) / "context", document="A text.")
        container = Container.open(path)
        return Parts(container.facts, {key: each.clone() for key, each in container.tensors().items()})


def _compressed(name: str, model: Any) -> winnow.Context:
    if name in PACKED:
        return winnow.compress(model, prompt(length=packed_caches.N), packed_caches.composed(name))
    if name == "bf16 spark":
        return winnow.compress(
            model, prompt(length=packed_caches.N), packed_caches.composed("snapkv+spark(0.5)+bits(4)")
        )
    if name == "padded rows":
        ids, mask = prompt(rows=3, length=small_caches.N), torch.ones(3, small_caches.N, dtype=torch.int64)
        mask[1, :13], mask[2] = 0, 0
        return winnow.compress(model, ids, small_caches.method(), attention_mask=mask)
    context = small_caches.compress(model)
    if name == "shared rows":
        context._cache.batch_repeat_interleave(3)
        context.input_ids = context.input_ids.repeat(3, 1)
    return context


# --- opening ------------------------------------------------------------------------------------------------------


def opened(name: str, path: Path, verify: bool) -> str:
    """The outcome of loading a file and decoding from it with both kernels: "refused" or "decoded".

    Raises whatever else happens, and a WinnowError after the first token.
    """
    model = model_of(name)
    try:
        context = winnow.load_context(path, model, verify=verify)
    except WinnowError:
        return "refused"
    context.stats()
    outcomes = {_decoded(model, context)}
    with reference_kernels():
        outcomes.add(_decoded(model, context))
    return "decoded" if "decoded" in outcomes else "refused"


def _decoded(model: Any, context: winnow.Context) -> str:
    past, tokens = context.cache(), prompt(rows=len(context.input_ids), length=NEW, seed=5)
    with torch.no_grad():
        for step in range(NEW):
            try:
                model(tokens[:, step : step + 1], past_key_values=past)
            except WinnowError:
                if step:
                    raise
                return "refused"
    return "decoded"


@contextmanager
def reference_kernels() -> Iterator[None]:
    """Within, new plans are those of the torch reference."""
    with mock.patch("winnow.kernels.native.supports", return_value=False):
        yield


def attempt_crafted(name: str, seed: int) -> str:
    """The outcome of a context that is changed by seed and has right checksums."""
    parts, _ = crafted(name, seed)
    with tempfile.TemporaryDirectory() as folder:
        return opened(
            name, write_container(Path(folder) / "c", parts.facts, parts.tensors, False), verify=seed % 2 == 0
        )


# --- changes ------------------------------------------------------------------------------------------------------


def crafted(name: str, seed: int) -> tuple[Parts, list[str]]:
    """A context with one to three changes, and these in words."""
    numbers = random.Random(f"{name} {seed}")
    right = valid(name)
    parts = Parts(copy.deepcopy(right.facts), {key: each.clone() for key, each in right.tensors.items()})
    told = []
    for _ in range(numbers.choice((1, 1, 1, 2, 3))):
        change = numbers.choices(list(CHANGES), list(CHANGES.values()))[0]
        # An earlier change may have taken away what this one looks for.
        with suppress(TypeError, KeyError, IndexError, AttributeError):
            told.append(f"{change.__name__}: {change(parts, numbers)}")
    return parts, told


STRANGE: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3, 7, 16, 31, 33, 64, 1000, 10**6, 2**31, 2**63 - 1, 2**63, -(2**63), 10**30),
    *(0.0, 0.5, -1.5, 1e308, float("nan"), float("inf"), "", "x", "0", "torch.load", "torch.float99", "torch.float64"),
    *("torch.bfloat16", "torch.int8", "float64", "float16", "load", "Tensor", "dense", "packed", "parts", "keys"),
    *("values", "entries", "pruned", "full", "sliding", "linear", "none", "gaussian", "exponential", "degenerate"),
    *([], {}, [0], [[]], {"kind": "dense"}, "9" * 5000, "\u0000", "everything"),
]
SIZES = (0, 1, 2, 3, 15, 17, 31, 33, 63, 65, 100, 128, 300, 4096, 20_000, 200_000)
_MOST = 1 << 24  # numbers of a tensor that a change makes


def _change_fact(parts: Parts, numbers: random.Random) -> str:
    """A fact becomes another value."""
    holder, key = numbers.choice(_places(parts, numbers))
    old = holder[key]
    near: list[Any] = []
    if isinstance(old, int) and not isinstance(old, bool):
        near = [old - 1, old + 1, 2 * old, old // 2, -old, str(old), float(old)] * 3
    holder[key] = copy.deepcopy(numbers.choice([*STRANGE, *near]))
    return f"{key} from {old!r:.60} to {holder[key]!r:.60}"


def _drop_fact(parts: Parts, numbers: random.Random) -> str:
    holder, key = numbers.choice(_places(parts, numbers))
    del holder[key]
    return str(key)


def _add_fact(parts: Parts, numbers: random.Random) -> str:
    holder, key = numbers.choice(_places(parts, numbers))
    if isinstance(holder, list):
        holder.append(copy.deepcopy(numbers.choice([holder[key], *STRANGE])))
        return f"one more in {key}"
    name = numbers.choice(
        ("colors", "later_starts", "keys.channels", "0", "parts.9.kind", "keys.pruned", "kind", ".", "")
    )
    holder[name] = copy.deepcopy(numbers.choice(STRANGE))
    return f"{name}={holder[name]!r:.60}"


def _swap_facts(parts: Parts, numbers: random.Random) -> str:
    (one, key), (other, name) = numbers.choice(_places(parts, numbers)), numbers.choice(_places(parts, numbers))
    one[key], other[name] = copy.deepcopy(other[name]), copy.deepcopy(one[key])
    return f"{key} and {name}"


def _change_dtype(parts: Parts, numbers: random.Random) -> str:
    name = _name(parts, numbers)
    dtypes = (*(torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64), torch.int32, torch.int16)
    dtype = numbers.choice((*dtypes, torch.int8, torch.uint8, torch.bool))
    parts.tensors[name] = parts.tensors[name].to(dtype)
    return f"{name} {dtype}"


def _change_rank(parts: Parts, numbers: random.Random) -> str:
    name = _name(parts, numbers)
    tensor = parts.tensors[name]
    shapes = [tensor[None], tensor[..., None], tensor.flatten(), tensor.transpose(0, -1).contiguous()]
    if tensor.numel():
        shapes += [tensor.flatten()[0], tensor[0]]
    parts.tensors[name] = numbers.choice(shapes).contiguous()
    return f"{name} {list(tensor.shape)} to {list(parts.tensors[name].shape)}"


def _change_size(parts: Parts, numbers: random.Random) -> str:
    name = _name(parts, numbers)
    tensor = parts.tensors[name]
    if not tensor.ndim:
        return "nothing"
    axis = numbers.randrange(tensor.ndim)
    size = tensor.shape[axis]
    new = max(numbers.choice((size - 1, size + 1, size - 1, size + 1, 2 * size, size // 2, *SIZES)), 0)
    parts.tensors[name] = _resized(tensor, axis, new)
    return f"{name} {list(tensor.shape)} to {list(parts.tensors[name].shape)}"


def _change_all_sizes(parts: Parts, numbers: random.Random) -> str:
    """Every axis of one size in a prefix, and facts that say it, so that all agree with each other."""
    start = _name(parts, numbers).rpartition(".")[0]
    start = numbers.choice((start, start.partition(".keys")[0].partition(".values")[0]))
    mine = {name: each for name, each in parts.tensors.items() if name.startswith(f"{start}.")}
    known = sorted({size for each in mine.values() for size in each.shape})
    if not known:
        return "nothing"
    size = numbers.choice(known)
    new = max(numbers.choice((size - 1, size + 1, size + 32, 2 * size, *SIZES)), 0)
    for name, tensor in mine.items():
        for axis in [axis for axis, found in enumerate(tensor.shape) if found == size]:
            parts.tensors[name] = tensor = _resized(tensor, axis, new)
        if name.endswith("offsets") and tensor.numel() and numbers.random() < 0.8:
            tensor[-1] = torch.where(tensor[-1] == size, new, tensor[-1])
    if numbers.random() < 0.5:
        for holder, key in _leaves(parts.facts["layers"]):
            if holder[key] == size and not isinstance(holder[key], bool):
                holder[key] = new
    return f"{start}: {size} to {new}"


def _change_numbers(parts: Parts, numbers: random.Random) -> str:
    """Some or all numbers of a tensor."""
    name = _name(parts, numbers)
    tensor = parts.tensors[name].clone()
    if not tensor.numel():
        return "nothing"
    flat = tensor.view(-1)
    generator = torch.Generator().manual_seed(numbers.randrange(2**31))
    kind = numbers.choice(("one", "one", "one", "few", "all", "flip", "shuffle", "repeat", "bytes"))
    if kind in ("one", "few", "all"):
        count = {"one": 1, "few": min(5, len(flat)), "all": len(flat)}[kind]
        where = torch.randperm(len(flat), generator=generator)[:count]
        flat[where] = _number(tensor.dtype, len(flat), numbers)
    elif kind == "flip":
        flat.copy_(flat.flip(0))
    elif kind == "shuffle":
        flat.copy_(flat[torch.randperm(len(flat), generator=generator)])
    elif kind == "repeat":
        flat[1:] = flat[:-1].clone()
    else:
        raw = flat.view(torch.uint8)
        raw.copy_(torch.randint(256, (len(raw),), generator=generator) & (1 if tensor.dtype == torch.bool else 255))
    parts.tensors[name] = tensor
    return f"{name} {kind}"


def _drop_tensor(parts: Parts, numbers: random.Random) -> str:
    name = _name(parts, numbers)
    del parts.tensors[name]
    return name


def _swap_tensors(parts: Parts, numbers: random.Random) -> str:
    one, other = _name(parts, numbers), _name(parts, numbers)
    parts.tensors[one], parts.tensors[other] = parts.tensors[other], parts.tensors[one]
    return f"{one} and {other}"


def _move_tensor(parts: Parts, numbers: random.Random) -> str:
    """A tensor goes, or is copied, to another name."""
    name = _name(parts, numbers)
    start = name.rpartition(".")[0]
    ends = ("keys", "values.channels", "later_starts", "keys.channels", "keys.entries.zeros", "values.entries.zeros")
    ends = (*ends, "keys.pruned.starts", "values.pruned.signs", "keys.entries.scales", "positions.0", "kind", "9", "..")
    new = f"{numbers.choice((start, start.partition('.keys')[0], 'layers.0', 'layers.77', ''))}.{numbers.choice(ends)}"
    parts.tensors[new] = parts.tensors[name].clone()
    if numbers.random() < 0.3:
        del parts.tensors[name]
    return f"{name} at {new}"


def _widen_channels(parts: Parts, numbers: random.Random) -> str:
    """More key channels than the head has, or values that are keys of some channels."""
    blocks = sorted(
        name.removesuffix(".keys.entries.data") for name in parts.tensors if name.endswith("keys.entries.data")
    )
    if not blocks:
        return _change_size(parts, numbers)
    block = numbers.choice(blocks)
    side, width = numbers.choice(("keys", "values")), numbers.choice((0, 1, *SIZES))
    data, offsets = parts.tensors[f"{block}.{side}.entries.data"], parts.tensors[f"{block}.offsets"]
    facts, start = _block_facts(parts, block)
    facts[f"{start}{side}.kind"] = "keys"
    facts.pop(f"{start}{side}.channels", None)
    bits = facts.get(f"{start}{side}.entries.bits", 16)
    width = min(width, _MOST // max(len(data), 1))
    bytes_wide = width if bits == 16 else -(-width * bits // 8)
    wide = numbers.choice((torch.arange(width), torch.arange(width) % 16, torch.full((width,), 15), torch.zeros(width)))
    parts.tensors[f"{block}.{side}.channels"] = wide.to(torch.int16).repeat(max(len(offsets) - 1, 1), 1)
    if data.ndim == 2:
        parts.tensors[f"{block}.{side}.entries.data"] = _resized(data, 1, bytes_wide)
    for name in ("scales", "zeros"):
        scales = parts.tensors.get(f"{block}.{side}.entries.{name}")
        if scales is not None and scales.ndim == 2:
            parts.tensors[f"{block}.{side}.entries.{name}"] = _resized(scales, 1, width)
    return f"{block} {side}: {width}"


CHANGES: dict[Callable[[Parts, random.Random], str], int] = {
    _change_fact: 6,
    _drop_fact: 1,
    _add_fact: 1,
    _swap_facts: 1,
    _change_dtype: 2,
    _change_rank: 1,
    _change_size: 3,
    _change_all_sizes: 4,
    _change_numbers: 6,
    _drop_tensor: 1,
    _swap_tensors: 2,
    _move_tensor: 2,
    _widen_channels: 3,
}


def _places(parts: Parts, numbers: random.Random) -> list[tuple[Any, Any]]:
    """Holders and keys of facts: mostly of layers."""
    other = {key: value for key, value in parts.facts.items() if key != "layers"}
    layers = parts.facts.get("layers")
    found = list(_leaves(layers)) if isinstance(layers, list | dict) and numbers.random() < 0.85 else []
    return found or [(parts.facts, key) for key in parts.facts] or list(_leaves(other))


def _leaves(part: Any) -> Iterator[tuple[Any, Any]]:
    """Holders and keys of everything inside."""
    for key in list(part) if isinstance(part, dict) else range(len(part)):
        yield part, key
        if isinstance(part[key], dict | list):
            yield from _leaves(part[key])


def _name(parts: Parts, numbers: random.Random) -> str:
    """A tensor's: mostly of layers."""
    names = sorted(name for name in parts.tensors if name.startswith("layers."))
    return numbers.choice(names if names and numbers.random() < 0.95 else sorted(parts.tensors) or [""])


def _block_facts(parts: Parts, block: str) -> tuple[dict[str, Any], str]:
    """The facts of a prefix, and what the names of this block begin with among them."""
    _, layer, _, place, *inside = block.split(".")
    facts = parts.facts["layers"][int(layer)]["full"]["prefixes"][int(place)]["facts"]
    return facts, "".join(f"{each}." for each in inside)


def _resized(tensor: Tensor, axis: int, size: int) -> Tensor:
    """Cut off, or repeated over and over, along an axis."""
    others = max(tensor.numel() // max(tensor.shape[axis], 1), 1)
    size = min(size, _MOST // others)
    if not tensor.shape[axis]:
        return tensor.new_zeros([size if each == axis else n for each, n in enumerate(tensor.shape)])
    return tensor.index_select(axis, torch.arange(size) % tensor.shape[axis]).contiguous()


def _number(dtype: torch.dtype, length: int, numbers: random.Random) -> Any:
    if dtype == torch.bool:
        return numbers.random() < 0.5
    if dtype.is_floating_point:
        return numbers.choice((float("nan"), float("inf"), float("-inf"), 0.0, 1e38, -1e38, 1e-40, 65504.0))
    least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    wanted = numbers.choice((-1, 0, 1, 31, 32, 33, length, length - 1, length + 1, 10**6, 2**31, least, most, most - 1))
    return max(least, min(most, wanted))
