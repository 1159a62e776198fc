"""RULER's prompts, letter by letter: the text around a context, the question and the beginning of the answer.

They are those of Hsieh et al. 2024 (arXiv 2404.06654; scripts/data/synthetic/constants.py of NVIDIA/RULER, Apache-2.0)
as the paper's tables, the data set simonjegou/ruler and the package nvidia-long-context-eval have them; later versions
have corrected a misspelling in `VARIABLES`. The blank before an answer prefix stands at the end of the question here,
as in that data set.
"""

from __future__ import annotations

from typing import NamedTuple


class Template(NamedTuple):
    """A prompt in three parts; names in braces are filled in."""

    context: str
    question: str
    answer_prefix: str


NEEDLE = "One of the special magic {kind} for {key} is: {value}."
NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."

NEEDLES = Template(
    "Some special magic {kind} are hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {kind} afterwards.\n{context}\n",
    "What are all the special magic {kind} for {query} mentioned in the provided text? ",
    "The special magic {kind} for {query} mentioned in the provided text are",
)
ONE_NEEDLE = Template(
    "A special magic {kind} is hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {kind} afterwards.\n{context}\n",
    "What is the special magic {kind} for {query} mentioned in the provided text? ",
    "The special magic {kind} for {query} mentioned in the provided text is",
)
VARIABLES = Template(
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n{context}\n",
    "Question: Find all variables that are assigned the value {query} in the text above. ",
    "Answer: According to the chain(s) of variable assignment in the text above, "
    "{count} variables are assgined the value {query}, they are: ",  # codespell:ignore assgined
)
COMMON_WORDS = Template(
    "Below is a numbered list of words. In these words, some appear more often than others. "
    "Memorize the ones that appear most often.\n{context}\n",
    "Question: What are the 10 most common words in the above list? ",
    "Answer: The top 10 words that appear most often in the list are:",
)
FREQUENT_WORDS = Template(
    "Read the following coded text and track the frequency of each coded word. "
    "Find the three most frequently appeared coded words. {context}\n",
    "Question: Do not provide any explanation. Please ignore the dots '....'. "
    "What are the three most frequently appeared words in the above coded text? ",
    "Answer: According to the coded text above, the three most frequently appeared words are:",
)
DOCUMENTS = Template(
    "Answer the question based on the given documents. Only give me the answer and do not output any other words."
    "\n\nThe following are given documents.\n\n{context}\n\n",
    "Answer the question based on the given documents. Only give me the answer and do not output any other words."
    "\n\nQuestion: {query} ",
    "Answer:",
)
