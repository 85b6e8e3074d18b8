"""Checkpoints: after every round, all that is needed to go on as if nothing had happened.

Two files take turns, so that one of them is always whole; each carries a hash of its content. A checkpoint holds
the state of the plan and of the sites, and no row of any site. The history grows with every round, so it stands in a
file of its own that lines are appended to; a checkpoint says how many of them are its own, and their hash.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.errors import ConfigError, IntegrityError
from kohort.files import disk_errors, write_atomic, write_whole
from kohort.protocol.hub import Resume
from kohort.protocol.wire import Payload, decode, encode

__all__ = ["Checkpoint", "Checkpoints"]

FORMAT = 5
"""Raised whenever what a checkpoint holds changes its form; version 1 had none, and 2 held weights beside the state.
Still read are 3, which held what all sites share once per site, and 4, which held the history."""
_READ = frozenset({3, 4, FORMAT})
HISTORY_FILE = "history.jsonl"
SiteState = Mapping[str, Mapping[str, NDArray[Any]]]


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A finished round."""

    round: int
    state: Mapping[str, NDArray[Any]]
    """What the plan needs to go on, whatever kind of model it trains."""
    sites: SiteState
    """What each site keeps between rounds, by site name."""
    ledger_lines: int
    """How many lines the ledger held."""
    facts: Mapping[str, Any]
    """History, costs and exclusions so far: plain JSON values."""

    @property
    def resume(self) -> Resume:
        """What a plan needs of it."""
        return Resume(round=self.round, state=self.state)


class Checkpoints:
    """The two files of a run folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written = 0
        self._hash = hashlib.blake2b(digest_size=32)

    def save(self, checkpoint: Checkpoint) -> None:
        """Append what the history has gained, then write over the older of the two files, in one step."""
        kept = self._append(checkpoint.facts.get("history", ()))
        content = encode(_to_payload(checkpoint, history=kept))
        digest = hashlib.blake2b(content, digest_size=32).digest()
        write_atomic(self._folder / f"checkpoint-{checkpoint.round % 2}.khrt", digest + content, private=True)

    def _append(self, history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Bring the file of the history up to date; the first time it is written as a whole."""
        lines = b"".join(json.dumps(item).encode() + b"\n" for item in history[self._written :])
        path = self._folder / HISTORY_FILE
        if self._written:
            with disk_errors(path), path.open("ab", buffering=0) as file:
                write_whole(file, lines)
        else:
            write_atomic(path, lines, private=True)
        self._hash.update(lines)
        self._written = len(history)
        return {"lines": self._written, "hash": self._hash.hexdigest()}

    def latest(self, *, ledger_lines: int) -> tuple[Checkpoint | None, tuple[str, ...]]:
        """The newest whole checkpoint the ledger reaches up to, and what to say about the others.

        A machine that lost power may have kept a checkpoint and lost the ledger lines before it; going on from there
        would leave releases unrecorded, so such a checkpoint does not count.
        """
        found, notes = [], []
        for path in sorted(self._folder.glob("checkpoint-*.khrt")):
            try:
                checkpoint = _read(path)
            except IntegrityError as error:
                notes.append(f"{error.message}; the checkpoint before it is used")
                continue
            if checkpoint.ledger_lines <= ledger_lines:
                found.append(checkpoint)
            else:
                notes.append(f"{path.name} is ahead of the ledger; the checkpoint before it is used")
        return max(found, key=lambda item: item.round, default=None), tuple(notes)


def _to_payload(checkpoint: Checkpoint, *, history: Mapping[str, Any]) -> Payload:
    arrays = {f"plan/{name}": array for name, array in checkpoint.state.items()}
    owners: dict[str, list[str]] = {}
    for site, kept in checkpoint.sites.items():
        for name in kept:
            owners.setdefault(name, []).append(site)
    for name, sites in owners.items():
        held = [checkpoint.sites[site][name] for site in sites]
        if all(array is held[0] for array in held):  # what follows from the same totals: sites of a process share it
            arrays[f"sites/{name}"] = held[0]
        else:
            arrays[f"site/{name}"] = np.stack(held)
    facts = {
        "round": checkpoint.round,
        "format": FORMAT,
        "owners": owners,
        "ledger_lines": checkpoint.ledger_lines,
        "facts": {**checkpoint.facts, "history": history},
    }
    return Payload(arrays=arrays, blobs={"facts": json.dumps(facts).encode()})


def _read(path: Path) -> Checkpoint:
    stored = path.read_bytes()
    content = stored[32:]
    if hashlib.blake2b(content, digest_size=32).digest() != stored[:32]:
        raise IntegrityError(f"{path.name} is damaged")
    payload = decode(content)
    facts = json.loads(payload.blobs["facts"])
    if facts.get("format") not in _READ:
        raise ConfigError(
            f"{path.name} was written by another version of kohort (checkpoint format {facts.get('format', 1)})",
            hint="Resume the run with the version that began it, or start anew with --force",
        )
    sites: dict[str, dict[str, NDArray[Any]]] = {}
    for name, owners in facts["owners"].items():
        shared = payload.arrays.get(f"sites/{name}")
        each = payload.arrays[f"site/{name}"] if shared is None else [shared] * len(owners)
        for site, kept in zip(owners, each, strict=True):
            sites.setdefault(site, {})[name] = kept
    state = {name.removeprefix("plan/"): array for name, array in payload.arrays.items() if name.startswith("plan/")}
    return Checkpoint(
        round=facts["round"],
        state=state,
        sites=sites,
        ledger_lines=facts["ledger_lines"],
        facts={**facts["facts"], "history": _history(path, facts["facts"].get("history", []))},
    )


def _history(path: Path, stored: Any) -> list[dict[str, Any]]:
    """The history of a checkpoint, which its format 4 held itself."""
    if isinstance(stored, list):
        return stored
    try:
        lines = (path.parent / HISTORY_FILE).read_bytes().splitlines(keepends=True)[: stored["lines"]]
    except FileNotFoundError:
        lines = []
    if hashlib.blake2b(b"".join(lines), digest_size=32).hexdigest() != stored["hash"]:
        raise IntegrityError(
            f"{path.name} does not match {HISTORY_FILE} beside it",
            hint="Restore both files from one copy of the run's folder, or start the run again without --resume",
        )
    return [json.loads(line) for line in lines]
