"""Known vulnerabilities of installed packages; what could not be looked up is named, and counts as a failure.

python .ci/audit.py SITE-PACKAGES
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

OWN = "winnow-kv"


def main(folder: str) -> int:
    """0 where every package was looked up and none is known to be vulnerable, else 1."""
    command = [sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off", "--path", folder]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        packages: list[dict[str, Any]] = json.loads(found.stdout)["dependencies"]
    except (ValueError, KeyError):
        last = next(reversed(found.stderr.strip().splitlines()), "pip-audit said nothing")
        print(f"Dependencies were NOT CHECKED: {last}")
        return 1
    others = [package for package in packages if package["name"] != OWN]
    unknown = [package["name"] for package in others if "skip_reason" in package]
    vulnerable = [(package, each) for package in others for each in package.get("vulns", ())]
    for package, each in vulnerable:
        fixed = ", ".join(each["fix_versions"]) or "no version yet"
        print(f"{package['name']} {package['version']}: {each['id']}, fixed in {fixed}")
    if unknown:
        print(f"{len(unknown)} of {len(others)} dependencies were NOT CHECKED, the index does not tell of them:")
        print(f"  {', '.join(unknown)}")
    print(f"{len(others) - len(unknown)} dependencies checked, {len(vulnerable)} known vulnerabilities")
    return 1 if vulnerable or unknown else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
