"""Checkpoints: after every round, all that is needed to go on as if nothing had happened.

Two files take turns, so that one of them is always whole; each carries a hash of its content. A checkpoint holds
the state of the plan and of the sites, and the history: no row of any site.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.errors import ConfigError, IntegrityError
from kohort.files import write_atomic
from kohort.protocol.hub import Resume
from kohort.protocol.wire import Payload, decode, encode

__all__ = ["Checkpoint", "Checkpoints"]

FORMAT = 4
"""Raised whenever what a checkpoint holds changes its form; version 1 had none, 2 held weights beside the state, and 3
held what all sites share once per site, which is still read."""
_READ = frozenset({3, FORMAT})
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

    def save(self, checkpoint: Checkpoint) -> None:
        """Write over the older of the two, in one step."""
        content = encode(_to_payload(checkpoint))
        digest = hashlib.blake2b(content, digest_size=32).digest()
        write_atomic(self._folder / f"checkpoint-{checkpoint.round % 2}.khrt", digest + content, private=True)

    def latest(self, *, ledger_lines: int) -> tuple[Checkpoint | None, tuple[str, ...]]:
        """The newest whole checkpoint the ledger reaches up to, and what to say about the others.

        A machine that lost power may have kept a checkpoint and lost the ledger lines before it; going on from there
        would leave releases unrecorded, so such a checkpoint does not count.
        """
        found, notes = [], []
        for path in sorted(self._folder.glob("checkpoint-*.khrt")):
            try:
                checkpoint = _read(path)
            except IntegrityError:
                notes.append(f"{path.name} is damaged; the checkpoint before it is used")
                continue
            if checkpoint.ledger_lines <= ledger_lines:
                found.append(checkpoint)
            else:
                notes.append(f"{path.name} is ahead of the ledger; the checkpoint before it is used")
        return max(found, key=lambda item: item.round, default=None), tuple(notes)


def _to_payload(checkpoint: Checkpoint) -> Payload:
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
        "facts": dict(checkpoint.facts),
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
        facts=facts["facts"],
    )
