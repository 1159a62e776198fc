"""The exception of tasks that compression cannot be measured by."""

from __future__ import annotations

from winnow.errors import WinnowError


class LikelihoodError(WinnowError, NotImplementedError):
    """A task that asks for probabilities of a given text instead of an answer."""

    def __init__(self) -> None:
        super().__init__(
            "This task asks for probabilities of given texts (loglikelihood, multiple_choice, perplexity). They are "
            "computed in the prefill, which is dense: every method would get the full cache's number, and it would say "
            "nothing. Take a task of the type generate_until; for probabilities after compression there are the tasks "
            "of winnow eval that are judged by fidelity and choice."
        )
