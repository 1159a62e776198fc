"""Triton's interpreter without its slowest habit: to make the language its own in every function that kernels call."""

from __future__ import annotations

from typing import Any

from triton.language import core
from triton.runtime import interpreter


def patch_once() -> None:
    """From now on the language is made the interpreter's own once for each launch; nothing changes but the time.

    Releases that do so in another way than the one that this was written for are left alone.
    """
    scope, patch = getattr(interpreter, "_LangPatchScope", None), getattr(interpreter, "_patch_lang", None)
    if scope is None or patch is None or hasattr(patch, "once"):
        return

    def once(function: Any) -> Any:
        seen = [each for each in function.__globals__.values() if each is interpreter.tl or each is core]
        patched = bool(seen) and not any(core.is_builtin(each.load) for each in seen)
        return scope() if patched else patch(function)

    once.once = True  # type: ignore[attr-defined]
    interpreter._patch_lang = once
