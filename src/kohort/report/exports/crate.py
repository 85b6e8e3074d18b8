"""A Five Safes RO-Crate of a run: what was done, by which plan, with which checks, as linked data in one folder.

The crate holds the evidence records, the annex and the model card; the run's own files are named by their SHA-256, so
that whoever has them can tell that they are the same. Rows, received tables and ledgers are not in it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kohort.files import write_atomic
from kohort.registry import version
from kohort.report.runs import Run
from kohort.report.verdict import verdict_on

__all__ = ["METADATA", "write_crate"]

METADATA: Final = "ro-crate-metadata.json"
_CRATE: Final = "https://w3id.org/ro/crate/1.1"
_PROFILE: Final = "https://w3id.org/5s-crate/0.4"
_NAMED: Final = ("plan.json", "run.json", "ledger/head.json", "model/model.json", "model/model.safetensors")


def write_crate(out: Path, run: Run, folder: Path, files: Mapping[str, str]) -> Path:
    """Write the crate.

    Args:
        out: A new folder.
        run: The run; its ledger was verified.
        folder: The run folder, of which hashes are taken.
        files: The content of the crate's own files by name.

    Returns:
        The path of the metadata.
    """
    for name, content in files.items():
        write_atomic(out / name, content.encode())
    graph = [_descriptor(), _root(run, files), *_files(files), *_run_files(folder), *_actions(run)]
    crate = {"@context": f"{_CRATE}/context", "@graph": graph}
    write_atomic(out / METADATA, (json.dumps(crate, indent=1, allow_nan=False) + "\n").encode())
    return out / METADATA


def _descriptor() -> dict[str, Any]:
    return {
        "@id": METADATA,
        "@type": "CreativeWork",
        "conformsTo": {"@id": _CRATE},
        "about": {"@id": "./"},
    }


def _root(run: Run, files: Mapping[str, str]) -> dict[str, Any]:
    verdict = verdict_on(run)
    return {
        "@id": "./",
        "@type": "Dataset",
        "conformsTo": {"@id": _PROFILE},
        "name": f"A run of {run.method} over {run.sites:,} sites",
        "description": f"{verdict.headline}. {verdict.budget}.",
        "hasPart": [{"@id": name} for name in files],
        "mainEntity": {"@id": "#run"},
        "mentions": [{"@id": "#run"}, {"@id": "#integrity"}, {"@id": "#disclosure"}],
    }


def _files(files: Mapping[str, str]) -> list[dict[str, Any]]:
    return [
        {
            "@id": name,
            "@type": "File",
            "encodingFormat": "application/json" if name.endswith(".json") else "text/markdown",
            "contentSize": str(len(content.encode())),
            "sha256": hashlib.sha256(content.encode()).hexdigest(),
        }
        for name, content in files.items()
    ]


def _run_files(folder: Path) -> list[dict[str, Any]]:
    """The run's own files, which stay where they are."""
    found = [(name, folder / name) for name in _NAMED if (folder / name).is_file()]
    return [
        {
            "@id": f"#{name}",
            "@type": "CreativeWork",
            "name": name,
            "identifier": f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}",
        }
        for name, path in found
    ]


def _actions(run: Run) -> list[dict[str, Any]]:
    signed = run.ledger is not None and bool(run.ledger.signed_by)
    refused = len(run.refused)
    return [
        {
            "@id": "#run",
            "@type": "CreateAction",
            "name": f"kohort run, method {run.method}",
            "instrument": {"@id": "#kohort"},
            "actionStatus": "http://schema.org/CompletedActionStatus",
            "object": [{"@id": "#plan.json"}],
            "result": [{"@id": "#model/model.json"}],
        },
        {"@id": "#kohort", "@type": "SoftwareApplication", "name": "kohort", "version": version("kohort")},
        {
            "@id": "#integrity",
            "@type": "AssessAction",
            "additionalType": {"@id": "https://w3id.org/shp#CheckValue"},
            "name": "Ledger verified: " + ("its signer is known here" if signed else "its signer is not known here"),
            "identifier": run.ledger_head,
            "actionStatus": "http://schema.org/CompletedActionStatus",
            "object": {"@id": "#ledger/head.json"},
        },
        {
            "@id": "#disclosure",
            "@type": "AssessAction",
            "additionalType": {"@id": "https://w3id.org/shp#DisclosureCheck"},
            "name": f"Every release passed its site's door; {refused:,} sites refused",
            "actionStatus": "http://schema.org/PotentialActionStatus",
            "description": "Output checking by a person is outside kohort and has to be recorded by whoever does it.",
            "object": {"@id": "./"},
        },
    ]
