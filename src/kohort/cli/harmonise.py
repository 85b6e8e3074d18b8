"""`kohort harmonise`: what the tables of sites disagree about, and a mapping that mends it."""

from __future__ import annotations

import json as json_format
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kohort.cli.common import ForceOption, JsonOption, emit, say, stdout

if TYPE_CHECKING:
    import polars as pl
    from rich.table import Table

    from kohort.tables.harmonise.compare import ProfileComparison
    from kohort.tables.harmonise.mapping import TableMapping
    from kohort.tables.harmonise.profiles import TableProfile

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("harmonise")(harmonise)


def harmonise(
    tables: Annotated[
        list[str],
        typer.Argument(metavar="TABLE... | PLAN.toml", help="One table per site, profiles of tables, or a plan."),
    ],
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the proposed mapping.")] = None,
    mapping: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Apply this mapping first, to see what it leaves.")
    ] = None,
    profile: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the profile of one table, and compare nothing.")
    ] = None,
    site: Annotated[str | None, typer.Option(metavar="NAME", help="The site's name in its profile.")] = None,
    target: Annotated[
        str | None, typer.Option(metavar="y", help="Column to predict: absent classes are named.")
    ] = None,
    person: Annotated[str | None, typer.Option(metavar="id", help="Column that names the person of a row.")] = None,
    min_cell: Annotated[
        int | None, typer.Option(min=1, help="Fewest persons behind a fact (10, or the plan's policy.min_cell).")
    ] = None,
    hub: Annotated[
        Path | None,
        typer.Option(metavar="HUB", help="Ask the real sites of this hub, as a plan's data.preflight says."),
    ] = None,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for sites to connect (--hub).")] = 60.0,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Compare the tables of sites, column by column, and propose a mapping that each site applies at home.

    Example: kohort harmonise north.csv south.csv west.csv --target outcome --out mapping.toml
    """
    from kohort.files import require_new, write_atomic
    from kohort.tables.harmonise.compare import compare_profiles
    from kohort.tables.harmonise.mapping import TableMapping

    known = None if mapping is None else TableMapping.load(mapping)
    options: dict[str, Any] = {"least": min_cell, "person": person, "mapping": known}
    if profile is not None:
        _write_profile(tables, profile, site=site, force=force, json=json, **options)
        return
    if out is not None:
        require_new(out, force=force)
    if hub is not None:
        others: dict[str, object] = {"--mapping": mapping, "--profile": profile, "--site": site, "--target": target}
        others |= {"--person": person, "--min-cell": min_cell}
        _of_sites(
            tables, hub, wait, unread=[name for name, value in others.items() if value is not None], out=out, json=json
        )
        return
    left_out: list[dict[str, Any]] = []
    if len(tables) == 1 and tables[0].endswith(".toml"):
        profiles, columns, target = _of_plan(Path(tables[0]), target, left_out=left_out, **options)
    else:
        named = {target} if target else set()
        profiles, columns = _of_tables(tables, named=named, left_out=left_out, **options), None
    found = compare_profiles(profiles, columns=columns, target=target)
    if out is not None:
        write_atomic(out, found.mapping_text().encode())
    if json:
        emit({**_plain(profiles, found, out), "left_out": left_out})
    else:
        _show(profiles, found, out)


def _of_sites(
    tables: Sequence[str], hub: Path, wait: float, *, unread: Sequence[str], out: Path | None, json: bool
) -> None:
    """Ask the real sites of a hub, and say what they told."""
    from kohort.errors import ConfigError
    from kohort.files import write_atomic
    from kohort.runs.config import read_plan
    from kohort.runs.left_out import shown
    from kohort.runs.preflight import require_preflight, run_preflight
    from kohort.transport.deployment.hub import HubFolder

    if len(tables) != 1 or not tables[0].endswith(".toml"):
        raise ConfigError("--hub asks sites about a plan", hint="Name one plan: kohort harmonise PLAN.toml --hub HUB")
    if unread:
        hint = "With --hub the plan and each site's own site.toml say it"
        raise ConfigError(f"{', '.join(unread)} is for tables at hand", hint=hint)
    plan = read_plan(Path(tables[0]))
    require_preflight(plan)
    with HubFolder(hub).backend(wait=wait) as backend:
        found = run_preflight(plan, backend=backend, secure_random=True)
    if out is not None:
        write_atomic(out, found.comparison.mapping_text().encode())
    rows_left_out = found.left_out(plan.data.target, missing=plan.data.missing, min_cell=plan.policy.min_cell)
    weights = found.balanced_weights()
    if json:
        counted = {"classes": dict(found.answers.classes), "class_weights": weights, "excluded": list(found.excluded)}
        whole = _plain(found.answers.profiles, found.comparison, out)
        emit({**whole, **counted, "left_out": [one.to_mapping() for one in rows_left_out]})
        return
    _show(found.answers.profiles, found.comparison, out)
    for one in found.excluded:
        say(f"warning: site {one} refused or failed, and is not compared")
    for sentence in shown(rows_left_out):
        stdout().print(sentence, markup=False)
    if weights:
        said = ", ".join(
            f"{json_format.dumps(text, ensure_ascii=False)} = {weight:g}" for text, weight in weights.items()
        )
        stdout().print(f"for classes that count alike: train.class_weights = {{{said}}}", markup=False)


def _of_plan(
    path: Path,
    target: str | None,
    *,
    left_out: list[dict[str, Any]],
    least: int | None,
    person: str | None,
    mapping: TableMapping | None,
) -> tuple[list[TableProfile], list[str], str | None]:
    """Profiles of a plan's tables, the columns it names, and its target."""
    from kohort.errors import ConfigError
    from kohort.runs.config import read_plan
    from kohort.runs.site_tables import read_site_tables

    plan = read_plan(path)
    if plan.sites.split != "files":
        hint = 'It is for sites with a table each: sites.split = "files"'
        raise ConfigError(f"the sites of {path} share one table, so they agree", hint=hint)
    data = plan.data
    frames = dict(read_site_tables(data).frames)
    features = () if data.features == "rest" else data.features
    named = [*data.quasi, *data.sensitive, *features, *data.items, *([data.target] if data.target else [])]
    hidden = {*data.drop, *data.identifiers} - {person}
    frames = {name: frame.drop(hidden, strict=False) for name, frame in frames.items()}
    frames = _without_identifiers(frames, keep={*named, *filter(None, [person])}, left_out=left_out)
    chosen = plan.policy.min_cell if least is None else least
    profiles = _profiles(frames, least=chosen, person=person, mapping=mapping)
    # With "rest" every column counts, so those that most sites have are looked for at all.
    columns = [] if data.features == "rest" else list(dict.fromkeys(named))
    return profiles, columns, target or data.target


