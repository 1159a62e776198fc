"""Another default device of torch, as programs set that load models on a GPU: what Winnow makes lies where it belongs.

The device is "meta", whose tensors have no numbers: kernels would read the addresses of nothing.
"""

from __future__ import annotations

from support.launcher import BENEATH, launcher

PROGRAM = """
import torch

torch.set_default_device("meta")  # before anything of winnow is imported, whose tables stay for the whole process
import winnow

with torch.device("cpu"):
    from support.families import build, prompt
    from support.ready import ready

    WHOLE = ["kvec", "duoattention", *(f"snapkv+{each}" for each in ("cake", "zigzag", "global", "kivi(4)"))]
    PACKED = ["spark", "spark(recovery=exponential)", "spark(0.5)+bits(8)", "think(0.5)", "bits(8)", "mixedbits(5)",
              "bits(4, group=64, round=queries)", "bits(4, scales=signed)"]
    FOLDED = ["snapkv", "h2o", "random", "tova", "keydiff", "expectedattention", "adakv", "pyramidkv", "headkv-r",
              "aperturekv", *(f"snapkv+{each}" for each in PACKED)]
    model = build("llama", num_hidden_layers=2)
    model.set_attn_implementation("winnow")
    methods = [(ready(name, 48, shape=(2, 2)), 8 if name in FOLDED else None) for name in [*WHOLE, *FOLDED]]
    document, question, tokens = prompt(length=100), prompt(length=5), [torch.tensor([[each]]) for each in range(5, 15)]
    order, two = torch.tensor([1, 0]), torch.tensor([[1], [2]])


@torch.no_grad()
def answered(method, every):
    cache = winnow.CompressedCache(model, method, fold_every=every)
    given = [model(each, past_key_values=cache).logits[:, -1] for each in (document, *tokens, question)]
    kept = [head.tolist() for layer in range(2) for head in cache.kept(layer)]
    cache.stats(), repr(cache)
    cache.batch_repeat_interleave(2)
    cache.reorder_cache(order)
    return torch.cat([*given, model(two, past_key_values=cache).logits[:, -1]]), kept


elsewhere = [answered(*each) for each in methods]
torch.set_default_device("cpu")
for each, (logits, kept) in zip(methods, elsewhere, strict=True):
    logits_here, kept_here = answered(*each)
    assert kept == kept_here, each
    assert torch.equal(logits, logits_here), each
print("the same", end="")
"""


def test_methods_do_as_under_the_usual_one() -> None:
    done = launcher(BENEATH).python(PROGRAM)
    assert done.stdout == "the same", done.stderr
