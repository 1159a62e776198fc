"""The catalog that `winnow methods` reads, written from the registry.

python -m winnow.commands.write_catalog
"""

from __future__ import annotations

import json

from winnow.commands.methods import CATALOG_PATH
from winnow.composition.names import methods


def catalog() -> str:
    """All records of `winnow.methods()` as JSON."""
    records = [
        record._asdict() | {"parameters": [parameter._asdict() for parameter in record.parameters]}
        for record in methods()
    ]
    return json.dumps(records, indent=1) + "\n"


def write() -> None:
    """Writes the catalog beside the command that reads it."""
    CATALOG_PATH.write_text(catalog(), encoding="utf-8")


if __name__ == "__main__":
    write()
    print(CATALOG_PATH)
