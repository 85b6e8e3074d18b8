"""What a release is made of: known vulnerabilities of the pinned packages, and a wheel whose bytes repeat.

    python tools/supply.py

Builds the wheel twice and compares the bytes. Asks pip-audit about every line of constraints.txt, from an environment
of its own in out/pip-audit. Without a network nothing is asked, and the output says so: that is no failure.

Exit 1 where a vulnerability is known, or the two wheels differ. Licences: `python tools/sbom.py --licences`.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PLACE = ROOT / "out" / "pip-audit"
PATIENCE = 120
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
EPOCH = "315532800"
"""The first moment that a zip file can hold."""


def wheel_hash(place: Path, *, tools: Path) -> str:
    """The hash of a wheel built now.

    Args:
        place: An empty folder.
        tools: A folder with what builds it, and nothing else.

    Returns:
        SHA-256, in hexadecimal digits.
    """
    build = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(place), str(ROOT)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": EPOCH, "PYTHONPATH": str(tools)}
    subprocess.run(build, check=True, env=environment)
    (wheel,) = place.glob("*.whl")
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


def repeats() -> bool:
    """Whether two builds give the same bytes; both are made by the same tools, which are installed once."""
    with tempfile.TemporaryDirectory() as made:
        tools, one, other = (Path(made) / name for name in ("tools", "one", "other"))
        needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
        subprocess.run([*PIP, "install", "--target", str(tools), *needed], check=True)
        first, second = wheel_hash(one, tools=tools), wheel_hash(other, tools=tools)
    print(f"wheel: {first}" if first == second else "wheel: two builds differ")
    return first == second


def answers() -> list[dict[str, Any]] | None:
    """What pip-audit says of every pinned package; None where it cannot be had."""
    program = PLACE / "bin" / "pip-audit"
    if not program.exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(PLACE)], check=True)
        pip = (sys.executable, "-m", "pip", "--python", str(PLACE / "bin" / "python"))
        if _said(*pip, "install", "--quiet", "pip-audit") is None:
            return None
    asked = ("-r", str(ROOT / "constraints.txt"), "--no-deps", "--disable-pip", "--format", "json")
    said = _said(str(program), *asked, fine=(0, 1))  # 1: it found some
    found: list[dict[str, Any]] | None = None if said is None else json.loads(said)["dependencies"]
    return found


def _said(*words: str, fine: tuple[int, ...] = (0,)) -> str | None:
    """What a command prints; None where it fails, or waits for a network in vain."""
    try:
        done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return None
    return done.stdout if done.returncode in fine else None


def vulnerable(found: list[dict[str, Any]] | None) -> list[str]:
    """Known vulnerabilities, one line each.

    Args:
        found: The answers of pip-audit; None without any.

    Returns:
        Package, version and the names of its vulnerabilities.
    """
    asked = [one for one in found or [] if "skip_reason" not in one]
    if not asked:
        print("vulnerabilities: not asked, there is no network or no pip-audit")
        return []
    lines = [
        f"{one['name']} {one['version']}: {', '.join(each['id'] for each in one['vulns'])}"
        for one in asked
        if one["vulns"]
    ]
    print(f"vulnerabilities: {len(asked)} packages asked, {len(found or []) - len(asked)} not, {len(lines)} with some")
    return lines


def main() -> int:
    """Look at both."""
    same, lines = repeats(), vulnerable(answers())
    print("\n".join(lines), end="\n" if lines else "")
    return 0 if same and not lines else 1


if __name__ == "__main__":
    sys.exit(main())
