"""The catalog that `winnow methods` reads, written from the registry.

python -m winnow.commands.write_catalog
"""

from __future__ import annotations

import json

from winnow.commands.methods import CATALOG_PATH, as_json
from winnow.composition.names import own_methods


def catalog() -> str:
    """All of winnow's own records of `winnow.methods()` as JSON."""
    return json.dumps([as_json(record) for record in own_methods()], indent=1) + "\n"


def write() -> None:
    """Writes the catalog beside the command that reads it."""
    CATALOG_PATH.write_text(catalog(), encoding="utf-8")


if __name__ == "__main__":
    write()
    print(CATALOG_PATH)
