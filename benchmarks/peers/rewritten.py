"""Pages of races, written again from their records after a change of what is computed; nothing is measured.

    python benchmarks/peers/rewritten.py docs/results/llama_cpp-amd.json ...

What a page says about the model and the versions stays, as does its machine.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from race_page import measured_again, page, records
from reporting import write_results


def rewrite(path: Path) -> None:
    """Writes NAME.md and NAME.json anew, which lie side by side."""
    found = json.loads(path.read_text(encoding="utf-8"))
    measured, machine = measured_again(found["results"]), found["machine"]
    told = path.with_suffix(".md").read_text(encoding="utf-8").split("\n\n")[1]
    text = page(measured, told.removesuffix(machine).strip(), machine)
    write_results(path.parent, path.stem, text, records(measured), machine)


def main() -> None:
    """Writes all that are named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pages", nargs="+", type=Path, metavar="NAME.json")
    for path in parser.parse_args().pages:
        rewrite(path)


if __name__ == "__main__":
    main()