def _of_tables(
    tables: Sequence[str],
    *,
    named: Collection[str],
    left_out: list[dict[str, Any]],
    least: int | None,
    person: str | None,
    mapping: TableMapping | None,
) -> list[TableProfile]:
    """Profiles of tables, or as they were written by `--profile`."""
    from kohort.tables.datasets.catalogue import open_table
    from kohort.tables.sources.opening import source_names

    if all(table.endswith(".json") for table in tables):
        return [_read_profile(Path(table)) for table in tables]
    names = source_names(tables)
    _require_distinct(names)
    frames = {name: open_table(table).frame for name, table in zip(names, tables, strict=True)}
    frames = _without_identifiers(frames, keep={*named, *filter(None, [person])}, left_out=left_out)
    return _profiles(frames, least=least or 10, person=person, mapping=mapping)


def _without_identifiers(
    frames: dict[str, pl.DataFrame], *, keep: Collection[str], left_out: list[dict[str, Any]]
) -> dict[str, pl.DataFrame]:
    """The tables without columns that look like an identifier wherever they are: they differ, and mean nothing."""
    from kohort.tables.roles import suspected

    suspects = {name: suspected(frame, declared=keep) for name, frame in frames.items()}
    hidden = sorted(
        column
        for column in {column for found in suspects.values() for column in found}
        if all(column in suspects[name] for name, frame in frames.items() if column in frame.columns)
    )
    if hidden:
        say(f"note: not compared, because they look like identifiers: {', '.join(hidden)}")
        left_out.append({"what": "columns", "why": "suspected identifiers", "count": len(hidden)})
    return {name: frame.drop(hidden, strict=False) for name, frame in frames.items()}


