"""The model for lm-evaluation-harness where the harness is not installed."""

from __future__ import annotations

import pytest

from support.processes import python


@pytest.mark.parametrize("missing", ["lm_eval", "accelerate"])
def test_the_extra_is_named(missing):
    ran = python(
        f"import sys; sys.modules['{missing}'] = None; sys.modules.setdefault('accelerate', sys); import winnow.lm_eval"
    )
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1].endswith('pip install "winnow-kv[lm-eval]"')
