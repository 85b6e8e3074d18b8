"""`kohort gate`: which rows of a table may be shared, and what they would still disclose."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kohort.cli.common import (
    DropOption,
    ForceOption,
    IdentifiersOption,
    JsonOption,
    KeepOption,
    MissingOption,
    NullsOption,
    PersonOption,
    QuasiOption,
    SchemaOption,
    SensitiveOption,
    TableArgument,
    emit,
    names,
    null_values,
    require_quasi,
    say,
    stdout,
)

if TYPE_CHECKING:
    from kohort.anonymity.gate.files import GateTableResult
    from kohort.runs.forecast import Forecast

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("gate")(gate)


def gate(
    table: TableArgument,
    rule: Annotated[
        str | None,
        typer.Option("--rule", help="k-anonymity, paper-l, l-diversity, t-closeness, or one from a plug-in."),
    ] = None,
    quasi: QuasiOption = None,
    sensitive: SensitiveOption = None,
    identifier: Annotated[str | None, typer.Option(metavar="p", help="The same as --person.")] = None,
    identifiers: IdentifiersOption = None,
    person: PersonOption = None,
    drop: DropOption = None,
    keep: KeepOption = None,
    null: NullsOption = None,
    schema: SchemaOption = None,
    k: Annotated[int | None, typer.Option("--k", help="Fewest rows (or persons) per key.")] = None,
    l: Annotated[float | None, typer.Option("--l", help="Fewest sensitive values per class; paper-l: rows.")] = None,  # noqa: E741
    t: Annotated[float | None, typer.Option("--t", help="Largest distance of a class from the table.")] = None,
    l_kind: Annotated[str, typer.Option("--l-kind", help="distinct or entropy.")] = "distinct",
    strict: Annotated[bool, typer.Option("--strict", help="More than k (or, in paper-l, l), not at least.")] = False,
    missing: MissingOption = "category",
    key: Annotated[
        str | None, typer.Option("--key", help="exact, bins:COLUMN=1,2,3, mask:COLUMN=3; several joined by ;")
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option("--columns", metavar="a,b", help="Columns to share; by default all that do not look identifying."),
    ] = None,
    out_shared: Annotated[Path | None, typer.Option("--out-shared", metavar="FILE", help="Rows to share.")] = None,
    out_kept: Annotated[Path | None, typer.Option("--out-kept", metavar="FILE", help="Rows to keep.")] = None,
    forecast: Annotated[
        bool, typer.Option("--forecast", help="What the gate of a plan would do; TABLE is PLAN.toml then.")
    ] = False,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="a.b=v", help="Change a key of the plan (--forecast).")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Forecast the run with this seed (--forecast).")] = 0,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Split a table into rows that may be shared and rows that are kept.

    Rows that pass are whole rows: the output says how many of them are unique on the columns that would be shared.
    With --forecast: rows shared, work at the sites, accuracy against averaging, who loses, and what to do.

    Example: kohort gate adult:train --missing drop --quasi age,race,sex --rule k-anonymity --k 100

    Example: kohort gate examples/partial.toml --forecast
    """
    if forecast:
        given = {"--rule": rule, "--quasi": quasi, "--k": k, "--l": l, "--t": t, "--key": key, "--sensitive": sensitive}
        _forecast(table, [name for name, value in given.items() if value is not None], set_ or [], seed, json=json)
        return
    from kohort.anonymity.gate.files import gate_table
    from kohort.errors import ConfigError
    from kohort.tables.dialect import ReadingOptions
    from kohort.tables.prepared import Declared
    from kohort.tables.roles import person_of

    if rule is None:
        raise ConfigError("no rule is named", hint="Add --rule k-anonymity --k 100, or --forecast for a plan")
    if set_:
        raise ConfigError("--set changes a plan, and a table is given", hint="Drop it, or add --forecast")
    if t is not None and not 0 <= t <= 1:
        raise ConfigError(f"--t {t:g} is no distance between distributions", hint="Use a number from 0 to 1")
    declared = Declared(
        quasi=names(quasi),
        sensitive=names(sensitive),
        identifiers=names(identifiers),
        person=person or identifier,
        drop=names(drop),
        keep=names(keep),
        reading=ReadingOptions(null_values=null_values(null)),
    ).with_file(schema)
    require_quasi(declared.quasi)
    sensitive_columns = declared.sensitive
    identifier = person_of(declared.identifiers, declared.person)
    if len(sensitive_columns) > 1:
        raise ConfigError("the gate takes one sensitive column", hint="Name one with --sensitive")
    found = gate_table(
        table,
        quasi=declared.quasi,
        sensitive=sensitive_columns[0] if sensitive_columns else None,
        identifier=identifier,
        hidden=(*declared.identifiers, *declared.drop),
        keep=declared.keep,
        reading=declared.reading,
        missing=missing,  # type: ignore[arg-type] # any other word is refused there
        shared_columns=names(columns),
        out_shared=out_shared,
        out_kept=out_kept,
        force=force,
        rule=rule,
        k=k,
        l=l,
        t=t,
        l_kind=l_kind,
        strict=strict,
        key=key,
    )
    result = _result(found, identifier, out_shared, out_kept)
    for note in result["notes"]:
        say(f"note: {note}")
    if json:
        emit(result)
    else:
        _show(result)


