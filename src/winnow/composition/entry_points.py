"""Methods that installed packages bring: their names, without loading any of them.

A package names them in its pyproject.toml, each with the part that it stands for:

    [project.entry-points."winnow.methods"]
    valuenorm = "my_package.value_norm:ValueNorm"
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

GROUP = "winnow.methods"


def installed() -> dict[str, EntryPoint]:
    """Entry points by the names that they give, in lower case; of several with one name the first counts."""
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=GROUP):
        found.setdefault(entry.name.lower(), entry)
    return found


def origin(entry: EntryPoint) -> str:
    """The package of an entry point, for people."""
    return f"the package {entry.dist.name} {entry.dist.version}" if entry.dist else f"{entry.value}"
