"""Ask the bundled model about `report.txt`, from a cache of 64 slots per KV head.

python examples/question_answering.py
"""

from __future__ import annotations

from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

import winnow
from winnow.bundled import MODEL_PATH
from winnow.tasks import format_prompt

DOCUMENT = Path(__file__).with_name("report.txt")


def main() -> None:
    """Prints the answer, and what the cache held."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL_PATH)
    model = AutoModelForCausalLM.from_pretrained(MODEL_PATH)
    model.set_attn_implementation("winnow")
    document = DOCUMENT.read_text(encoding="utf-8")
    question = "What is the favorite fruit of Alice?"

    inputs = tokenizer(format_prompt(document, question), return_tensors="pt")
    cache = winnow.CompressedCache(model, winnow.method("adakv", budget=64))
    output = model.generate(**inputs, cache=cache, max_new_tokens=16)

    stats = cache.stats()
    print(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
    print(f"{stats.held_bytes / 1e3:.0f} kB held instead of {stats.full_bytes / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
