"""Models with a compressed cache for lm-evaluation-harness, under the name "winnow".

Importing this module makes them known: `lm_eval.simple_evaluate(model="winnow", …)` works from then on, and
`python -m winnow.lm_eval` is the harness' own command line with them.
"""

try:
    import accelerate as _accelerate  # noqa: F401
    import lm_eval as _harness  # noqa: F401
except ModuleNotFoundError as problem:
    raise ModuleNotFoundError(
        f'winnow.lm_eval needs {problem.name}: pip install "winnow-kv[lm-eval]"', name=problem.name
    ) from None

from winnow.lm_eval.errors import LikelihoodError
from winnow.lm_eval.model import WinnowLM

__all__ = ["LikelihoodError", "WinnowLM"]
