"""The software bill of materials of an environment: CycloneDX 1.5 JSON, and the licences that packages declare.

    python tools/sbom.py > sbom.json         every installed package with version, licence and address
    python tools/sbom.py --licences          one line per package; exit 1 where a licence is unknown or not allowed

Made from what is installed, without a network: the metadata of distributions. The same environment, the same bytes.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from importlib.metadata import Distribution, distributions

ALLOWED = re.compile(
    r"MIT|BSD|Apache|ISC|PSF|Python Software Foundation|MPL|Mozilla|Zlib|Unlicense|0BSD|HPND|CC0|Public Domain|LGPL",
    re.I,
)


def licence_of(package: Distribution) -> str:
    """What a package declares: its expression, else its classifiers, else its licence field or file."""
    metadata = package.metadata
    expression = metadata.get("License-Expression")
    if expression:
        return str(expression)
    named = [
        line.rpartition(" :: ")[2] for line in metadata.get_all("Classifier") or [] if line.startswith("License ::")
    ]
    if named:
        return " AND ".join(sorted(named))
    lines = (metadata.get("License") or "").strip().splitlines()
    return lines[0].strip() if lines else _title_of_file(package)


def _title_of_file(package: Distribution) -> str:
    """The first line of the licence file that a package brings, which names the licence in the usual ones."""
    for path in package.files or []:
        if path.name.upper().startswith(("LICENSE", "LICENCE", "COPYING")):
            return next((line.strip() for line in path.read_text().splitlines() if line.strip()), "")
    return ""


def packages() -> list[Distribution]:
    """What is installed, each name once, by name."""
    found = {
        re.sub(r"[-_.]+", "-", one.metadata["Name"]).lower(): one for one in distributions() if one.metadata["Name"]
    }
    return [found[name] for name in sorted(found)]


def bill() -> dict[str, object]:
    """The bill of materials."""
    components = []
    for one in packages():
        name, licence = one.metadata["Name"], licence_of(one)
        address = f"pkg:pypi/{re.sub(r'[-_.]+', '-', name).lower()}@{one.version}"
        entry: dict[str, object] = {
            "type": "library",
            "bom-ref": address,
            "name": name,
            "version": one.version,
            "purl": address,
        }
        if licence:
            entry["licenses"] = [{"license": {"name": licence}}]
        components.append(entry)
    return {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "components": components}


def main() -> int:
    """Print the bill, or the licences."""
    parser = argparse.ArgumentParser(description="Software bill of materials.")
    parser.add_argument("--licences", action="store_true")
    if not parser.parse_args().licences:
        print(json.dumps(bill(), indent=1, sort_keys=True))
        return 0
    doubtful = 0
    for one in packages():
        licence = licence_of(one)
        known = ALLOWED.search(licence) is not None
        doubtful += not known
        print(f"{'' if known else 'LOOK AT '}{one.metadata['Name']} {one.version}: {licence or 'declares nothing'}")
    return 1 if doubtful else 0


if __name__ == "__main__":
    sys.exit(main())
