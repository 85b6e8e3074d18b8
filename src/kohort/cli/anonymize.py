"""`kohort anonymize`: generalise the quasi-identifiers of a table until every class is large and diverse enough.

With `--items`, sets of items are generalised too, to (k, k^m)-anonymity.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kohort.cli import anonymize_options as read
from kohort.cli.anonymize_parts import fits_parts, release_in_parts
from kohort.cli.common import (
    DropOption,
    ForceOption,
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
from kohort.cli.tables import audit_lines, audit_table

if TYPE_CHECKING:
    import polars as pl
    from rich.table import Table

    from kohort.anonymity.itemsets.kkm import KKmResult
    from kohort.anonymity.relational.anonymise import Anonymised, Report
    from kohort.tables.hierarchy import Hierarchy
    from kohort.tables.prepared import Declared, Prepared, ScannedRelease

__all__ = ["register"]

REORDERED = (
    "rows are written in the order of their released values, because the order of the input tells about persons; "
    "--keep-order keeps it, to compare two releases of the same rows"
)


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("anonymize")(anonymize)


def anonymize(
    table: TableArgument,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="CSV, Parquet or Arrow, by its ending.")],
    quasi: QuasiOption = None,
    sensitive: SensitiveOption = None,
    target: Annotated[str | None, typer.Option("--target", metavar="y", help="The column to predict.")] = None,
    items: ItemsOption = None,
    identifiers: IdentifiersOption = None,
    person: PersonOption = None,
    drop: DropOption = None,
    keep: KeepOption = None,
    separator: SeparatorOption = None,
    null: NullsOption = None,
    schema: SchemaOption = None,
    k: Annotated[int, typer.Option("--k", help="Fewest rows per class, at least 2.")] = 10,
    l: Annotated[float, typer.Option("--l", help="Fewest sensitive values per class; 0: no bound.")] = 0,  # noqa: E741
    t: Annotated[float, typer.Option("--t", help="Largest distance of a class from the table; 0: no bound.")] = 0.0,
    l_kind: Annotated[str, typer.Option("--l-kind", help="distinct, entropy or recursive.")] = "distinct",
    c: Annotated[float, typer.Option("--c", help="The c of recursive (c, l)-diversity.")] = 3.0,
    t_kind: Annotated[str, typer.Option("--t-kind", help="emd or kl.")] = "emd",
    alpha: Annotated[float, typer.Option("--alpha", help="Largest share of a sensitive value in a class.")] = 0.0,
    beta: Annotated[
        float, typer.Option("--beta", help="beta-likeness: largest relative gain of a value's share.")
    ] = 0.0,
    beta_kind: Annotated[str, typer.Option("--beta-kind", help="basic or enhanced.")] = "basic",
    disclosure: Annotated[float, typer.Option("--disclosure", help="delta of delta-disclosure privacy.")] = 0.0,
    risk: Annotated[float, typer.Option("--risk", help="Largest chance to re-identify a row, such as 0.05.")] = 0.0,
    population: Annotated[
        str | None,
        typer.Option(metavar="N|TABLE", help="The population it is drawn from: its size, or a table."),
    ] = None,
    presence: Annotated[
        str | None,
        typer.Option(metavar="LOW,HIGH", help="delta-presence: bounds of the chance to be in the release."),
    ] = None,
    rounding: Annotated[
        list[str] | None, typer.Option("--round", metavar="COLUMN=STEP", help="Round the numbers of a column.")
    ] = None,
    top: Annotated[
        list[str] | None, typer.Option("--top", metavar="COLUMN=N", help="Top coding: larger numbers become N.")
    ] = None,
    bottom: Annotated[
        list[str] | None, typer.Option("--bottom", metavar="COLUMN=N", help="Bottom coding: smaller numbers become N.")
    ] = None,
    mean: Annotated[
        str | None, typer.Option("--mean", metavar="a,b", help="Microaggregation: class means instead of intervals.")
    ] = None,
    m: Annotated[int | None, typer.Option("--m", help="Items an attacker may know: 1 to 3 (2 when unset).")] = None,
    algorithm: Annotated[
        str, typer.Option(help="auto, exact-cluster, cluster, mondrian, mdav, thesis, lattice, kkm.")
    ] = "auto",
    hierarchies: Annotated[
        str, typer.Option(metavar="auto|intervals|DIR", help="auto, intervals, or a folder with one CSV per column.")
    ] = "auto",
    levels: Annotated[
        str | None, typer.Option(metavar="a=1,b=2", help="Generalise every row to these levels of the hierarchies.")
    ] = None,
    keep_exact: Annotated[str, typer.Option(help="yes, no, or thesis (unguarded: may break k).")] = "yes",
    hierarchy: Annotated[
        list[str] | None,
        typer.Option("--hierarchy", metavar="COLUMN=FILE", help="Hierarchy of one column; the others are automatic."),
    ] = None,
    suppression: Annotated[
        float, typer.Option(help="Share of rows that may be suppressed: those whose suppression saves most.")
    ] = 0.0,
    balance: Annotated[
        float, typer.Option(help="What a suppressed row costs: 0 nothing, 0.5 as a row of suppressed cells, 1 all.")
    ] = 0.0,
    weight: Annotated[
        list[str] | None,
        typer.Option("--weight", metavar="COLUMN=W", help="How much the loss of a column counts (1 when unset)."),
    ] = None,
    delta: Annotated[float, typer.Option(help="kkm: relational loss up to which classes may be merged.")] = 0.95,
    merge: Annotated[
        str, typer.Option(help="kkm: classes to merge: paying, all (up to delta), printed (the paper's order), none.")
    ] = "paying",
    item_hierarchy: Annotated[
        str, typer.Option(metavar="none|auto|icd9|icd10|FILE", help="kkm: groups of items, or labels of a hierarchy.")
    ] = "none",
    item_groups: Annotated[str, typer.Option(help="kkm: per-cluster or table-wide.")] = "per-cluster",
    rare: Annotated[
        str,
        typer.Option(help="kkm: generalise rare combinations of items, recode or suppress single items of them."),
    ] = "generalise",
    item_suppression: Annotated[float, typer.Option(help="kkm: share of items that may be suppressed.")] = 1.0,
    max_set: Annotated[
        int, typer.Option(metavar="N", min=1, help="Most values in a released set; larger ones are suppressed.")
    ] = 10,
    account: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keep account of releases; refuse one that crosses an earlier one."),
    ] = None,
    missing: MissingOption = "category",
    write_hierarchies: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write the hierarchies of the released labels.")
    ] = None,
    audit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Attack the release, and write what was found.")
    ] = None,
    control: Annotated[
        str | None, typer.Option(metavar="TABLE", help="With --audit: rows of persons who are not in it.")
    ] = None,
    keep_order: Annotated[
        bool, typer.Option("--keep-order", help="Write rows in their order, even where it tells about persons.")
    ] = False,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Release a table in which every row shares its quasi-identifiers with at least k - 1 others.

    Identifiers are left out. Every other column needs a role, or a place in --drop or --keep.

    Example: kohort anonymize adult:train --quasi age,race,sex --sensitive income --drop rest --out a.parquet

    With items: kohort anonymize diabetes_130us --quasi age,gender,race --items diagnoses --drop rest --out d.parquet
    """
    from kohort.files import require_new
    from kohort.tables.dialect import ReadingOptions
    from kohort.tables.frames import ITEM_SEPARATOR, handle_missing, in_value_order, order_tells, write_table
    from kohort.tables.prepared import Declared, prepare

    read.check_rule(k, l, t)
    declared = Declared(
        quasi=names(quasi),
        sensitive=names(sensitive),
        target=target,
        items=names(items),
        identifiers=names(identifiers),
        person=person,
        drop=names(drop),
        keep=names(keep),
        reading=ReadingOptions(separator=separator, null_values=null_values(null)),
    ).with_file(schema)
    if not declared.items:  # items alone: all rows are one class
        require_quasi(declared.quasi)
    exact = read.keep_exact(keep_exact)
    if declared.items:
        others = {"--alpha": alpha, "--beta": beta, "--disclosure": disclosure, "--risk": risk, "--weight": weight,
                  "--hierarchy": hierarchy, "--balance": balance, "--presence": presence, "--population": population,
                  "--round": rounding, "--top": top, "--bottom": bottom, "--mean": mean}  # fmt: skip
        read.check_item_options(algorithm, l=l, t=t, levels=levels, suppression=suppression, others=others)
    else:
        read.check_relational_options(algorithm, m=m)
    require_new(out, force=force)
    read.check_places(out, audit=audit, account=account, hierarchies=write_hierarchies)
    _check_audit(audit, control, force=force)
    asked: dict[str, Any] = {}
    if not declared.items:
        asked = {
            "quasi": declared.quasi,
            "sensitive": declared.sensitive,
            "target": declared.target,
            "k": k,
            "l": l,
            "t": t,
            "c": c,
            "l_kind": l_kind,
            "t_kind": t_kind,
            "alpha": alpha,
            "beta": beta,
            "beta_kind": beta_kind,
            "delta": disclosure,
            "risk": risk,
            "population": read.population_of(population, declared.quasi),
            "presence": read.presence_of(presence),
            "rounding": read.column_numbers("--round", rounding),
            "top": read.column_numbers("--top", top),
            "bottom": read.column_numbers("--bottom", bottom),
            "means": names(mean),
            "algorithm": algorithm,
            "hierarchies": read.with_own(read.hierarchies(hierarchies), hierarchy, declared.quasi),
            "levels": read.levels(levels),
            "keep_exact": exact,
            "suppression_limit": suppression,
            "balance": balance,
            "weights": read.column_numbers("--weight", weight),
            "max_set": max_set,
            "missing": missing,
        }
        if account is None and audit is None and fits_parts(table, out, declared, asked):
            _in_parts(table, out, declared, asked, write_hierarchies, keep_order=keep_order, force=force, json=json)
            return
    prepared = prepare(table, declared)
    frame = prepared.for_release()
    declared = prepared.declared
    columns, sets, private, target = declared.quasi, declared.items, declared.sensitive, declared.target
    made: Anonymised | KKmResult
    if sets:
        from kohort.anonymity.itemsets.kkm import anonymise_items

        made = anonymise_items(
            frame,
            quasi=columns,
            items=sets,
            sensitive=private,
            target=target,
            k=k,
            m=2 if m is None else m,
            delta=delta,
            merge=merge,  # type: ignore[arg-type] # any other word is refused there
            groups=item_groups,  # type: ignore[arg-type]
            rare=rare,  # type: ignore[arg-type]
            item_hierarchy=read.item_hierarchy(item_hierarchy, sets[0]),
            hierarchies=read.given_hierarchies(hierarchies, frame, columns, target),
            suppression_limit=item_suppression,
            identifier=prepared.person,
            missing=missing,  # type: ignore[arg-type]
        )
        figures = made.to_mapping()
    else:
        from kohort.anonymity.relational.anonymise import anonymise

        # for_release has judged the columns
        made = anonymise(frame, keep=None, person=prepared.person, **asked)
        figures = made.report.to_mapping()
    complete = handle_missing(frame, frame.columns, missing)  # type: ignore[arg-type]
    if account is not None:
        rule = {"items": sets, "k": k, "m": 2 if m is None else m} if sets else _judged_by(asked, complete.height)
        _keep_account(account, made, complete, prepared.person, out, rule)
    sortable = [name for name in (*prepared.identifiers, *columns) if name in prepared.frame.columns]
    tells = prepared.in_dropped_order or order_tells(prepared.frame, sortable, prepared.person)
    moved = tells and not keep_order
    released = prepared.as_in_file(made.frame, out)
    notes = (*_missing_codes(prepared), *made.report.notes, *((REORDERED,) if moved else ()))
    write_table(
        in_value_order(released) if moved else released,
        out,
        force=force,
        item_separator=declared.reading.separator or ITEM_SEPARATOR,
    )
    if write_hierarchies is not None:
        _write_hierarchies(_hierarchies_of(made, sets), write_hierarchies, force=force)
    found = _attacked(audit, control, declared, made, complete)
    _tell(prepared, made.report, notes, out, figures=figures, found=found, json=json)