def _profiles(
    frames: dict[str, pl.DataFrame], *, least: int, person: str | None, mapping: TableMapping | None
) -> list[TableProfile]:
    from kohort.tables.harmonise.profiles import profile_table

    profiles = []
    for name, frame in frames.items():
        mapped, notes = (frame, ()) if mapping is None else mapping.apply(frame, site=name)
        for note in notes:
            say(f"note: {note}")
        profiles.append(profile_table(mapped, site=name, least=least, person=person))
    return profiles


def _write_profile(
    tables: Sequence[str],
    path: Path,
    *,
    site: str | None,
    least: int | None,
    person: str | None,
    mapping: TableMapping | None,
    force: bool,
    json: bool,
) -> None:
    from kohort.errors import ConfigError
    from kohort.files import require_new, write_atomic
    from kohort.tables.datasets.catalogue import open_table
    from kohort.tables.sources.opening import source_names

    if len(tables) != 1:
        raise ConfigError("--profile is for one table", hint="Let every site write its own")
    require_new(path, force=force)
    name = site or source_names(tables)[0]
    keep = {person} if person else set()
    frames = _without_identifiers({name: open_table(tables[0]).frame}, keep=keep, left_out=[])
    made = _profiles(frames, least=least or 10, person=person, mapping=mapping)[0]
    write_atomic(path, (json_format.dumps(made.to_plain(), indent=1, ensure_ascii=False) + "\n").encode())
    if json:
        emit({"site": made.site, "min_cell": made.least, "columns": list(made.columns), "out": str(path)})
    else:
        shared = f"what at least {made.least} persons share in {len(made.columns)} columns"
        say(f"{path} tells {shared}. Read it before it leaves")


def _read_profile(path: Path) -> TableProfile:
    from kohort.errors import DataError
    from kohort.tables.harmonise.profiles import TableProfile

    try:
        raw = json_format.loads(path.read_bytes())
    except (OSError, ValueError):
        raise DataError(f"{path} is not the profile of a table", hint="Make it with --profile") from None
    return TableProfile.from_plain(raw)


def _require_distinct(names: Sequence[str]) -> None:
    from kohort.errors import ConfigError

    if len(set(names)) < len(names):
        raise ConfigError("two tables have the same name", hint="Name each file after its site")


def _plain(profiles: Sequence[TableProfile], found: ProfileComparison, out: Path | None) -> dict[str, Any]:
    return {
        "sites": {profile.site: {"rows": profile.rows} for profile in profiles},
        "min_cell": max(profile.least for profile in profiles),
        "agree": not found.disagreements,
        "disagreements": [one.to_plain() for one in found.disagreements],
        "mapping": found.mapping.to_plain(),
        "suggestions": list(found.suggestions),
        "out": None if out is None else str(out),
    }


def _show(profiles: Sequence[TableProfile], found: ProfileComparison, out: Path | None) -> None:
    sizes = ", ".join(f"{profile.site}: {profile.rows} rows" for profile in profiles)
    console = stdout()
    console.print(f"{len(profiles)} sites ({sizes})", markup=False)
    if not found.disagreements:
        console.print("They agree in all columns", markup=False)
        return
    console.print(_table(found))
    for suggestion in found.suggestions:
        console.print(f"to decide: {suggestion}", markup=False)
    mended = sum(one.mended for one in found.disagreements)
    said = f"{len(found.disagreements)} disagreements, {mended} of them fixed by the proposed mapping"
    console.print(f"{said}{'' if out is None else f': {out}'}", markup=False)
    if out is None and mended:
        console.print(
            "Write it with --out mapping.toml, check it, and set data.mapping of the plan to it", markup=False
        )


def _table(found: ProfileComparison) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table("column", "kind", "what", "fixed")
    for one in found.disagreements:
        table.add_row(Text(one.column or "-"), one.kind, Text(one.message), "yes" if one.mended else "no")
    return table
