"""Published tables of head scores: the files of their authors' repositories, by model and method."""

from __future__ import annotations

from dataclasses import dataclass

from winnow.errors import HeadScoresError

_HEADKV = (
    "https://raw.githubusercontent.com/FYYFU/HeadKV/0862a0955fe82e9ff611d59541918e02c5def625/Important_Head/head_score"
)
_COKV = "https://raw.githubusercontent.com/nawei1010/CoKV/dc9f228ee95af339b345f5624e38ec705dce995d/adaptive_kv/assets"
_DUO = (
    "https://raw.githubusercontent.com/mit-han-lab/duo-attention/fe93c314ae87306ef6629dc16713250b4718ffe7/attn_patterns"
)
_DUO_RUN = "lr=0.02-reg=0.05-ctx=1000_{context}-multi_passkey10/full_attention_heads.tsv"

_COKV_TREE = "https://github.com/nawei1010/CoKV/tree/dc9f228ee95af339b345f5624e38ec705dce995d"
_COKV_SUMS = f"{_COKV_TREE}/code_llama_mistrial/CoKV-main/adaptive_kv/cc_scores"

PICKLES = {
    "meta-llama-3-8b-instruct": f"{_COKV_SUMS}/cc_llama",
    "mistral-7b-instruct-v0.2": f"{_COKV_SUMS}/cc_mistral",
    "qwen3-32b": f"{_COKV_TREE}/adaptive_kv/assets/head_scores/complementary_contributions",
}
"""Models that CoKV's authors publish scores of, with the folder: NumPy files that hold pickles."""


@dataclass(frozen=True)
class PublishedTable:
    """A table as its authors publish it, at one state of their repository."""

    model: str
    """Name without owner."""
    method: str
    """`HeadScores.method`."""
    url: str
    sha256: str
    license: str
    """SPDX name; empty where the repository states none."""
    kv_heads: int | None
    """KV heads of the model, where the table is per query head."""

    @property
    def file(self) -> str:
        """The name under which the readers know model and kind."""
        published = self.url.rpartition("/")[2]
        return f"{self.model}.tsv" if published == "full_attention_heads.tsv" else published


def _headkv(model: str, kind: str, sha256: str, folder: str = _HEADKV) -> PublishedTable:
    ending = "retrieval_heads" if kind == "r" else "retrieval_reasoning_heads"
    return PublishedTable(model, f"headkv-{kind}", f"{folder}/{model}_{ending}.json", sha256, "", 8)


def _duo(model: str, context: int, sha256: str) -> PublishedTable:
    url = f"{_DUO}/{model}/{_DUO_RUN.format(context=context)}"
    return PublishedTable(model, "duoattention", url, sha256, "MIT", None)


PUBLISHED = (
    _headkv("Meta-Llama-3-8B-Instruct", "r", "94c9a256e1e0d5753b1714428cd61d8157ce2a0b70366c264f3cdc910bb4ec06"),
    _headkv("Meta-Llama-3-8B-Instruct", "r2", "4d23c9fb9026d9f08bf9d3399cb25bcf55dac42510b2a472dbe2fa92168bc924"),
    _headkv("Mistral-7B-Instruct-v0.2", "r", "73a58163c51df53b2b9e5495295f3ee80e17ea43d6691f201241b449a8d095bd"),
    _headkv("Mistral-7B-Instruct-v0.2", "r2", "21813dee6fd77abf65d5fee85b3649e445f34ec8d6009facea791362cc774b2f"),
    _headkv(
        "Qwen3-32B",
        "r2",
        "b5f68ca29ac7b8bfe3c6902bed26eff8aa1c54af4376b9c3aae53bc42d5a7b8c",
        f"{_COKV}/head_scores/headkv_scores",
    ),
    _duo("Llama-2-7B-32K-Instruct", 32000, "1823be67afda3d261c3d2648385e088ec5d2f8db00efa19c1ca9615cff60e55f"),
    _duo(
        "Llama-3-8B-Instruct-Gradient-1048k",
        32000,
        "107fac740f8d01fc35af8493401b243623828920dbb0207677d65c89caecb6db",
    ),
    _duo(
        "Llama-3-8B-Instruct-Gradient-4194k",
        32000,
        "87c1937664540e64e5fd0dc5028bd82ccc5614709b64e26f68d8f8d41e256811",
    ),
    _duo("Meta-Llama-3.1-8B-Instruct", 128000, "9e615b9aa11d7a2c21dfe3dfe51f1a282e10e69d9a48b83327ad5842049d5fcb"),
    _duo("Mistral-7B-Instruct-v0.2", 32000, "f545ef5f73b668ec58a6f29b999214fe847600255366111ba1912a602f3c2a76"),
    _duo("Mistral-7B-Instruct-v0.3", 32000, "244a0573952fd9fc2218922552f6ac358075aaf4170082988b9a395d5ce269fd"),
)
"""All that Winnow reads."""


def published_table(model: str, method: str) -> PublishedTable:
    """The table of a model, named with or without its owner. Raises HeadScoresError where there is none."""
    name = model.rstrip("/").rpartition("/")[2].lower()
    found = next((each for each in PUBLISHED if (each.model.lower(), each.method) == (name, method)), None)
    if found is not None:
        return found
    if method == "cokv" and name in PICKLES:
        raise HeadScoresError(
            f"CoKV's scores of {model} are published as NumPy pickles, which run code when they are read and which "
            f"Winnow does not open: {PICKLES[name]}. Write those of a task as JSON where you trust them (docs/heads.md "
            "has the lines), then: winnow heads convert *.json --kv-heads 8 -o FILE.safetensors."
        )
    known = sorted(f"{each.model} ({each.method})" for each in PUBLISHED)
    raise HeadScoresError(
        f"Nobody publishes {method} scores of {model} that Winnow knows of. There are: {', '.join(known)}. `winnow "
        "heads needle` and `winnow heads cokv` estimate those of any model."
    )
