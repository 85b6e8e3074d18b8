"""The closing line of a run: signed, with the hash of every file of the run folder.

    ledger/results.jsonl    one line; one more for every later change that the signer made himself (retention)

It stands in a file of its own because it covers `run.json`, whose timings differ from run to run: `ledger.jsonl` of the
same seed stays the same bytes. `kohort.privacy.ledger.verify_results` checks it with code of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from kohort.errors import IntegrityError
from kohort.files import disk_errors, write_atomic
from kohort.privacy.ledger.ledger import GENESIS, HEAD_FILE, canonical
from kohort.privacy.ledger.signing import Signer
from kohort.purposes import Purpose

__all__ = ["RESULTS_FILE", "amend_results", "bind_results", "hash_of_file"]

RESULTS_FILE: Final = "results.jsonl"
_ASIDE = {"state", "log"}
"""The state goes when the run ends; logs are not results."""
_BY_ITSELF = {f"ledger/{HEAD_FILE}", f"ledger/{RESULTS_FILE}"}
"""The head is named as such, and this line cannot hold its own hash."""
_CHUNK = 1 << 20


def bind_results(folder: Path, *, signer: Signer, run: str, last: Mapping[str, bytes]) -> None:
    """Sign the hashes of all files of a run folder, as its closing ledger line.

    Args:
        folder: The run folder; its ledger is sealed.
        signer: Who signed the ledger's head.
        run: The run's identifier.
        last: By name, what is written after this line: `run.json`, which says that the run is finished.
    """
    files = {path: hash_of_file(folder / path) for path in _files_of(folder)}
    files |= {name: _digest(content) for name, content in last.items()}
    line = _line(folder, signer=signer, run=run, files=files, number=0, prev=GENESIS, reason="")
    write_atomic(folder / "ledger" / RESULTS_FILE, line)


def amend_results(folder: Path, *, signer: Signer, run: str, number: int, prev: str, reason: str) -> None:
    """Sign the hashes anew after the signer changed the folder himself, with the reason; earlier lines stay.

    Args:
        folder: The run folder.
        signer: Who signed the lines before.
        run: The run's identifier.
        number: How many lines there are.
        prev: The hash of the last one.
        reason: What was changed, and why; never a cell.

    Raises:
        IntegrityError: There is no result line to amend.
    """
    place = folder / "ledger" / RESULTS_FILE
    if not place.is_file():
        raise IntegrityError(f"{place} is missing")
    with disk_errors(place):
        before = place.read_bytes()
    files = {path: hash_of_file(folder / path) for path in _files_of(folder)}
    line = _line(folder, signer=signer, run=run, files=files, number=number, prev=prev, reason=reason)
    write_atomic(place, before + line)


def hash_of_file(path: Path) -> str:
    """BLAKE2b of a file's content, read in parts.

    Args:
        path: The file.

    Returns:
        32 bytes in hexadecimal.
    """
    state = hashlib.blake2b(digest_size=32)
    with disk_errors(path), path.open("rb") as file:
        while part := file.read(_CHUNK):
            state.update(part)
    return state.hexdigest()


def _files_of(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*")):
        place = path.relative_to(folder)
        if path.is_file() and place.parts[0] not in _ASIDE and place.as_posix() not in _BY_ITSELF:
            yield place.as_posix()


def _line(
    folder: Path, *, signer: Signer, run: str, files: Mapping[str, str], number: int, prev: str, reason: str
) -> bytes:
    statement: dict[str, Any] = {
        "version": 1,
        "event": "result",
        "run": run,
        "seq": number,
        "prev": prev,
        "reason": reason,
        "head": hash_of_file(folder / "ledger" / HEAD_FILE),
        "files": dict(files),
        "signer": signer.record,
    }
    signature = signer.sign(canonical(statement).encode(), purpose=Purpose.RESULT)
    return (canonical({**statement, "signature": signature}) + "\n").encode()


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=32).hexdigest()
