"""Prompts of RULER's tasks as patterns, written from the scripts of NVIDIA/RULER as the paper used them.

Nothing here knows Winnow's generator: the original's own prompts match, too (`tests/tasks/ruler/test_original.py`).
"""

from __future__ import annotations

import re

NOISE = re.escape("The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.")
WORD = r"[^\s:]+(?: hoc)?-[^:,?]+?"
NUMBER = r"\d{7}"
UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
NEEDLES_TEMPLATE = (
    "Some special magic {kind} are hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {kind} afterwards.\n{context}\n"
    "What are all the special magic {kind} for {query} mentioned in the provided text?"
    " The special magic {kind} for {query} mentioned in the provided text are"
)
VT_TEMPLATE = (
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n{context}\n"
    "Question: Find all variables that are assigned the value {query} in the text above."
    " Answer: According to the chain(s) of variable assignment in the text above, "
    "5 variables are assgined the value {query}, they are: "  # codespell:ignore assgined
)
CWE_TEMPLATE = (
    "Below is a numbered list of words. In these words, some appear more often than others. "
    "Memorize the ones that appear most often.\n{context}\n"
    "Question: What are the 10 most common words in the above list?"
    " Answer: The top 10 words that appear most often in the list are:"
)
FWE_TEMPLATE = (
    "Read the following coded text and track the frequency of each coded word. "
    "Find the three most frequently appeared coded words. {context}\n"
    "Question: Do not provide any explanation. Please ignore the dots '....'. "
    "What are the three most frequently appeared words in the above coded text?"
    " Answer: According to the coded text above, the three most frequently appeared words are:"
)
QA_TEMPLATE = (
    "Answer the question based on the given documents. Only give me the answer and do not output any other words."
    "\n\nThe following are given documents.\n\n{context}\n\n"
    "Answer the question based on the given documents. Only give me the answer and do not output any other words."
    "\n\nQuestion: {query} Answer:"
)


def _pattern(template: str, **blanks: str) -> str:
    """The template with patterns in its blanks; a name that comes again must be the same."""
    found = re.escape(template)
    for name, pattern in blanks.items():
        blank = re.escape(f"{{{name}}}")
        found = found.replace(blank, pattern, 1).replace(blank, f"(?P={name})")
    return found


def _needles(context: str, kind: str, query: str, single: bool) -> re.Pattern[str]:
    template = NEEDLES_TEMPLATE
    if single:
        template = template.replace("Some", "A").replace("are all", "is").replace("are", "is")
    kind = kind[:-1] if single else kind
    template = template.replace("{kind}", kind)
    return re.compile(_pattern(template, context=f"(?P<context>{context})", query=f"(?P<query>{query})"), re.DOTALL)


def needle(kind: str, key: str, value: str) -> str:
    """A needle's sentence as a pattern."""
    return rf"One of the special magic {kind} for {key} is: {value}\."


def _essays(kind: str, key: str, value: str, count: int) -> str:
    """A text with so many needles."""
    text = r"(?:(?!One of the special magic).)*?"
    return f"{text}(?:{needle(kind, key, value)}{text}){{{count}}}"


_OWN_LINE = f"(?:{NOISE}\n)*{needle('numbers', WORD, NUMBER)}(?:\n{NOISE})*"


def _lines(one: str) -> str:
    return f"{one}(?:\n{one})*"


_ASSIGNMENTS = rf"(?:{NOISE}\n|{NOISE}\n |VAR [A-Z]+ = \d{{5}} |VAR [A-Z]+ = VAR [A-Z]+  )+?"
_VT_SHOT = _pattern(VT_TEMPLATE, context=f"(?P<shot>{_ASSIGNMENTS})", query=r"(?P<shown>\d{5})").replace(
    "(?P=query)", "(?P=shown)"
)
_NUMBERED = r"1\. \S.*?"

FORMS = {
    "niah_single_1": _needles(_OWN_LINE, "numbers", WORD, True),
    "niah_single_2": _needles(_essays("numbers", WORD, NUMBER, 1), "numbers", WORD, True),
    "niah_single_3": _needles(_essays("uuids", WORD, UUID, 1), "uuids", WORD, True),
    "niah_multikey_1": _needles(_essays("numbers", WORD, NUMBER, 4), "numbers", WORD, True),
    "niah_multikey_2": _needles(_lines(needle("numbers", WORD, NUMBER)), "numbers", WORD, True),
    "niah_multikey_3": _needles(_lines(needle("uuids", UUID, UUID)), "uuids", UUID, True),
    "niah_multivalue": _needles(_essays("numbers", WORD, NUMBER, 4), "numbers", WORD, False),
    "niah_multiquery": _needles(
        _essays("numbers", WORD, NUMBER, 4), "numbers", f"{WORD}, {WORD}, {WORD}, and {WORD}", False
    ),
    "vt": re.compile(
        f" {_VT_SHOT} (?P<solved>[A-Z]{{3}}(?: [A-Z]{{3}}){{4}})\n\n\n\n"
        + _pattern(VT_TEMPLATE, context=f"(?P<context>{_ASSIGNMENTS})", query=r"(?P<query>\d{5})")
    ),
    "cwe": re.compile(
        _pattern(CWE_TEMPLATE, context=f"(?P<shot>{_NUMBERED})")
        + f"(?P<solved>{_NUMBERED} 10\\. \\S[^\n]*)\n"
        + _pattern(CWE_TEMPLATE, context=f"(?P<context>{_NUMBERED})")
    ),
    "fwe": re.compile(_pattern(FWE_TEMPLATE, context=r"(?P<context>(?:[a-z]{6}|\.\.\.)(?: (?:[a-z]{6}|\.\.\.))*)")),
    "qa_1": re.compile(
        _pattern(QA_TEMPLATE, context=r"(?P<context>Document 1:\n.*)", query="(?P<query>[^\n]*)"), re.DOTALL
    ),
    "qa_2": re.compile(
        _pattern(QA_TEMPLATE, context=r"(?P<context>Document 1:\n.*)", query="(?P<query>[^\n]*)"), re.DOTALL
    ),
}
"""By task; "context" is what the template has there, "query" what is asked for."""
