"""The folder of a run: its identity, its checkpoints while it runs, and its results.

    DIR/run.json  plan.json  model/  ledger/  hub/received.parquet      a finished run, bound by ledger/results.jsonl
    DIR/sites/SITE/model/  sites/clusters.json  sites/models.json       what simulated sites have and the hub has not
    DIR/hub/received.json                                               retention date of the received rows
    DIR/state/                                                          only while a run is unfinished

`run.json` is written last: a folder that has it is a finished run; a folder with only `state/` can be resumed. While a
run is under way the folder is locked, and a second process is told so before it reads or writes anything.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from kohort.crypto.identity.user import user_pins
from kohort.errors import ConfigError, IntegrityError
from kohort.files import FolderLock, disk_errors, require_new, write_atomic
from kohort.privacy.ledger.bound import check_run_folder
from kohort.privacy.ledger.summary import with_ledger_figures
from kohort.protocol.checkpoint import Checkpoints
from kohort.rng import Streams
from kohort.runs.config import Plan

__all__ = ["RunFolder", "stored_result"]


class BindFiles(Protocol):
    """What signs the hashes of a run folder's files."""

    def __call__(self, folder: Path, /, *, last: Mapping[str, bytes]) -> None:
        """Sign them; `last` is what will be written after."""
        ...


def stored_result(path: Path, plan: Plan, seed: int | None) -> dict[str, Any] | None:
    """The result of a finished run of the same plan and seed.

    Args:
        path: The run folder.
        plan: The plan the run must have had.
        seed: The seed it must have had; None accepts any.

    Returns:
        The JSON object of the run, with the ledger's figures; None when the folder holds no finished run.

    Raises:
        ConfigError: The run had another plan or seed.
        IntegrityError: A file of the run is damaged, or is not what the run's ledger says it was.
    """
    if not (path / "run.json").is_file():
        return None
    try:
        result = json.loads((path / "run.json").read_bytes())
        known = json.loads((path / "plan.json").read_bytes())
    except (OSError, ValueError) as error:
        raise IntegrityError(f"{path} holds a damaged run", hint="Choose another --out") from error
    check_run_folder(path, pins=user_pins())
    _same_plan(known, plan.in_effect(str(result.get("engine"))))
    if seed is not None and result.get("seed") != seed:
        raise ConfigError(f"{path} was run with another seed", hint="Use the same seed, or another --out")
    return with_ledger_figures(dict(result), path)


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ledger = path / "ledger"
        self.state = path / "state"
        self.checkpoints = Checkpoints(self.state)
        self._lock = FolderLock(path)

    @property
    def holds_run(self) -> bool:
        """Whether the folder holds a run, finished or not. Nothing else may be deleted."""
        return any((self.path / name).exists() for name in ("run.json", "ledger", "state"))

    def take(self) -> None:
        """Keep every other process out of the folder, until `release` or the end of this one.

        Raises:
            ConfigError: A run is under way in it.
        """
        if not self._lock.take():
            raise ConfigError(
                f"a run is under way in {self.path}", hint="Wait until it ends, stop it, or choose another --out"
            )

    def release(self) -> None:
        """Let others use the folder again."""
        self._lock.release()

    @property
    def can_resume(self) -> bool:
        """Whether the folder holds an interrupted run."""
        return (self.state / "identity.json").is_file()

    def require_free(self, *, force: bool) -> None:
        """Refuse a folder that is not empty.

        Args:
            force: Whether an earlier run may be deleted.

        Raises:
            ConfigError: It holds something and `force` is not set; of a run that did not finish, how to use it again.
        """
        if not force and self.holds_run and not (self.path / "run.json").exists():
            again = "Add --resume to go on with it, or --force" if self.can_resume else "Add --force"
            raise ConfigError(
                f"{self.path} holds a run that did not finish",
                hint=f"{again} to delete it with its ledger, or choose another --out",
            )
        require_new(self.path, force=force)

    def begin(self, *, force: bool) -> None:
        """Make an empty folder for a new run.

        Args:
            force: Delete an earlier run in the folder.

        Raises:
            ConfigError: The folder is not empty and `force` is not set, it holds something other than a run, or a run
                is under way in it.
        """
        self.take()
        self.require_free(force=force)
        with disk_errors(self.path):
            if self.path.is_dir() and any(self.path.iterdir()):
                if not self.holds_run:
                    raise ConfigError(
                        f"{self.path} holds something else than a run and is not deleted, even with --force",
                        hint="Choose another --out",
                    )
                _empty(self.path)  # the folder itself stays: it is locked
            self.path.mkdir(parents=True, exist_ok=True)
        self.take()
        if any(self.path.iterdir()):  # another process made it in between, and is done
            self.require_free(force=False)

    def identify(self, plan: Plan, streams: Streams, table: str) -> None:
        """Store plan, seed and the hash of the rows, so that only the same run is resumed here.

        A run with randomness of the operating system also stores its root key, which is deleted when the run ends.
        """
        identity = {"plan": plan.to_mapping(), "seed": streams.seed, "table": table}
        if streams.is_secure:  # needed to resume; deleted with the state when the run ends
            write_atomic(self.state / "root.key", streams.root, private=True)
        write_atomic(self.state / "identity.json", json.dumps(identity).encode(), private=True)

    def streams(self, seed: int | None, *, secure: bool) -> Streams:
        """The randomness of the interrupted run.

        Args:
            seed: The seed given now; None means 0, the default.
            secure: Whether randomness of the operating system is asked for now.

        Raises:
            ConfigError: The interrupted run used another seed or kind of randomness.
        """
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
        """Check that the interrupted run had this plan and these rows.

        Raises:
            ConfigError: It had not; the error names the keys of the plan that differ.
        """
        identity = self._identity()
        _same_plan(identity["plan"], plan.to_mapping())
        if identity["table"] != table:
            raise ConfigError(
                "the rows are not those of the interrupted run", hint="Restore the table, or start anew with --force"
            )

    def finish(self, plan: Plan, result: dict[str, Any], *, bind: BindFiles) -> None:
        """Write what of the plan was in effect, bind all files to the ledger, and write the result last.

        The run is over then, and its state goes.

        Args:
            plan: The plan.
            result: The JSON object of the run.
            bind: Signs the hashes of the files in the folder, and of those that are written afterwards.
        """
        in_effect = plan.in_effect(str(result["engine"]))
        write_atomic(self.path / "plan.json", (json.dumps(in_effect, indent=1) + "\n").encode())
        content = (json.dumps(result, indent=1) + "\n").encode()
        bind(self.path, last={"run.json": content})
        write_atomic(self.path / "run.json", content)
        shutil.rmtree(self.state, ignore_errors=True)

    def _identity(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self.state / "identity.json").read_bytes()))
        except (OSError, ValueError) as error:
            raise IntegrityError(f"{self.path} cannot be resumed: its state is damaged", hint="Start anew") from error


def _empty(folder: Path) -> None:
    for inside in folder.iterdir():
        if inside.is_dir() and not inside.is_symlink():
            shutil.rmtree(inside)
        else:
            inside.unlink()


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
