"""The layout of a MIMIC-III folder.

It holds PATIENTS, ADMISSIONS, ICUSTAYS and DIAGNOSES_ICD, and for the features CHARTEVENTS and LABEVENTS: CSV, CSV.gz
or Parquet, in upper or lower case; the files of the open demo may begin with `mimic3demo_`.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["EVENTS", "NEEDED", "find_mimic3"]

NEEDED = ("patients", "admissions", "icustays", "diagnoses_icd")
EVENTS = ("chartevents", "labevents")
ENDINGS = (".parquet", ".csv", ".csv.gz")
PREFIXES = ("", "mimic3demo_")
SUBFOLDER = "mimic3"


def find_mimic3(root: Path) -> dict[str, Path] | None:
    """Find the files of the layout in a folder or in its folder `mimic3`, which comes first.

    Args:
        root: The folder.

    Returns:
        The files by table; None if one of the four needed tables is missing.
    """
    for folder in (root / SUBFOLDER, root):
        if not folder.is_dir():
            continue
        names = {path.name.lower(): path for path in sorted(folder.iterdir()) if path.is_file()}
        for prefix in PREFIXES:
            found = {
                table: names[f"{prefix}{table}{ending}"]
                for table in (*NEEDED, *EVENTS)
                for ending in reversed(ENDINGS)
                if f"{prefix}{table}{ending}" in names
            }
            if all(table in found for table in NEEDED):
                return found
    return None
