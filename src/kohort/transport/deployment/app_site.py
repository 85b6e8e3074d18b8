"""The folder of a site that runs somebody else's Flower app behind its own door: init, approve, start.

    door.toml  identity.key  ledger.key  superexec.key  ledger/  flower/

The SuperNode is Flower's own, with the operator's flags; it leaves its tasks to `start` (`--isolation process`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge

from kohort.crypto.identity.guarded_files import kept_secret
from kohort.crypto.identity.names import check_name
from kohort.errors import ConfigError
from kohort.files import require_new, write_atomic
from kohort.privacy.policy import Policy
from kohort.transport.deployment.settings import read_settings, section_of, toml_value
from kohort.transport.flower.app_door import MOST_NUMBERS, Noise, door_mod
from kohort.transport.flower.app_ledger import AppLedger
from kohort.transport.flower.app_runner import AppRunner

__all__ = ["AppSiteFolder", "DoorSection"]

SETTINGS, SECRET = "door.toml", "superexec.key"
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class DoorSection:
    """`[door]`: which app runs, and what the operator says of the site's rows."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field

    name: str
    app: str = ""
    """SHA-256 of the one app bundle that runs."""
    rows: Annotated[int, Ge(1)] | None = None
    most_numbers: Annotated[int, Ge(0)] = MOST_NUMBERS
    most_answers: Annotated[int, Ge(0)] | None = None
    noise: Noise | None = None


@dataclass(frozen=True)
class AppSiteFolder:
    """Everything such a site has on its disk."""

    path: Path

    @classmethod
    def init(cls, path: Path, *, name: str, rows: int | None = None, app: str = "") -> AppSiteFolder:
        """A new folder: keys, a secret for the SuperNode, and `door.toml` with careful defaults.

        Args:
            path: Where; it must be new.
            name: The site's name in its ledger.
            rows: How many rows the site has; None when it is not to be said.
            app: SHA-256 of the app's bundle; empty to add it later.

        Returns:
            The folder.

        Raises:
            ConfigError: The name or the hash is none, or the folder exists.
        """
        check_name(name)
        if app:
            _check_hash(app)
        require_new(path, force=False)
        write_atomic(path / SETTINGS, _template(name, rows, app).encode(), private=True)
        kept_secret(path / SECRET)
        AppLedger(path, name).identity()
        return cls(path)

    def settings(self) -> tuple[DoorSection, Policy]:
        """What `door.toml` says.

        Returns:
            The door's settings and the policy.

        Raises:
            ConfigError: It cannot be read, or a key is unknown or out of range.
            RefusedError: Others may change it.
        """
        raw = read_settings(self.path / SETTINGS, what="door")
        door: DoorSection = section_of(raw, "door", DoorSection, SETTINGS)
        policy: Policy = section_of(raw, "policy", Policy, SETTINGS)
        check_name(door.name)
        return door, policy

    def start(self, *, runtime: str, alive: Callable[[], bool] = lambda: True) -> None:
        """Answer a SuperNode's tasks with the approved app until stopped.

        Args:
            runtime: Address of the SuperNode's Runtime API, on this machine.
            alive: Whether to go on; asked between tasks.

        Raises:
            ConfigError: No app is approved, or a setting is not valid.
        """
        door, policy = self.settings()
        if not door.app:
            raise ConfigError(
                f"{self.path / SETTINGS} names no app", hint="Set app to the hash that this prints: sha256sum APP.fab"
            )
        mod = door_mod(
            policy,
            AppLedger(self.path, door.name),
            rows=door.rows,
            noise=door.noise,
            most_numbers=door.most_numbers,
            most_answers=door.most_answers,
        )
        AppRunner(
            approved=_check_hash(door.app),
            mod=mod,
            refuse=lambda reason: mod.note("app bundle", reason),
            unread=lambda reason: mod.note("message", reason),
            address=runtime,
            secret=kept_secret(self.path / SECRET),
            alive=alive,
            home=self.path / "flower",
        ).serve()


def _check_hash(text: str) -> str:
    clean = text.strip().lower()
    if not _HASH.fullmatch(clean):
        raise ConfigError("an app's hash is 64 hexadecimal digits", hint="sha256sum APP.fab prints it")
    return clean


def _template(name: str, rows: int | None, app: str) -> str:
    lines = ["[door]", f"name = {json.dumps(name)}"]
    lines += [f"app = {json.dumps(app)}  # the one app that runs here: sha256sum APP.fab"]
    lines += [f"rows = {rows}" if rows else "# rows = 1000  # how many rows this site has; an app cannot claim more"]
    lines += ["# most_answers = 200  # of one kind, in 30 days"]
    lines += [
        "# noise = {clip = 1.0, epsilon = 0.5, delta = 1e-6}  # added to every reply, paid from policy.epsilon",
        "",
    ]
    lines += ['[policy]  # what may leave; metrics by name in "public", messages by kind in "tasks"']
    shown = ("min_rows", "epsilon", "delta", "public", "tasks")
    policy = {**Policy().to_mapping(), "public": ["rows"], "tasks": ["flower.train", "flower.evaluate"]}
    lines += [f"{key} = {toml_value(policy[key])}" for key in shown]
    return "\n".join(lines) + "\n"
