"""`kohort audit`: attack what a plan opens, and print what was found beside what is claimed.

Each option is one attack; `--epsilon` plants canaries and bounds epsilon from below.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kohort.cli.common import JsonOption, emit, stdout

if TYPE_CHECKING:
    from kohort.evaluate.gaussian_audit import EpsilonAudit
    from kohort.runs.config import Plan

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("audit")(audit)


def audit(
    what: Annotated[Path, typer.Argument(metavar="DIR|PLAN.toml", help="A plan, or the folder of a run.")],
    epsilon: Annotated[bool, typer.Option("--epsilon", help="Plant canaries and bound epsilon from below.")] = False,
    canaries: Annotated[int, typer.Option("--canaries", min=100, help="How many canaries, over all runs.")] = 4000,
    phase: Annotated[
        int | None, typer.Option("--phase", min=1, help="Which phase of the plan; by default the first with noise.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of coins and noise.")] = 0,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="a.b=v", help="Change a key of the plan.")] = None,
    json: JsonOption = False,
) -> None:
    """Attack what a plan opens, and print the findings beside its claims.

    With --epsilon, the plan's budget is run at its sites on canaries, rows that pull in directions of their own, and
    the hub's view is tested against the Gaussian curve that the budget claims. A bound above the claim is exit 6.

    Example: kohort audit examples/private.toml --epsilon
    """
    from kohort.errors import ConfigError, IntegrityError
    from kohort.runs.audit import audit_epsilon

    if not epsilon:
        raise ConfigError("no attack was chosen", hint="Add --epsilon")
    found = audit_epsilon(_plan_of(what, set_ or []), canaries=canaries, seed=seed, phase=phase)
    result: dict[str, Any] = {
        "audited": str(what),
        "membership": {"epsilon_lower": found.epsilon_lower},
        "epsilon": found.to_mapping(),
    }
    if json:
        emit(result)
    else:
        _show(found)
    if found.exposed:
        raise IntegrityError(
            f"the noise is worth epsilon {found.epsilon_lower:.3g} at least, above the claimed {found.claimed:g}",
            hint="Do not use this plan's results as private; report it with the version of kohort",
        )


def _plan_of(what: Path, overrides: list[str]) -> Plan:
    """The plan of a file, or what of it was in effect in a run whose folder is as its ledger says."""
    from json import loads

    from kohort.crypto.identity.user import user_pins
    from kohort.privacy.ledger.bound import check_run_folder
    from kohort.runs.config import load_plan, read_plan
    from kohort.runs.plan.overrides import apply_overrides

    if not what.is_dir():
        return read_plan(what, overrides=overrides)
    check_run_folder(what, pins=user_pins())
    return load_plan(apply_overrides(loads((what / "plan.json").read_bytes()), overrides), complete=True)


def _show(found: EpsilonAudit) -> None:
    from rich.table import Table

    table = Table("", "epsilon", "mu")
    table.add_row("claimed", f"{found.claimed:g} at delta {found.delta:g}", f"{found.mu_claimed:.3f}")
    table.add_row(f"lower bound ({found.confidence:.0%} sure)", f"{found.epsilon_lower:.3g}", f"{found.mu_lower:.3f}")
    stdout().print(table)
    stdout().print(
        f"{found.canaries:,} canaries. Noise below {found.detects:.0%} of the planned one would have been exposed "
        "19 times out of 20; a bound below the claim proves nothing.",
        markup=False,
    )
