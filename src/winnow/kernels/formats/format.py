"""Formats under the names that files know them by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

ON_CPU: Mapping[str, bool] = {"on_cpu": True}
"""Metadata of a field whose tensor stays on the CPU; all others live on the model's device."""


class Format:
    """A frozen dataclass of tensors, plain facts and further formats; its fields are what files hold of it.

    A subclass gives its name in files, as in `class DenseBlock(Format, name="dense")`.
    """

    name_in_files: ClassVar[str]

    def __init_subclass__(cls, name: str | None = None) -> None:
        if name is not None:
            cls.name_in_files = name