def _in_parts(
    table: str,
    out: Path,
    declared: Declared,
    asked: Mapping[str, Any],
    hierarchies: Path | None,
    *,
    keep_order: bool,
    force: bool,
    json: bool,
) -> None:
    """Anonymise a table that is too large to be held, and say what was released."""
    opened, made, notes = release_in_parts(table, out, declared, asked, keep_order=keep_order)
    if hierarchies is not None:
        _write_hierarchies(made.hierarchies, hierarchies, force=force)
    moved = opened.order_tells and not keep_order
    _tell(opened, made.report, (*notes, *made.report.notes, *((REORDERED,) if moved else ())), out, json=json)


def _tell(
    prepared: Prepared | ScannedRelease,
    report: Report,
    notes: tuple[str, ...],
    out: Path,
    *,
    figures: Mapping[str, Any] | None = None,
    found: Mapping[str, Any] | None = None,
    json: bool,
) -> None:
    """What was released, as JSON or for people; `figures` where they are not the report's alone."""
    mapping = report.to_mapping() if figures is None else figures
    if json:
        emit({**mapping, "notes": list(notes), "out": str(out), **_beside(prepared, report), **(found or {})})
    else:
        _print(prepared, report, notes, out)
        _print_audit(found or {})


def _missing_codes(prepared: Prepared) -> tuple[str, ...]:
    """Numbers of released columns that seem to mean a missing value."""
    from kohort.tables.prepared import missing_code_lines

    released = [name for name in prepared.frame.columns if name not in prepared.identifiers]
    return missing_code_lines(prepared.frame, released, known=prepared.known)


