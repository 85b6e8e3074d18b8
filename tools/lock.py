"""Write requirements.lock: what an installation of kohort consists of, with the hash of every file.

    python tools/lock.py            asks pip what it would install by constraints.txt, and writes the file

A hash holds for the file that pip chose here: Linux on x86_64, Python 3.11. An installation that takes nothing else:

    pip install --require-hashes --only-binary :all: -r requirements.lock
    pip install --no-deps .
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
HEAD = "# Written by tools/lock.py for Linux on x86_64 and Python 3.11; do not edit.\n"


def needed() -> list[str]:
    """What kohort itself asks for, and Flower for deployments.

    Returns:
        Requirements, as in pyproject.toml.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["flower"]]


def report() -> dict[str, Any]:
    """What pip would install into an empty environment."""
    asked = ["--dry-run", "--ignore-installed", "--quiet", "--only-binary", ":all:", "--report", "-"]
    command = [sys.executable, "-m", "pip", "install", *asked, "--constraint", str(ROOT / "constraints.txt"), *needed()]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return found


def lines(found: dict[str, Any]) -> list[str]:
    """One line per package.

    Args:
        found: What `report` returned.

    Returns:
        `name==version --hash=sha256:...`, in order.
    """
    made = []
    for entry in found["install"]:
        about, file = entry["metadata"], entry["download_info"]["archive_info"]
        made.append(f"{about['name'].lower()}=={about['version']} --hash=sha256:{file['hashes']['sha256']}")
    return sorted(made)


if __name__ == "__main__":
    LOCK.write_text(HEAD + "\n".join(lines(report())) + "\n", encoding="utf-8")
    print(f"{LOCK.name}: {len(LOCK.read_text(encoding='utf-8').splitlines()) - 1} packages")
