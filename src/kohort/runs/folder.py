"""The folder of a run: what identifies it, where it can go on, and what it leaves behind.

    DIR/run.json  plan.json  model/  ledger/  hub/received.parquet      a finished run
    DIR/hub/received.json                                               until when its rows may be kept
    DIR/state/                                                          only while a run is under way

`run.json` is written last: a folder with it is finished, a folder with `state/` and without it can be resumed.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from kohort.errors import ConfigError, IntegrityError
from kohort.files import disk_errors, require_new, write_atomic
from kohort.protocol.checkpoint import Checkpoints
from kohort.rng import Streams
from kohort.runs.config import Plan

__all__ = ["RunFolder", "stored_result"]


def stored_result(path: Path, plan: Plan, seed: int | None) -> dict[str, Any] | None:
    """The result of a finished run of this very plan and seed; None when the folder holds none yet."""
    if not (path / "run.json").is_file():
        return None
    try:
        result = json.loads((path / "run.json").read_bytes())
        known = json.loads((path / "plan.json").read_bytes())
    except (OSError, ValueError) as error:
        raise IntegrityError(f"{path} holds a damaged run", hint="Choose another --out") from error
    _same_plan(known, plan.in_effect(str(result.get("engine"))))
    if seed is not None and result.get("seed") != seed:
        raise ConfigError(f"{path} was run with another seed", hint="Use the same seed, or another --out")
    return dict(result)


class RunFolder:
    """One run's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ledger = path / "ledger"
        self.state = path / "state"
        self.checkpoints = Checkpoints(self.state)

    @property
    def holds_run(self) -> bool:
        """Whether a run lies here, finished or not; anything else is not ours to delete."""
        return any((self.path / name).exists() for name in ("run.json", "ledger", "state"))

    @property
    def can_resume(self) -> bool:
        """Whether an interrupted run lies here."""
        return (self.state / "identity.json").is_file()

    def begin(self, *, force: bool) -> None:
        """An empty folder for a new run; an earlier run in it goes, anything else is left alone."""
        require_new(self.path, force=force)
        with disk_errors(self.path):
            if self.path.is_dir() and any(self.path.iterdir()):
                if not self.holds_run:
                    raise ConfigError(
                        f"{self.path} holds something else than a run and is not deleted, even with --force",
                        hint="Choose another --out",
                    )
                shutil.rmtree(self.path)
            self.path.mkdir(parents=True, exist_ok=True)

    def identify(self, plan: Plan, streams: Streams, table: str) -> None:
        """Write down what this run is, so that only the same run goes on here."""
        identity = {"plan": plan.to_mapping(), "seed": streams.seed, "table": table}
        if streams.is_secure:  # the same keys are needed to go on; the file goes with the end of the run
            write_atomic(self.state / "root.key", streams.root, private=True)
        write_atomic(self.state / "identity.json", json.dumps(identity).encode(), private=True)

    def streams(self, seed: int | None, *, secure: bool) -> Streams:
        """The interrupted run's randomness; another seed is refused."""
        identity = self._identity()
        if identity["seed"] is None:
            if not secure:
                raise ConfigError("the interrupted run used --secure-random", hint="Resume it with --secure-random")
            return Streams((self.state / "root.key").read_bytes(), None)
        if secure or (seed if seed is not None else 0) != identity["seed"]:
            raise ConfigError(
                f"the interrupted run used seed {identity['seed']}", hint="Resume it with that seed, or start anew"
            )
        return Streams.seeded(identity["seed"])

    def check_same(self, plan: Plan, table: str) -> None:
        """Refuse to go on with another plan or other rows, and say which."""
        identity = self._identity()
        _same_plan(identity["plan"], plan.to_mapping())
        if identity["table"] != table:
            raise ConfigError(
                "the rows are not those of the interrupted run", hint="Restore the table, or start anew with --force"
            )

    def finish(self, plan: Plan, result: dict[str, Any]) -> None:
        """Write what of the plan was in effect, and the result; the run is over and its state goes."""
        in_effect = plan.in_effect(str(result["engine"]))
        write_atomic(self.path / "plan.json", (json.dumps(in_effect, indent=1) + "\n").encode())
        write_atomic(self.path / "run.json", (json.dumps(result, indent=1) + "\n").encode())
        shutil.rmtree(self.state, ignore_errors=True)

    def _identity(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self.state / "identity.json").read_bytes()))
        except (OSError, ValueError) as error:
            raise IntegrityError(f"{self.path} cannot be resumed: its state is damaged", hint="Start anew") from error


def _same_plan(known: dict[str, Any], given: dict[str, Any]) -> None:
    different = _differing_keys(known, given)
    if different:
        raise ConfigError(
            f"the plan differs from the one run here in {', '.join(different[:5])}",
            hint="Resume with the same plan, or start anew with --force",
        )


def _differing_keys(known: Any, given: Any, place: str = "") -> list[str]:
    if isinstance(known, dict) and isinstance(given, dict):
        return [
            found
            for key in sorted(set(known) | set(given))
            for found in _differing_keys(known.get(key), given.get(key), f"{place}.{key}" if place else key)
        ]
    return [] if known == given else [place]