def _check_audit(audit: Path | None, control: str | None, *, force: bool) -> None:
    """Refuse a place that is taken, and others to compare with where nothing is attacked."""
    from kohort.errors import ConfigError
    from kohort.files import require_new

    if control is not None and audit is None:
        raise ConfigError("--control is for --audit", hint="Add --audit FILE, or drop --control")
    if audit is not None:
        require_new(audit, force=force)


def _attacked(
    out: Path | None,
    control: str | None,
    declared: Declared,
    made: Anonymised | KKmResult,
    complete: pl.DataFrame,
) -> dict[str, Any]:
    """Attack a release with what its maker knows of it as the referee, and write what was found."""
    if out is None:
        return {}
    from kohort.report.audits import write_audits
    from kohort.runs.auditing.on_release import MadeRelease, audit_release
    from kohort.tables.prepared import prepare

    release = MadeRelease(
        table=made.frame,
        rows=complete[made.kept.tolist()].select(made.frame.columns),
        classes=made.cluster if hasattr(made, "cluster") else made.classes,
        quasi=declared.quasi,
        sensitive=declared.sensitive,
        target=declared.target,
        hierarchies=made.hierarchies,
    )
    others = None if control is None else prepare(control, declared).for_release()
    found = audit_release(release, name="the release", control=others).to_mapping()
    write_audits(out, [found])
    return {"audit": found}


