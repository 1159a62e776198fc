"""The attention function "winnow" is known to transformers, whichever of the two is imported first."""

from __future__ import annotations

import pytest

from support.launcher import BENEATH, launcher
from support.processes import python

HEAVY = "{name for name in ('torch', 'transformers', 'numpy', 'winnow.cache') if name in sys.modules}"
ASK = """
from winnow.bundled import MODEL_PATH
model = AutoModelForCausalLM.from_pretrained(MODEL_PATH)
model.set_attn_implementation("winnow")
assert "winnow.cache" not in sys.modules
ids = torch.tensor([[5, 6, 7, 8]])
found = model(ids).logits
from transformers import AttentionInterface, AttentionMaskInterface
from winnow.cache.attention import winnow_attention, winnow_mask
assert AttentionInterface()["winnow"] is winnow_attention
assert AttentionMaskInterface()["winnow"] is winnow_mask
model.set_attn_implementation("eager")
assert torch.allclose(found, model(ids).logits, atol=1e-4)
assert not [finder for finder in sys.meta_path if type(finder).__module__.startswith("winnow")]
"""


def passes(code: str) -> None:
    """Runs code in a process that has neither winnow nor transformers yet."""
    bare = "import sys\nassert not {'transformers', 'winnow'} & set(sys.modules)\n"
    process = launcher(BENEATH).python(bare + code)
    assert process.returncode == 0, process.stderr


def test_importing_winnow_imports_nothing_heavy():
    process = python(f"import sys, winnow; assert not {HEAVY}, {HEAVY}")
    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize(
    "imports",
    [
        "import winnow, torch; from transformers import AutoModelForCausalLM",
        "import torch; from transformers import AutoModelForCausalLM; import winnow",
        pytest.param(
            "import torch; from transformers import AutoModelForCausalLM, PreTrainedModel; import winnow",
            marks=pytest.mark.slow,
        ),
        "import torch, transformers.modeling_utils; import winnow; from transformers import AutoModelForCausalLM",
        pytest.param(
            "import torch, transformers.masking_utils; import winnow; from transformers import AutoModelForCausalLM",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_either_may_be_imported_first(imports):
    passes(imports + ASK)


def test_the_compressed_cache_is_registered_with_itself():
    passes(
        "from winnow import CompressedCache\n"
        "from transformers import AttentionInterface\n"
        "from winnow.cache.attention import winnow_attention\n"
        "assert AttentionInterface()['winnow'] is winnow_attention"
    )


def test_threads_may_use_names_at_once():
    passes(
        "import threading, winnow\n"
        "failed = []\n"
        "def work(name):\n"
        "    try:\n"
        "        getattr(winnow, name)\n"
        "    except BaseException as problem:\n"
        "        failed.append(problem)\n"
        "threads = [threading.Thread(target=work, args=(name,)) for name in winnow.__all__]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()\n"
        "assert not failed, failed\n"
        "from transformers import AttentionInterface, AttentionMaskInterface\n"
        "assert 'winnow' in AttentionInterface() and 'winnow' in AttentionMaskInterface()\n"
    )


@pytest.mark.parametrize(("use", "imported"), [("model(ids)", "winnow.cache"), ("winnow.diagnostics",) * 2])
def test_one_thread_at_a_time_imports(use, imported):
    """Two that import parts of winnow at once can meet half-loaded modules, and wait for each other."""
    passes(
        "import torch, winnow\n"
        "from threading import Thread\n"
        "from transformers import AutoModelForCausalLM\n"
        "from winnow.bundled import MODEL_PATH\n"
        "model = AutoModelForCausalLM.from_pretrained(MODEL_PATH)\n"
        "model.set_attn_implementation('winnow')\n"
        "ids = torch.tensor([[5, 6, 7]])\n"
        "free = []\n"
        "class Look:\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name == '{imported}':\n"
        "            other = Thread(target=lambda: free.append(winnow.deferred.IMPORTING.acquire(blocking=False)))\n"
        "            other.start()\n"
        "            other.join()\n"
        "sys.meta_path.insert(0, Look())\n"
        f"{use}\n"
        "assert free == [False], free\n"
    )


def test_a_transformers_that_cannot_be_imported_fails_as_usual(tmp_path):
    package = tmp_path / "transformers"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "modeling_utils.py").write_text("raise RuntimeError('broken')")
    process = python("import winnow, transformers.modeling_utils", paths=(tmp_path,))
    assert process.stderr.strip().endswith("RuntimeError: broken")
    process = python("import winnow, transformers.masking_utils", paths=(tmp_path,))
    assert process.stderr.strip().endswith("No module named 'transformers.masking_utils'")


def test_the_source_of_transformers_is_found():
    passes(
        "import inspect, winnow, transformers.masking_utils as masking\n"
        "assert 'AttentionMaskInterface' in inspect.getsource(masking)\n"
        "assert masking.__spec__.loader is masking.__loader__\n"
        "assert not type(masking.__loader__).__module__.startswith('winnow')\n"
    )
