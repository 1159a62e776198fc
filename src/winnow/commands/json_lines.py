"""JSON on standard output, a line for every result."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any


def json_line(entry: Mapping[str, Any]) -> str:
    """An entry as JSON, in which what standard output's encoding may lack is escaped as JSON does."""
    encoding = (sys.stdout.encoding or "").lower().replace("-", "").replace("_", "")
    return json.dumps(entry, ensure_ascii=encoding != "utf8")
