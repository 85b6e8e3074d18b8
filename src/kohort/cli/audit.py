"""`kohort audit`: attack what a run or a plan opens, and print what was found beside what a guess finds.

Without options, attacks are chosen from the ledger. `--epsilon` plants canaries and bounds epsilon from below.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kohort.cli.common import ForceOption, JsonOption, emit, say, stdout
from kohort.cli.tables import audit_lines, audit_table

if TYPE_CHECKING:
    from kohort.evaluate.gaussian_audit import EpsilonAudit
    from kohort.runs.auditing.audit import Audit
    from kohort.runs.config import Plan

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("audit")(audit)


def audit(
    what: Annotated[list[Path], typer.Argument(metavar="DIR|PLAN.toml", help="A plan, or one or two run folders.")],
    epsilon: Annotated[bool, typer.Option("--epsilon", help="Plant canaries and bound epsilon from below.")] = False,
    shadows: Annotated[
        int, typer.Option("--shadows", min=0, help="Shadow models for membership; 0 leaves that attack out.")
    ] = 64,
    canaries: Annotated[int, typer.Option("--canaries", min=100, help="How many canaries, over all runs.")] = 4000,
    phase: Annotated[
        int | None, typer.Option("--phase", min=1, help="Which phase of the plan; by default the first with noise.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of a plan's run, of canaries and of noise.")] = 0,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="a.b=v", help="Change a key of the plan.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the findings, for kohort report --audit FILE.")
    ] = None,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Attack what left the sites, and print how often each attack is right beside a guess.

    A run folder is repeated from its plan and seed, and must give the same ledger. Two folders are also attacked
    together. With --epsilon, canaries test the noise of a budget; a bound above the claim is exit 6.

    Example: kohort audit out/demo/partial
    """
    from kohort.files import require_new
    from kohort.report.audits import write_audits

    if epsilon:
        _bound_epsilon(what, canaries=canaries, seed=seed, phase=phase, overrides=set_ or [], json=json)
        return
    if out is not None:
        require_new(out, force=force)
    found = _attacked(what, shadows=shadows, seed=seed, overrides=set_ or [])
    mapping = found.to_mapping()
    if out is not None:
        write_audits(out, [mapping])
    if json:
        emit(mapping)
        return
    for note in found.notes:
        say(f"note: {note}")
    if any(one["success"] is not None for one in mapping["findings"]):
        stdout().print(audit_table(mapping))
    for line in audit_lines(mapping):
        stdout().print(line, markup=False)


def _attacked(what: list[Path], *, shadows: int, seed: int, overrides: list[str]) -> Audit:
    from kohort.errors import ConfigError
    from kohort.runs.auditing.audit import audit_folders, audit_plan

    for path in what:
        if not path.exists():
            raise ConfigError(
                f"there is no run folder or plan {path}", hint="Give the --out folder of a run, or a plan"
            )
    if all(path.is_dir() for path in what):
        if overrides:
            raise ConfigError("--set changes a plan, and this is a finished run", hint="Give the plan instead")
        return audit_folders(what, shadows=shadows)
    if len(what) > 1:
        raise ConfigError("only finished runs are attacked together", hint="Give one plan, or two run folders")
    return audit_plan(_plan_of(what[0], overrides), name=str(what[0]), seed=seed, shadows=shadows)


def _bound_epsilon(
    what: list[Path], *, canaries: int, seed: int, phase: int | None, overrides: list[str], json: bool
) -> None:
    from kohort.errors import ConfigError, IntegrityError
    from kohort.runs.auditing.epsilon import audit_epsilon

    if len(what) != 1:
        raise ConfigError("--epsilon tests one plan or run", hint="Name one")
    found = audit_epsilon(_plan_of(what[0], overrides), canaries=canaries, seed=seed, phase=phase)
    result: dict[str, Any] = {
        "audited": str(what[0]),
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
