"""Fold the waiting change fragments into CHANGELOG.md under a new version, and remove them."""

from __future__ import annotations

import sys
from pathlib import Path

KINDS = ("security", "added", "changed", "fixed", "removed")
HERE = Path(__file__).parent
MARK = "<!-- releases -->\n"


def collect(version: str, date: str) -> None:
    """Write the section of `version` and delete the fragments it came from."""
    section, used = [f"## {version} ({date})\n"], []
    for kind in KINDS:
        fragments = sorted(HERE.glob(f"*.{kind}.md"))
        if fragments:
            section.append(f"\n### {kind.capitalize()}\n\n")
            section += [f"- {' '.join(path.read_text(encoding='utf-8').split())}\n" for path in fragments]
            used += fragments
    changelog = HERE.parent / "CHANGELOG.md"
    text = changelog.read_text(encoding="utf-8")
    changelog.write_text(text.replace(MARK, MARK + "\n" + "".join(section), 1), encoding="utf-8")
    for path in used:
        path.unlink()


if __name__ == "__main__":
    collect(*sys.argv[1:3])