def _forecast(plan: str, given: list[str], overrides: list[str], seed: int, *, json: bool) -> None:
    """Print what the gate of a plan would do."""
    from kohort.errors import ConfigError
    from kohort.runs.config import read_plan
    from kohort.runs.forecast import forecast

    if given:
        raise ConfigError(
            f"a forecast reads the gate from the plan, and {', '.join(given)} is given",
            hint="Write it as --set method.gate.k=100",
        )
    if not plan.endswith(".toml"):
        raise ConfigError(
            f"a forecast needs a plan, and {plan!r} is no .toml file",
            hint='Write a plan with [method] name = "partial"; examples/partial.toml is one',
        )
    found = forecast(read_plan(Path(plan), overrides=overrides), seed=seed)
    if json:
        emit(found.to_mapping())
    else:
        _show_forecast(found)


def _show_forecast(found: Forecast) -> None:
    from rich.table import Table

    work = Table("at the sites", "averaging", "with the gate")
    work.add_row("rows per round, all sites", f"{found.rows:,}", f"{found.rows - found.shared:,}")
    work.add_row("rows per round, largest site", *(f"{count:,}" for count in found.largest_site))
    work.add_row("sites that train", str(found.sites), str(found.training_sites))
    table = Table("held-out rows", "count", "averaging", "with the gate", "gain (95 %)")
    for name, group in (("all", found.everybody), ("rare keys", found.rare), ("frequent keys", found.frequent)):
        if group is not None:
            gain = f"{group.gain:+.4f} (within {group.margin:.4f})"
            table.add_row(name, f"{group.rows:,}", f"{group.averaging:.4f}", f"{group.partial:.4f}", gain)
    console = stdout()
    console.print(f"{found.shared:,} of {found.rows:,} rows ({found.share:.2%}) would be shared", markup=False)
    console.print(work)
    seconds = found.site_seconds
    console.print(
        f"slowest site: the gate takes {seconds['gate']:.3f} s once, a whole run by averaging "
        f"{seconds['averaging']:.3f} s",
        markup=False,
    )
    console.print(f"expected {found.metric}:", markup=False)
    console.print(table)
    for note in found.notes:
        say(f"note: {note}")
    console.print(f"recommended: {found.recommendation}: {found.because}", markup=False)


def _result(
    found: GateTableResult, identifier: str | None, out_shared: Path | None, out_kept: Path | None
) -> dict[str, Any]:
    gated = found.decision
    rows = len(gated.mask)
    return {
        "rows": rows,
        "shared": gated.shared,
        "kept": rows - gated.shared,
        "share": gated.share,
        "groups": gated.groups,
        "largest_group": gated.largest_group,
        "counted": "rows" if identifier is None else "persons",
        "rule": gated.rule,
        "shared_columns": list(found.shared_columns),
        "unique_on_shared_columns": found.unique,
        "dropped_rows": found.dropped_rows,
        "left_out": _left_out(found),
        "notes": _notes(found),
        "out_shared": None if out_shared is None else str(out_shared),
        "out_kept": None if out_kept is None else str(out_kept),
    }


def _left_out(found: GateTableResult) -> list[dict[str, Any]]:
    gone = [
        {"what": "rows", "why": "a value is missing", "count": found.dropped_rows},
        {"what": "columns", "why": "they look like identifiers and nobody named them", "count": len(found.suspicions)},
        {"what": "columns", "why": "they tell a place or a date and nobody named them", "count": len(found.indirect)},
    ]
    return [entry for entry in gone if entry["count"]]


def _notes(found: GateTableResult) -> list[str]:
    gated, notes = found.decision, list(found.notes)
    notes += [
        f"column {name!r} {why}, so it is not shared: name it in --keep to share it"
        for name, why in found.suspicions.items()
    ]
    notes += [
        f"column {name!r} {why}, which others may know of a person, so it is not shared: name it in --quasi to count "
        "by it, or in --keep to share it as it is"
        for name, why in found.indirect.items()
    ]
    if gated.shared == 0:
        notes.append(f"no row passes: the largest of {gated.groups:,} groups counts {gated.largest_group:,}")
    elif gated.shared == len(gated.mask):
        notes.append("every row passes")
    if found.dropped_rows:
        notes.append(f"{found.dropped_rows:,} rows with missing values are left out of both parts")
    if gated.rule == "paper-l" and gated.shared:
        notes.append("paper-l selects rows whose label agrees with many others; it does not hide the label")
    if found.unique:
        notes.append(
            f"{found.unique:,} of {gated.shared:,} shared rows are unique on the {len(found.shared_columns)} shared "
            "columns: generalise them before they leave, or share fewer columns"
        )
    return notes


def _show(result: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table("figure", "value")
    for name in ("rows", "shared", "kept", "groups", "largest_group", "unique_on_shared_columns"):
        table.add_row(name.replace("_", " "), f"{result[name]:,}")
    console = stdout()
    console.print(table)
    console.print(f"{result['rule']}: {result['share']:.2%} of the rows may be shared", markup=False)
