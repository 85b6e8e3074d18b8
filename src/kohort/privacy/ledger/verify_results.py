"""Check the files of a run folder against the run's signed closing line.

This module shares no code with the writer. A changed or missing file is an error that names it, and so is a file that
was added to the model or to what the hub keeps; other files that are not covered are listed.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kohort.errors import IntegrityError
from kohort.privacy.ledger.checks import (
    START,
    SignedBy,
    canonical_bytes,
    digest_of,
    parse_line,
    raw_lines,
    signed_statement,
)

__all__ = ["BEFORE", "BoundResults", "verify_results"]

BEFORE: Final = "written before results were bound to the ledger: run.json and the model are not covered by it"
_RESULTS = "results.jsonl"
_PURPOSE = "result"
_FIELDS = {"version", "event", "run", "seq", "prev", "reason", "head", "files", "signer", "signature"}
_OF_A_RUN = ("run.json", "model")
_UNFINISHED = Path("state") / "identity.json"
_CLOSED = ("model", "hub", "ledger")
"""Folders that programs read from: nothing may be added to them."""
_BY_ITSELF = {"ledger/head.json": "", f"ledger/{_RESULTS}": ""}


@dataclass(frozen=True, kw_only=True)
class BoundResults:
    """What of a run folder the closing line covers."""

    files: int = 0
    uncovered: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    lines: int = 0
    last: str = START
    """Number of result lines, and the hash of the last one."""
    run: str = ""


def verify_results(place: Path, *, signer: SignedBy, before: bool) -> BoundResults:
    """Check every file of a run folder against its closing line.

    Args:
        place: The ledger folder, whose head was verified.
        signer: Who signed the head; the closing line must have the same signer.
        before: Whether the ledger was written before results were bound.

    Returns:
        What is covered; nothing for the ledger of a site, of an unfinished run, or without its run folder.

    Raises:
        IntegrityError: A file or the closing line was changed, removed or added; the message names the file.
    """
    folder = place.parent if place.name == "ledger" else None
    is_run = folder is not None and any((folder / name).exists() for name in _OF_A_RUN)
    if not (place / _RESULTS).is_file():
        if before or not is_run:
            return BoundResults(notes=(BEFORE,) if before and is_run else ())
        if folder is not None and (folder / _UNFINISHED).is_file() and not (folder / "run.json").exists():
            return BoundResults(notes=("the run is not finished: nothing of it is bound yet",))
        raise IntegrityError(
            f"{_RESULTS} is missing: nothing says what the run's files were",
            hint="The run was interrupted while it was written, or somebody removed the line: run the plan again",
        )
    bound, files = _read(place, signer)
    if folder is None or not (is_run or any((folder / name).exists() for name in files if "/" not in name)):
        return BoundResults(notes=("the run's files are not beside this ledger and were not checked",))
    for name, wanted in files.items():
        _check_file(folder, name, wanted)
    uncovered = _others(folder, files)
    return BoundResults(
        files=len(files), uncovered=uncovered, lines=bound.lines, last=bound.last, run=bound.run, notes=bound.notes
    )


def _read(place: Path, signer: SignedBy) -> tuple[BoundResults, dict[str, str]]:
    """Check the chain of result lines. The last one counts."""
    last, number, notes, line = START, 0, [], {}
    for raw in raw_lines(place / _RESULTS):
        line = parse_line(raw, _RESULTS)
        if canonical_bytes(line) != raw or set(line) != _FIELDS or line["version"] != 1:
            raise IntegrityError(f"{_RESULTS} is not in the form this version of kohort writes")
        if signed_statement(line, purpose=_PURPOSE, where=_RESULTS) != signer:
            raise IntegrityError(f"{_RESULTS} is signed by another key than the ledger's head")
        if (line["seq"], line["prev"]) != (number, last):
            raise IntegrityError(f"{_RESULTS}: a line is missing or moved")
        last, number = digest_of(raw), number + 1
        notes += [f"changed by the signer: {line['reason']}"] if line["reason"] else []
    if not line:
        raise IntegrityError(f"{_RESULTS} is empty")
    if line["head"] != _hash(place / "head.json"):
        raise IntegrityError(f"{_RESULTS} belongs to another ledger than the one beside it")
    files: Any = line["files"]
    if not isinstance(files, dict) or not all(isinstance(text, str) for text in files.values()):
        raise IntegrityError(f"{_RESULTS} does not list files")
    return BoundResults(lines=number, last=last, run=str(line["run"]), notes=tuple(notes)), files


def _check_file(folder: Path, name: str, wanted: str) -> None:
    path = folder / name
    if ".." in Path(name).parts or Path(name).is_absolute():
        raise IntegrityError(f"{_RESULTS} names a file outside the run folder")
    if not path.is_file():
        raise IntegrityError(f"{name} is missing: the run's signed closing line lists it", hint="Restore it")
    if _hash(path) != wanted:
        raise IntegrityError(
            f"{name} was changed after the run: it is not what the run's signed closing line says",
            hint="Restore it, or run the plan again",
        )


def _others(folder: Path, files: dict[str, str]) -> tuple[str, ...]:
    """Files beside those that are covered. In folders that are read by programs there may be none."""
    found = []
    for path in sorted(folder.rglob("*")):
        place = path.relative_to(folder)
        if path.is_dir() or place.as_posix() in files | _BY_ITSELF or place.parts[0] == "state":
            continue
        if place.parts[0] in _CLOSED:
            raise IntegrityError(
                f"{place.as_posix()} was added after the run: its signed closing line does not list it",
                hint="Remove it",
            )
        found.append(place.as_posix())
    return tuple(found)


def _hash(path: Path) -> str:
    state = hashlib.blake2b(digest_size=32)
    try:
        with path.open("rb") as file:
            while part := file.read(1 << 20):
                state.update(part)
    except OSError as error:
        raise IntegrityError(f"{path.name} cannot be read") from error
    return state.hexdigest()