def _print_audit(found: Mapping[str, Any]) -> None:
    if found:
        stdout().print(audit_table(found["audit"]))
        for line in audit_lines(found["audit"]):
            stdout().print(line, markup=False)


def _print(prepared: Prepared | ScannedRelease, report: Report, notes: tuple[str, ...], out: Path) -> None:
    """The release for people: notes, figures, and where it is."""
    for note in (*prepared.reading, *notes):
        say(f"note: {note}")
    if prepared.identifiers:
        say(f"note: identifiers are left out: {', '.join(prepared.identifiers)}")
    stdout().print(_table(report, "rows" if prepared.person is None else "persons"))
    if not report.verified:
        say(f"warning: the release breaks its rule: {'; '.join(report.problems)}")
    stdout().print(f"Written to {out}", markup=False)


def _judged_by(asked: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """The rule of a table without items, as the checker takes it."""
    from kohort.anonymity.relational.population import k_of_risk
    from kohort.anonymity.relational.rule import Rule
    from kohort.anonymity.relational.verify import asked_of

    names = ("l", "l_kind", "c", "t", "t_kind", "alpha", "beta", "beta_kind", "delta")
    size = asked["population"] if isinstance(asked["population"], int) else None
    k = max(asked["k"], k_of_risk(asked["risk"], size, rows))
    return {**asked_of(Rule(k=k, **{name: asked[name] for name in names})), "sensitive": asked["sensitive"]}


def _keep_account(
    account: Path,
    made: Anonymised | KKmResult,
    rows: pl.DataFrame,
    person: str | None,
    out: Path,
    rule: Mapping[str, Any],
) -> None:
    """Note the release before it is written, or refuse it; one process at a time reads and writes the account."""
    from kohort.anonymity.checker.added_rows import added_rows_meet
    from kohort.files import FolderLock
    from kohort.privacy.releases import ReleaseAccount, units_of

    classes = made.cluster if hasattr(made, "cluster") else made.classes
    released = rows[made.kept.tolist()]
    judged = released.with_columns(made.frame[name] for name in rule.get("items", ()))
    units, lock = units_of(released, person), FolderLock(account.absolute().parent)
    lock.take(wait=True)
    try:
        ReleaseAccount(account).admit(
            out.name,
            units,
            classes,
            meets=lambda places: added_rows_meet(judged, places, persons=person, **rule),
        )
    finally:
        lock.release()


def _beside(prepared: Prepared | ScannedRelease, report: Report) -> dict[str, object]:
    """What was left out, and how the table was read."""
    gone = [
        {"what": "rows", "why": "suppressed, within the limit", "count": report.suppressed_rows},
        {"what": "cells", "why": "suppressed", "count": report.suppressed_cells},
        {"what": "columns", "why": "they are identifiers", "count": len(prepared.identifiers)},
    ]
    return {"left_out": [entry for entry in gone if entry["count"]], "reading": list(prepared.reading)}


def _hierarchies_of(made: Anonymised | KKmResult, sets: tuple[str, ...]) -> dict[str, Hierarchy]:
    """The hierarchies of released labels and items."""
    item_hierarchy = getattr(made, "item_hierarchy", None)
    return {**made.hierarchies, **({} if item_hierarchy is None else {sets[0]: item_hierarchy})}


def _write_hierarchies(written: Mapping[str, Hierarchy], folder: Path, *, force: bool) -> None:
    if not written:
        say(f"note: no released label has a hierarchy, so nothing is written to {folder}")
    for name, hierarchy in written.items():
        hierarchy.write(folder / f"{name}.csv", force=force)


def _table(report: Report, counted: str) -> Table:
    from rich.table import Table

    table = Table("figure", "value", "meaning")
    meanings = {
        "rows": "rows of the input",
        "rows_out": "rows released",
        "classes": f"by {report.algorithm}",
        "k": f"{counted} of the smallest class",
        "l_distinct": "fewest sensitive values of a class",
        "l_entropy": "smallest exp(entropy) of a class",
        "t_emd": "largest distance of a class from the table (EMD)",
        "t_kl": "the same (KL, nats)",
        "km": f"fewest {counted} that share a class and up to m items",
        "ncp": "mean share of the range or of the values that a cell stands for; suppressed: 1",
        "ncp_released": "the same over the released rows",
        "entropy_loss": "share of the association with the target that is lost, corrected for small samples",
        "item_loss": "mean share of the items that a released item stands for; suppressed: 1",
        "suppressed_rows": "rows suppressed",
        "suppressed_cells": "cells suppressed",
        "seconds": "running time",
    }
    for name, meaning in meanings.items():
        value = getattr(report, name)
        if value is not None:
            table.add_row(name, f"{value:,}" if isinstance(value, int) else f"{value:.4f}", meaning)
    return table
