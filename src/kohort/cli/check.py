"""`kohort check`: measure how anonymous a table is, and the risk of re-identification."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kohort.cli.anonymize_options import population_of
from kohort.cli.common import (
    DropOption,
    IdentifiersOption,
    ItemsOption,
    JsonOption,
    KeepOption,
    MissingOption,
    NullsOption,
    PersonOption,
    QuasiOption,
    SchemaOption,
    SensitiveOption,
    SeparatorOption,
    TableArgument,
    emit,
    names,
    null_values,
    require_quasi,
    say,
    stdout,
)

if TYPE_CHECKING:
    import polars as pl
    from rich.table import Table

    from kohort.anonymity.checker.joint_release import JointRelease
    from kohort.anonymity.checker.measures import Anonymity
    from kohort.anonymity.checker.population import InPopulation
    from kohort.anonymity.risk.identifiers import ColumnWarning
    from kohort.anonymity.risk.reidentification import Distinguishability, Risk
    from kohort.tables.prepared import Declared

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("check")(check)


def check(
    table: TableArgument,
    second: Annotated[
        str | None,
        typer.Argument(metavar="[TABLE2]", help="Another release of the same rows: who do both together isolate?"),
    ] = None,
    quasi: QuasiOption = None,
    sensitive: SensitiveOption = None,
    items: ItemsOption = None,
    m: Annotated[int | None, typer.Option("--m", help="Items an attacker may know (2 when unset).")] = None,
    person: PersonOption = None,
    identifiers: IdentifiersOption = None,
    drop: DropOption = None,
    keep: KeepOption = None,
    separator: SeparatorOption = None,
    null: NullsOption = None,
    schema: SchemaOption = None,
    population: Annotated[
        str | None,
        typer.Option(metavar="N|TABLE", help="The population it is drawn from: its size, or a table."),
    ] = None,
    hierarchies: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Hierarchies of released labels, to count whom they stand for.")
    ] = None,
    missing: MissingOption = "category",
    json: JsonOption = False,
) -> None:
    """Measure k, l, t, k^m and the risk of re-identification.

    Example: kohort check adult:train --quasi age,race,sex --sensitive income

    Two releases of the same rows: kohort check first.csv second.csv --quasi age,race,sex
    """
    from kohort.errors import ConfigError
    from kohort.tables.dialect import ReadingOptions
    from kohort.tables.prepared import Declared

    reading = ReadingOptions(separator=separator, null_values=null_values(null))
    declared = Declared(
        quasi=names(quasi),
        sensitive=names(sensitive),
        items=names(items),
        identifiers=names(identifiers),
        person=person,
        drop=names(drop),
        keep=names(keep),
        reading=reading,
    ).with_file(schema)
    require_quasi(declared.quasi)
    if m is not None and not declared.items:
        raise ConfigError("--m needs --items", hint="Name the column that holds the sets")
    seen = _look(table, declared, m=2 if m is None else m, missing=missing, population=population, second=second,
                 hierarchies=hierarchies)  # fmt: skip
    found, risk, beside, both, dropped = seen.found, seen.risk, seen.beside, seen.both, seen.dropped
    if json:
        emit(
            {
                **found.to_mapping(),
                **({} if both is None else {"together": vars(both)}),
                **({} if beside is None else {"population": beside.to_mapping()}),
                "risk": risk.to_mapping(),
                "identifying": [one.to_mapping() for one in seen.identifying],
                "warnings": [one.to_mapping() for one in seen.warnings],
                "dropped_rows": dropped,
                "left_out": [{"what": "rows", "why": "a value is missing", "count": dropped}] if dropped else [],
                "reading": list(seen.reading),
                "notes": list(seen.notes),
            }
        )
        return
    for note in (*seen.reading, *seen.notes):
        say(f"note: {note}")
    for line in _warning_lines(seen.warnings):
        say(line)
    if dropped:
        say(f"note: {dropped:,} rows with missing values are left out")
    console = stdout()
    console.print(_figures(found, risk, seen.counted))
    console.print(_columns(seen.identifying))
    if beside is not None:
        console.print(
            f"beside {beside.population:,} persons of the population: {beside.k_map:,}-map, chance of presence "
            f"{beside.presence_low:.4g} to {beside.presence_high:.4g}",
            markup=False,
        )
    console.print(_verdict(found), markup=False)
    if both is not None:
        console.print(
            f"both releases: together they are k-anonymous with k = {both.k:,}; {both.isolated:,} of {both.rows:,} "
            f"rows are in classes smaller than the {both.promised:,} each release promises",
            markup=False,
        )
        say("note: rows are compared by their place; kohort anonymize says where it moved them (--keep-order)")


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """All that the command says about a table."""

    found: Anonymity
    risk: Risk
    identifying: tuple[Distinguishability, ...]
    warnings: tuple[ColumnWarning, ...]
    beside: InPopulation | None
    both: JointRelease | None
    dropped: int
    reading: tuple[str, ...]
    notes: tuple[str, ...]
    """Numbers that seem to mean a missing value."""
    counted: str
    """What k counts: rows, or persons where a column names them."""


def _look(
    source: str,
    declared: Declared,
    *,
    m: int,
    missing: str,
    population: str | None,
    second: str | None,
    hierarchies: Path | None,
) -> _Seen:
    """Measure a table: one counting of its combinations feeds all figures."""
    from kohort.anonymity.checker.combinations import combine
    from kohort.anonymity.checker.measures import km_anonymity, measure_combinations
    from kohort.anonymity.risk.identifiers import identifier_warnings
    from kohort.anonymity.risk.reidentification import distinguishability, risk_of_classes
    from kohort.tables.prepared import missing_code_lines, scan
    from kohort.tables.scanning import readable

    opened = scan(source, declared)
    columns = [name for name in opened.table.collect_schema().names() if name not in opened.identifiers]
    quasi, items = declared.quasi, opened.declared.items
    people = population_of(population, quasi)
    with readable(source):
        where, dropped = _kept_rows(opened.table, missing)
        counted = combine(opened.table, quasi=quasi, sensitive=declared.sensitive, persons=opened.person, where=where)
        found = measure_combinations(counted)
        kept = opened.table if where is None else opened.table.filter(where)
        if items:
            km = km_anonymity(kept.collect(), items=items, m=m, quasi=quasi, persons=opened.person)
            found = replace(found, km=km, m=m)
        return _Seen(
            found=found,
            risk=risk_of_classes(found.histogram, population_size=people if isinstance(people, int) else None),
            identifying=distinguishability(counted, found.histogram),
            warnings=identifier_warnings(
                kept,
                quasi=quasi,
                sensitive=declared.sensitive,
                items=items,
                identifiers=opened.identifiers,
                others=declared.keep,
            ),
            beside=_beside(kept, people, quasi, hierarchies, opened.person),
            both=None if second is None else _both(opened.table, second, declared),
            dropped=dropped,
            reading=opened.reading,
            notes=missing_code_lines(opened.table, columns, known=opened.known),
            counted="rows" if opened.person is None else "persons",
        )


def _kept_rows(table: pl.LazyFrame, missing: str) -> tuple[pl.Expr | None, int]:
    """The condition of the rows that are looked at, and how many others there are."""
    import polars as pl

    from kohort.tables.frames import Missing, complete_where, none_complete

    how: Missing = missing  # type: ignore[assignment] # any other word is refused by complete_where
    columns = table.collect_schema().names()
    where = complete_where(columns, how)
    if where is None:
        return None, 0
    rows, complete = table.select(pl.len(), where.sum().alias("complete")).collect(engine="streaming").row(0)
    if complete == 0:
        raise none_complete(rows, len(columns))
    return where, rows - complete


def _both(first: pl.LazyFrame, second: str, declared: Declared) -> JointRelease:
    """What two releases of the same rows show together: both are held as a whole, for rows are compared by place."""
    from kohort.anonymity.checker.joint_release import joint_release
    from kohort.tables.prepared import scan

    other = scan(second, declared).table
    return joint_release(first.collect(), other.collect(), quasi=declared.quasi)


def _beside(
    table: pl.LazyFrame, people: Any, quasi: tuple[str, ...], hierarchies: Path | None, person: str | None
) -> InPopulation | None:
    """What holds beside a table of the population; None where none is given."""
    from kohort.anonymity.checker.population import in_population
    from kohort.tables.hierarchy import read_hierarchies

    if people is None or isinstance(people, int):
        return None
    given = {} if hierarchies is None else read_hierarchies(hierarchies)
    return in_population(table.collect(), people, quasi=quasi, hierarchies=given, persons=person)


def _figures(found: Anonymity, risk: Risk, counted: str) -> Table:
    from rich.table import Table

    rows: list[tuple[str, int | float | None, str]] = [
        ("rows", found.rows, ""),
        ("classes", found.classes, f"{found.average_class:,.1f} rows on average, {found.largest_class:,} at most"),
        ("k", found.k, f"{counted} of the smallest class"),
        ("unique rows", found.uniques, f"{risk.sample_uniqueness:.2%} of the rows"),
        ("k^m", found.km, f"fewest {counted} that share a class and up to {found.m} items"),
        ("l (distinct)", found.l_distinct, "fewest values in a class"),
        ("l (entropy)", found.l_entropy, "smallest exp(entropy) of a class"),
        ("recursive (c, 2)", found.recursive_c, "holds for every c above"),
        ("t (EMD)", found.t_emd, "largest distance of a class from the table"),
        ("t (KL)", found.t_kl, "the same in nats"),
        ("alpha", found.alpha, "largest share of one value in a class"),
        ("beta", found.beta, "largest relative gain in belief"),
        ("beta (enhanced)", found.beta_enhanced, "the same, none if a bound is broken"),
        ("delta", found.delta, "largest |ln| of shares, none if a value is absent from a class"),
        ("prosecutor risk", risk.prosecutor_max, f"highest; {risk.prosecutor_mean:.4g} on average"),
        ("journalist risk", risk.journalist_max, f"highest; {risk.journalist_mean or 0:.4g} on average"),
        ("marketer risk", risk.marketer, "share of rows expected to be matched"),
        *((f"risk above {limit:g}", count, "rows") for limit, count in risk.rows_above.items()),
    ]
    if risk.population is not None:
        meaning = f"estimated ({risk.population.model}), of {risk.population.population_size:,} rows"
        rows.append(("unique in population", risk.population.share, meaning))
    table = Table("measure", "value", "meaning")
    for name, value, meaning in rows:
        if value is not None:
            table.add_row(name, _text(value), meaning)
    return table


def _columns(identifying: Iterable[Any]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table("quasi-identifier", "distinction", "separation")
    for one in identifying:
        name = one.columns[0] if len(one.columns) == 1 else "all together"
        table.add_row(Text(name), f"{one.distinction:.4f}", f"{one.separation:.4f}")
    return table


def _verdict(found: Anonymity) -> str:
    if found.k == 1:
        shown = f"not anonymous: {found.uniques:,} of {found.rows:,} rows are unique on the quasi-identifiers"
    else:
        shown = f"{found.k}-anonymous: every row shares its quasi-identifiers with at least {found.k - 1:,} others"
    if found.km is not None and found.km < found.k:
        shown += f"; knowing up to {found.m} items leaves {found.km:,} candidate rows"
    if found.l_distinct == 1:
        columns = ", ".join(one.column for one in found.sensitive if one.l_distinct == 1)
        shown += f"; some class has a single value of {columns}, which discloses it"
    return shown


def _warning_lines(warnings: Iterable[ColumnWarning]) -> list[str]:
    """One line per suspected identifier, and one for all columns without a role."""
    suspicions, undeclared = [], []
    for one in warnings:
        if one.reason == "undeclared":
            undeclared.append(one.column)
        else:
            suspicions.append(f"warning: {one.message}")
    if undeclared:
        suspicions.append(f"warning: not checked, because they have no role: {', '.join(undeclared)}")
    return suspicions


def _text(value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return "none" if value == float("inf") else f"{value:.6g}"
