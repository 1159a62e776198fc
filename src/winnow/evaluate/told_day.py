"""The day that chat templates tell the model: today's for transformers, any other one for prompts that are kept."""

from __future__ import annotations

import json
from datetime import date, datetime
from string import ascii_letters

MEASURED_DAY = "2024-07-26"
"""The day that prompts of measurements tell, whenever they are made: that on which templates of Llama 3 fall back."""
_CLOCK = "strftime_now"
"""The function that templates ask for the day."""
_CODES = (*(f"%{pad}{code}" for pad in ("", "-") for code in ascii_letters), "%%")
# transformers hands no functions to templates, so that the other clock has to be one of their own. Blocks swallow one
# line break behind them: what follows begins as it did.
_OTHER_CLOCK = """\
{%%- macro %s(format) -%%}
{%%- set told = namespace(text=format) -%%}
{%%- for code, value in %s.items() -%%}{%%- set told.text = told.text.replace(code, value) -%%}{%%- endfor -%%}
{{- told.text -}}
{%%- endmacro %%}
"""


def tells_day(template: object) -> bool:
    """True if a tokenizer's chat template, or one of several, writes the day into prompts."""
    return _CLOCK in str(template)


def telling(template: str, day: str) -> str:
    """A chat template that tells `day` (ISO 8601), at midnight, on whatever day it is used, if it tells one at all."""
    if not tells_day(template):
        return template
    midnight = datetime.combine(date.fromisoformat(day), datetime.min.time())
    return _OTHER_CLOCK % (_CLOCK, json.dumps({code: midnight.strftime(code) for code in _CODES})) + template
