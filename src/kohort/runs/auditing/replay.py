"""Repeat a run and note what the hub was sent: attacks need the bytes, and a ledger keeps their hashes alone.

Guarantee: the repeated run of a folder is the run of the folder, or an error: every line of every site's chain, hashes
of all payloads included, is the same in both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import polars as pl

from kohort.crypto.identity.user import user_pins
from kohort.errors import DataError, IntegrityError, KohortError
from kohort.models.files import about_model
from kohort.privacy.ledger.bound import check_run_folder
from kohort.privacy.ledger.verify import verify_ledger
from kohort.protocol.engine import LocalEngine
from kohort.protocol.hub import Ask, Replies
from kohort.protocol.wire import Payload, encode
from kohort.rng import Streams
from kohort.runs.backend import RunContext, Simulation
from kohort.runs.config import Plan, load_plan
from kohort.runs.results.outcome import Outcome
from kohort.runs.run import run
from kohort.runs.simulation import Population

__all__ = ["Recorded", "RecordingSimulation", "Replay", "StoredRun", "lied_rounds", "read_stored", "repeat"]

Recorded = list[tuple[Ask, Replies]]


@dataclass(frozen=True)
class RecordingSimulation(Simulation):
    """A simulation that notes what the hub is told, and what it sends.

    Attributes:
        recorded: Requests and replies, in order.
        tasks: Whose replies are noted; None for all.
        lie: What the hub asks instead; None asks as the method does.
        listen: Takes every noted reply at once.
        populations: The rows of the run, once they are dealt out.
    """

    recorded: Recorded = field(default_factory=list)
    tasks: frozenset[str] | None = None
    lie: Callable[[Ask], Ask] | None = None
    listen: Callable[[Replies], None] | None = None
    populations: list[Population] = field(default_factory=list)

    def populate(self, plan: Plan, streams: Streams) -> Population:
        """Read, check, hold out and deal out."""
        made = super().populate(plan, streams)
        self.populations.append(made)
        return made

    def engine(self, ready: RunContext) -> LocalEngine:
        """The engine of a simulation, with a listener at the hub."""
        made = super().engine(ready)
        exchange = made.exchange

        def listened(ask: Ask) -> Replies:
            noted = self.tasks is None or ask.task.name in self.tasks
            asked = self.lie(ask) if noted and self.lie is not None else ask
            taken: dict[str, bytes] = {}
            replies = exchange(_receiving(asked, taken) if noted else asked)
            if noted:
                self.recorded.append((asked, Replies(list(taken), list(taken.values())) if taken else replies))
                if self.listen is not None:
                    self.listen(self.recorded[-1][1])
            return replies

        setattr(made, "exchange", listened)  # noqa: B010 - one engine listens, not its class
        return made


def _receiving(ask: Ask, taken: dict[str, bytes]) -> Ask:
    """The same request; replies that the method takes as they come in are kept as well."""
    take = ask.take
    if take is None:
        return ask

    def both(site: str, payload: Payload) -> None:
        taken[site] = encode(payload)
        take(site, payload)

    return ask._replace(take=both)


@dataclass(frozen=True, kw_only=True)
class Replay:
    """A run and what its hub was sent.

    Attributes:
        plan: The plan that ran.
        seed: Its seed.
        outcome: What it gave back.
        population: The rows of its sites, and the test rows.
        recorded: Requests and replies that attacks look at.
        tables: Tables in memory, where the run has no files.
    """

    plan: Plan
    seed: int
    outcome: Outcome
    population: Population
    recorded: Recorded
    tables: dict[str, pl.DataFrame] | None = None


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """A run folder that is as its ledger says.

    Attributes:
        folder: Where it is.
        plan: What of its plan was in effect.
        result: Its run.json.
        notes: What a reader must be told.
    """

    folder: Path
    plan: Plan
    result: Mapping[str, Any]
    notes: tuple[str, ...]


def read_stored(folder: Path) -> StoredRun:
    """Read a finished run and check every file and every line of it.

    Args:
        folder: The run folder.

    Returns:
        The run.

    Raises:
        IntegrityError: It is not finished, or a file or line was changed.
    """
    checked = check_run_folder(folder, pins=user_pins())
    verify_ledger(folder)
    try:
        plan = load_plan(json.loads((folder / "plan.json").read_bytes()), complete=True)
        result = dict(json.loads((folder / "run.json").read_bytes()))
    except (OSError, ValueError) as error:
        raise IntegrityError(f"{folder} holds a damaged run", hint="Restore it, or run the plan again") from error
    return StoredRun(folder=folder, plan=plan, result=result, notes=checked.notes)


def repeat(
    plan: Plan,
    *,
    seed: int,
    tasks: frozenset[str] | None = None,
    tables: dict[str, pl.DataFrame] | None = None,
    stored: StoredRun | None = None,
) -> Replay:
    """Run a plan, listening at the hub.

    Args:
        plan: The plan.
        seed: The seed of the run.
        tasks: Whose replies are noted; None for all.
        tables: Tables in memory instead of the plan's files.
        stored: The run whose ledger the repetition must give.

    Returns:
        The run and what was recorded.

    Raises:
        DataError: The table of the stored run is not here.
        IntegrityError: Another run came out than the stored one.
        KohortError: The run failed.
    """
    place = RecordingSimulation(tables=tables, tasks=tasks)
    try:
        outcome = run(plan, seed=seed, backend=place)
    except DataError as error:
        if stored is None:
            raise
        said = f"{stored.folder} cannot be repeated{_written_by(stored.folder)}: {error.message}"
        raise DataError(said, hint="Audit it where its table is") from error
    if stored is not None and outcome.ledger_head != stored.result.get("ledger_head"):
        raise IntegrityError(
            f"repeating {stored.folder} gave other releases than its ledger lists{_written_by(stored.folder)}",
            hint="Restore the table it was run on and use the version of kohort that wrote it",
        )
    return Replay(
        plan=plan,
        seed=seed,
        outcome=outcome,
        population=place.populations[0],
        recorded=place.recorded,
        tables=tables,
    )


def lied_rounds(replay: Replay, *, task: str, lie: Callable[[Ask], Ask], listen: Callable[[Replies], None]) -> int:
    """Run a plan again with a hub that lies whenever it asks for a task.

    Args:
        replay: The honest run.
        task: The task's name.
        lie: What the hub asks instead of what the method asks.
        listen: Takes the replies of the sites' own, honest code.

    Returns:
        How often the hub lied.
    """
    place = RecordingSimulation(tables=replay.tables, tasks=frozenset({task}), lie=lie, listen=listen)
    try:
        run(replay.plan, seed=replay.seed, backend=place)
    except KohortError:  # the model of a lying hub is no model; what was recorded before counts
        if not place.recorded:
            raise
    return len(place.recorded)


def _written_by(folder: Path) -> str:
    """Which version wrote a run, where it is another than this one."""
    try:
        wrote, here = about_model(folder / "model").get("kohort"), version("kohort")
    except (OSError, ValueError, KeyError, KohortError):
        return ""
    if wrote == here:
        return ""
    return f"; {'an early version of kohort' if wrote is None else f'kohort {wrote}'} wrote it, and this is {here}"
