"""Plotly's script for browsers, as the Python package brings it along."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from winnow.report.style import MissingPackage

_SCRIPT = Path("package_data") / "plotly.min.js"


def plotly_script() -> bytes:
    """The whole script. Raises MissingPackage where it is not installed."""
    found = find_spec("plotly")
    for folder in (found and found.submodule_search_locations) or ():
        if (Path(folder) / _SCRIPT).is_file():
            return (Path(folder) / _SCRIPT).read_bytes()
    raise MissingPackage('Reports need plotly: pip install "winnow-kv[report]"')
