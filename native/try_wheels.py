"""Wheels of Winnow, each tried on its own: the kernels that it loads, its warnings, and an answer of the bundled model.

    python native/try_wheels.py WHEEL …

Torch and transformers come from the environment that runs this; Winnow comes from the wheel alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

_PROGRAM = """
import warnings
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    import winnow
    from winnow.kernels import backend
    kernels = backend()
ours = [str(each.message) for each in told if "Winnow" in str(each.message)]
print(winnow.__file__, kernels, len(ours), sep="\\n")
"""
_DOCUMENT = "the favorite fruit of alice is plum . the favorite color of bob is green ."


def main(wheels: list[str]) -> int:
    """1 where a wheel does not do what its name says."""
    if not wheels:
        print(__doc__, file=sys.stderr)
        return 2
    return max(map(_tried, map(Path, wheels)))


def _tried(wheel: Path) -> int:
    with tempfile.TemporaryDirectory() as folder:
        install = ["-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, str(wheel)]
        subprocess.run([sys.executable, *install], check=True)
        place, kernels, warned = _run(folder, "-c", _PROGRAM).splitlines()
        if not place.startswith(folder):
            raise SystemExit(f"{place} was imported instead of {wheel.name}")
        told = f"{kernels}, {warned} warning(s)"
        pure = wheel.name.endswith("-none-any.whl")
        fits = (kernels == "torch reference", int(warned)) == (pure, int(pure))
        document = Path(folder) / "document.txt"
        document.write_text(_DOCUMENT)
        question = ("--document", str(document), "--question", "what is the favorite fruit of alice ?")
        answered = "plum" in _run(folder, "-m", "winnow.cli", "run", *question, "--budget", "64")
    print(f"{wheel.name}: {told}, {'answers' if answered else 'does not answer'}")
    return 0 if fits and answered else 1


def _run(folder: str, *arguments: str) -> str:
    """Standard output of a Python that finds Winnow in a folder alone. Editable installations need a .pth file read."""
    path = os.pathsep.join([folder, sysconfig.get_path("purelib")])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [getattr(sys, "_base_executable", sys.executable), *arguments]
    done = subprocess.run(command, check=False, text=True, stdout=subprocess.PIPE, env=environment, cwd=folder)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)[:80]} failed with exit code {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
