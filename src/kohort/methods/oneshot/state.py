"""The state a hub keeps after a one-shot fit, so that sites can join, add rows or leave without retraining.

Contributions are kept in batches. A batch is the opened sum over a set of sites of which no smaller sum was opened.
Sites that join form batches of their own. When a whole batch leaves, its sum is subtracted, which gives exactly the fit
without it. When a part of a batch leaves, the sum over that part is opened as well. This splits the batch, and both
parts must be large enough, because the difference of two opened sums is as good as opened.

Guarantee: no sequence of `join` and `leave` lets two opened sums isolate fewer than `min_sites` contributions. A site
that adds rows contributes them under another name ("north#2"), in a batch with other sites that do.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kohort.crypto.sums.scheme import Integers
from kohort.errors import ConfigError, IntegrityError, RefusedError
from kohort.methods.oneshot.design import InputCells, Layout, OneShotSection
from kohort.methods.oneshot.fit import Fit, check_total, decoded, fit
from kohort.models.network_model import NetworkModel
from kohort.protocol.wire import Payload, decode, encode
from kohort.tables.encoder import Encoder

__all__ = [
    "FILE",
    "Batch",
    "OneShotState",
    "join",
    "leave",
    "load_state",
    "require_new_members",
    "save_state",
    "split_batches",
]

FILE = "oneshot.khrt"


@dataclass(frozen=True, eq=False)
class Batch:
    """The opened sums over `members`, as integers of the agreed grid."""

    members: frozenset[str]
    total: Integers
    noise: float = 0.0
    """Deviation of the noise in every number, or of what rounding pairs of categories adds; 0 without either."""

    def without(self, part: Batch) -> Batch:
        """What is left when a part of it leaves."""
        return Batch(self.members - part.members, self.total - part.total, float(np.hypot(self.noise, part.noise)))


@dataclass(frozen=True, eq=False)
class OneShotState:
    """The batches in the model, the batches that left, and what was summed."""

    section: OneShotSection
    encoder: Encoder
    cells: InputCells
    clip: float | None
    batches: tuple[Batch, ...]
    left: tuple[Batch, ...] = ()

    @property
    def layout(self) -> Layout:
        """The layout of the sums."""
        return Layout.of(self.section, self.encoder, self.cells, clip=self.clip)

    @property
    def members(self) -> frozenset[str]:
        """The contributions in the model."""
        return frozenset[str]().union(*(batch.members for batch in self.batches))

    @property
    def known(self) -> frozenset[str]:
        """The contributions that are, or were, in an opened sum."""
        return self.members.union(*(batch.members for batch in self.left))

    def fit(self) -> Fit:
        """Solve over all batches in the model.

        Raises:
            RefusedError: No batch is left, the total is too small, or Newton steps would have to be taken again.
        """
        _one_round(self)
        if not self.batches:
            raise RefusedError("no batch is left to learn from", hint="Let sites join first")
        total = np.zeros_like(self.batches[0].total)
        for batch in self.batches:
            total += batch.total  # modulo 2^64, as all sums are
        values = decoded(self.layout, total)
        check_total(self.layout, values)
        return fit(self.layout, values, noise=float(np.linalg.norm([batch.noise for batch in self.batches])))

    def model(self) -> NetworkModel:
        """The model over all batches that are in."""
        network, weights = self.fit().network(self.encoder.dtype)
        return NetworkModel(network, weights, self.encoder)


def join(state: OneShotState, other: OneShotState) -> OneShotState:
    """Add the batches of another run of the same plan.

    Args:
        state: The state to add to.
        other: The state of a run over sites, or new rows, that were never in `state`.

    Returns:
        The new state; `state` is not changed.

    Raises:
        RefusedError: A contribution was in before, a batch is too small, the two sum different numbers, or the plan
            takes Newton steps.
    """
    require_new_members(state, other.known)
    _same(state, other)
    _large_enough(state, (batch.members for batch in other.batches))
    return replace(state, batches=(*state.batches, *other.batches), left=(*state.left, *other.left))


def require_new_members(state: OneShotState, joining: Iterable[str]) -> None:
    """Refuse contributions that cannot be added to a state.

    Args:
        state: The state to add to.
        joining: The contributions.

    Raises:
        RefusedError: One of them was in before, or the plan takes Newton steps.
    """
    _one_round(state)
    again = state.known & frozenset(joining)
    if again:
        raise RefusedError(
            f"{len(again)} of the joining contributions were in before",
            hint='Give new rows a name of their own, such as "north#2"',
        )


def leave(state: OneShotState, leavers: Iterable[str], opened: OneShotState | None = None) -> OneShotState:
    """Remove contributions.

    Args:
        state: The state to remove from.
        leavers: The contributions that leave.
        opened: For batches of which only a part leaves: the state of a run over that part alone, or over those of the
            batch who stay.

    Returns:
        The new state; `state` is not changed.

    Raises:
        ConfigError: A leaver is not in the model.
        RefusedError: A part of a batch is too small, the sum over it is not in `opened`, or the plan takes Newton
            steps.
    """
    _one_round(state)
    going = frozenset(leavers)
    unknown = going - state.members
    if unknown:
        raise ConfigError(f"{len(unknown)} of the leaving contributions are not in", hint="Look at state.members")
    sums = {batch.members: batch for batch in (() if opened is None else opened.batches)}
    if opened is not None:
        _same(state, opened)
    stay, left = [], list(state.left)
    for batch in state.batches:
        out, rest = batch.members & going, batch.members - going
        if not out:
            stay.append(batch)
            continue
        if not rest:
            left.append(batch)
            continue
        _large_enough(state, (out, rest))
        if rest in sums:
            stay.append(sums[rest])
            left.append(batch.without(sums[rest]))
        elif out in sums:
            stay.append(batch.without(sums[out]))
            left.append(sums[out])
        else:
            raise RefusedError(
                f"{len(out)} contributions leave a batch of {len(batch.members)} and the sums over them are not known",
                hint="Run the plan over the leavers, or over those of the batch who stay, and give its state",
            )
    return replace(state, batches=tuple(stay), left=tuple(left))


def split_batches(state: OneShotState, leavers: Iterable[str]) -> frozenset[str]:
    """Who of the batches that would be split stays: a sum over them is needed before anybody leaves.

    Args:
        state: The state to remove from.
        leavers: The contributions that leave.

    Returns:
        The contributions that stay in such batches; empty where whole batches leave.

    Raises:
        ConfigError: A leaver is not in the model.
        RefusedError: A part of a batch is too small, several batches would be split at once, or the plan takes Newton
            steps.
    """
    _one_round(state)
    going = frozenset(leavers)
    if going - state.members:
        raise ConfigError(
            f"{len(going - state.members)} of the leaving contributions are not in",
            hint=f"In the model: {', '.join(sorted(state.members)[:20])}",
        )
    parted = [batch.members for batch in state.batches if batch.members & going and batch.members - going]
    for members in parted:
        _large_enough(state, (members & going, members - going))
    if len(parted) > 1:
        raise RefusedError(
            f"{len(parted)} batches would be split, and a sum is needed over each of them",
            hint="Let the leavers of one batch go at a time",
        )
    return frozenset[str]().union(*(members - going for members in parted))


def _one_round(state: OneShotState) -> None:
    """Refuse a fit with Newton steps: they are taken at weights that all sites know, so sums of batches do not add up.

    Raises:
        RefusedError: The plan takes such steps.
    """
    if state.section.rounds > 1:
        raise RefusedError(
            "Newton steps are taken with all sites at once, so nobody can join or leave afterwards",
            hint="Run the plan again with the sites that take part now, or set method.oneshot.rounds = 1",
        )


def _large_enough(state: OneShotState, sets: Iterable[frozenset[str]]) -> None:
    least = state.section.min_sites
    for members in sets:
        if len(members) < least:
            raise RefusedError(
                f"two openings would isolate {len(members)} contributions, fewer than {least}",
                hint="Wait for a batch that is large enough; until then, withdraw the model if somebody must leave",
            )


def _same(state: OneShotState, other: OneShotState) -> None:
    mine, theirs = _facts(state), _facts(other)
    different = [name for name in mine if mine[name] != theirs[name]]
    if different or not np.array_equal(state.cells.target, other.cells.target):
        what = ", ".join(different) or "which categories became one"
        raise RefusedError(f"the sums are not of the same numbers: {what} differ", hint="Run the same plan for both")


def _facts(state: OneShotState) -> dict[str, Any]:
    return {
        "section": asdict(state.section),
        "encoder": state.encoder.to_mapping(),
        "clip": state.clip,
        "inputs": state.cells.inputs,
        "left_out": list(state.cells.left_out),
    }


def save_state(state: OneShotState) -> bytes:
    """Write a state as bytes, with a hash of their content.

    Args:
        state: The state.

    Returns:
        The bytes, which `load_state` reads. They hold the opened totals, so they belong to the hub alone.
    """
    batches = [*state.batches, *state.left]
    facts = {
        **_facts(state),
        "members": [sorted(batch.members) for batch in batches],
        "present": len(state.batches),
        "noise": [batch.noise for batch in batches],
    }
    arrays = {"totals": np.stack([batch.total for batch in batches])} if batches else {}
    content = encode(
        Payload(arrays={"cells": state.cells.target, **arrays}, blobs={"facts": json.dumps(facts).encode()})
    )
    return hashlib.blake2b(content, digest_size=32).digest() + content


def load_state(source: Path | bytes) -> OneShotState:
    """Read a state from bytes, or from the file that a run writes to `DIR/hub/`.

    Args:
        source: The bytes, or the file.

    Returns:
        The state as it was saved.

    Raises:
        ConfigError: There is no such file.
        IntegrityError: The content does not match its hash.
    """
    data = source if isinstance(source, bytes) else _read(source)
    if hashlib.blake2b(data[32:], digest_size=32).digest() != data[:32]:
        raise IntegrityError("the state of a one-shot fit is damaged", hint="Restore it, or run the plan again")
    payload = decode(data[32:])
    facts: Mapping[str, Any] = json.loads(payload.blobs["facts"])
    noise, arrays = facts["noise"], payload.arrays
    each = noise if isinstance(noise, list) else [noise] * len(facts["members"])  # one number for all in older states
    batches = tuple(
        Batch(
            frozenset(members), arrays["totals"][place] if "totals" in arrays else arrays[f"total-{place}"], each[place]
        )
        for place, members in enumerate(facts["members"])
    )
    cells = InputCells(payload.arrays["cells"].astype(np.int64), facts["inputs"], tuple(facts["left_out"]))
    return OneShotState(
        section=OneShotSection(**facts["section"]),
        encoder=Encoder.from_mapping(facts["encoder"]),
        cells=cells,
        clip=facts["clip"],
        batches=batches[: facts["present"]],
        left=batches[facts["present"] :],
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"there is no state at {path}", hint=f"A run leaves it in DIR/hub/{FILE}") from error
