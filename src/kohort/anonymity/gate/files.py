"""A gate over a whole table on disk, to two files: the rows that may be shared and the rows that are kept.

A Parquet table is read in parts, more than once, so that only the columns the gate looks at are ever held as a whole.

Guarantees: every row that is not left out for missing values is in exactly one of the two files, in table order; the
identifier is never in the shared file; each file is there as a whole or not at all, and existing ones stay unless
`force` is given.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from glob import escape
from pathlib import Path
from typing import Any, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.anonymity.gate.gate import GateDecision, GateRule, apply_gate, find_rule, sets_as_text
from kohort.errors import ConfigError, DataError, nearest, nearest_column
from kohort.files import UNFINISHED, disk_errors, require_new
from kohort.tables.datasets.catalogue import open_table
from kohort.tables.dialect import ReadingOptions
from kohort.tables.frames import ENDINGS, TEXT_ENDINGS, Missing, from_native, write_table
from kohort.tables.parts import write_parts
from kohort.tables.prepared import missing_code_lines
from kohort.tables.reading import ROW, restore_texts
from kohort.tables.roles import indirect, suspected
from kohort.tables.scanning import is_parquet, readable, scan_parquet

__all__ = ["GateTableResult", "gate_table"]

Mask = NDArray[np.bool_]
PART_ROWS = 1 << 20
SAMPLE_ROWS = 100_000
MOST_COMBINATIONS = 1 << 21
COUNT, VERDICT = "kohort count", "kohort verdict"
# Any two seeds do: the pair of hashes is what tells rows apart.
SEEDS = (0x6B6F686F, 0x72746761)


@dataclass(frozen=True, kw_only=True)
class GateTableResult:
    """What was decided about a table.

    Attributes:
        decision: The gate's decision about the rows that are not left out.
        dropped_rows: Rows left out for missing values.
        shared_columns: Columns of the shared file.
        unique: Shared rows that no other shared row equals in these columns.
        suspicions: Columns that look like identifiers, and so are not shared, and why.
        indirect: Columns that tell a place or a date and that nobody named, and so are not shared, and why.
        notes: How the file was read, and numbers that seem to mean a missing value.
    """

    decision: GateDecision
    dropped_rows: int
    shared_columns: tuple[str, ...]
    unique: int
    suspicions: Mapping[str, str] = field(default_factory=dict)
    indirect: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def gate_table(
    source: str,
    *,
    quasi: Sequence[str],
    sensitive: str | None = None,
    identifier: str | None = None,
    missing: Missing = "category",
    shared_columns: Sequence[str] = (),
    hidden: Sequence[str] = (),
    keep: Sequence[str] = (),
    reading: ReadingOptions | None = None,
    out_shared: Path | None = None,
    out_kept: Path | None = None,
    force: bool = False,
    **rule: Any,
) -> GateTableResult:
    """Apply a gate to a named dataset or file, and write both parts.

    Args:
        source: A named dataset, a path, or `-` for CSV on standard input.
        quasi: Names of the quasi-identifiers.
        sensitive: Name of the sensitive column.
        identifier: Name of the column that says who a row is about.
        missing: "category" (null is a value) or "drop" (only complete rows).
        shared_columns: Columns to share; without them, all but identifiers, `hidden` ones, those that look like
            identifiers, and places and dates that nobody named.
        hidden: Further columns that are not shared: identifiers and dropped ones.
        keep: Columns that are shared although they look like identifiers, or tell a place or a date.
        reading: What is declared about a file.
        out_shared: File for the rows that pass.
        out_kept: File for the rows that do not.
        force: Replace existing files.
        **rule: The other arguments of `kohort.anonymity.gate.gate.apply_gate`.

    Returns:
        The decision and what the shared rows would still give away.

    Raises:
        ConfigError: An option is unknown, the identifier would be shared, or both parts go to the same file.
        DataError: The source cannot be read, lacks a column or has no complete row.
    """
    if missing not in get_args(Missing):
        raise ConfigError(f"unknown way to handle missing values {missing!r}", hint=nearest(missing, get_args(Missing)))
    _check_outputs(out_shared, out_kept, force=force)
    with readable(source):
        opened = _open(source, reading)
        table = opened.table
        names = [name for name in table.collect_schema().names() if name != ROW]
        _require([*hidden, *keep], names)
        named = {*quasi, *hidden, *keep, *shared_columns, *(one for one in (sensitive, identifier) if one is not None)}
        sample = _sample(table, names)
        suspicions = {} if shared_columns else suspected(sample, declared=named)
        known = {} if shared_columns else indirect(sample, declared={*named, *suspicions})
        shared = _shared_columns(names, shared_columns, {identifier, *hidden, *suspicions, *known})
        looked_at = [*quasi, *(name for name in (sensitive, identifier) if name is not None)]
        _require(looked_at, names)
        complete = _complete_rows(table) if missing == "drop" else None
        roles = _Roles(quasi=tuple(quasi), sensitive=sensitive, identifier=identifier)
        decision = _decide(table, roles, complete, rule)
        passes = decision.mask if complete is None else _among_all_rows(decision.mask, complete)
        found = GateTableResult(
            decision=decision,
            dropped_rows=0 if complete is None else int((~complete).sum()),
            shared_columns=shared,
            unique=_count_unique(table.select(shared), passes),
            suspicions=suspicions,
            indirect=known,
            notes=(*opened.notes, *missing_code_lines(table, [*quasi, *shared], known=opened.known)),
        )
        kept = ~passes if complete is None else complete & ~passes
        _write_all(opened, [(out_shared, shared, passes), (out_kept, names, kept)])
    return found


@dataclass(frozen=True, kw_only=True)
class _Roles:
    """The columns that a gate looks at."""

    quasi: tuple[str, ...]
    sensitive: str | None
    identifier: str | None

    @property
    def columns(self) -> list[str]:
        """Their names, each once."""
        more = (name for name in (self.sensitive, self.identifier) if name is not None)
        return list(dict.fromkeys((*self.quasi, *more)))


def _decide(table: pl.LazyFrame, roles: _Roles, complete: Mask | None, rule: Mapping[str, Any]) -> GateDecision:
    """The decision about every row that is not left out.

    Rows of equal values are decided alike, so that a large table is first counted by its distinct combinations. Where
    these are too many, or a rule or key function looks at rows themselves, the columns are held as a whole.
    """
    columns: dict[str, Any] = {"quasi": roles.quasi, "sensitive": roles.sensitive, "identifier": roles.identifier}
    known = rule["rule"] if isinstance(rule["rule"], GateRule) else find_rule(rule["rule"])
    distinct = _distinct(table, roles.columns, complete) if known.by_group and rule.get("key") is None else None
    if distinct is None:
        frame = table.select(roles.columns).collect()
        return apply_gate(frame if complete is None else frame.filter(pl.Series(complete)), **columns, **rule)
    found = apply_gate(distinct.drop(COUNT), weights=distinct[COUNT].to_numpy().astype(np.int64), **columns, **rule)
    by = [name for name in roles.columns if name != roles.identifier]
    verdicts = distinct.select(by).with_columns(pl.Series(VERDICT, found.mask)).unique()
    mask = [part.select(by).join(verdicts, on=by, how="left", nulls_equal=True, maintain_order="left")[VERDICT]
            for part in _slices(table.select(by), complete)]  # fmt: skip
    return replace(found, mask=pl.concat(mask).to_numpy())


def _distinct(table: pl.LazyFrame, columns: list[str], complete: Mask | None) -> pl.DataFrame | None:
    """The distinct combinations of a large table with their rows; None where it is small or they are too many."""
    if {COUNT, VERDICT} & {*columns} or table.select(pl.len()).collect().item() <= PART_ROWS:
        return None
    found: pl.DataFrame | None = None
    for part in _slices(table.select(columns), complete):
        counted = part.group_by(columns).agg(pl.len().alias(COUNT))
        both = counted if found is None else pl.concat([found, counted])
        found = both.group_by(columns).agg(pl.col(COUNT).sum())
        if found.height > MOST_COMBINATIONS:
            return None
    return found


def _slices(table: pl.LazyFrame, complete: Mask | None) -> Iterator[pl.DataFrame]:
    """The rows that are not left out in table order, part by part, in the types that the gate knows."""
    rows = int(table.select(pl.len()).collect().item())
    for start in range(0, rows, PART_ROWS):
        part = table.slice(start, PART_ROWS).collect()
        yield part if complete is None else part.filter(pl.Series(complete[start : start + PART_ROWS]))


@dataclass(frozen=True, kw_only=True)
class _Opened:
    """A table, and the texts of a text file, by row number in `ROW`."""

    table: pl.LazyFrame
    texts: pl.DataFrame | None = None
    typed: pl.DataFrame | None = None
    notes: tuple[str, ...] = ()
    known: bool = False
    """Whether it is a named dataset, whose columns are described already."""


def _sample(table: pl.LazyFrame, names: Sequence[str]) -> pl.DataFrame:
    return table.select(names).head(SAMPLE_ROWS).collect()


def _open(source: str, reading: ReadingOptions | None) -> _Opened:
    if not is_parquet(source) or (reading is not None and reading.null_values):  # which are looked for as a whole
        found = open_table(source, reading)
        frame = found.frame if found.texts is None else found.frame.with_row_index(ROW)
        return _Opened(
            table=frame.lazy(),
            texts=found.texts,
            typed=found.frame,
            notes=found.reading,
            known=found.default_role is not None,
        )
    return _Opened(table=scan_parquet(source))


def _check_outputs(out_shared: Path | None, out_kept: Path | None, *, force: bool) -> None:
    for path in (out_shared, out_kept):
        if path is None:
            continue
        if path.suffix.lower() not in ENDINGS:
            raise ConfigError(f"{str(path)!r} has no known ending", hint=f"Use one of {', '.join(ENDINGS)}")
        require_new(path, force=force)
    if out_shared is not None and out_kept is not None and out_shared.resolve() == out_kept.resolve():
        raise ConfigError("shared and kept rows go to the same file", hint="Name two files")


def _require(wanted: Sequence[str], names: Sequence[str]) -> None:
    for name in wanted:
        if name not in names:
            raise DataError(f"the table has no column {name!r}", hint=nearest_column(name, names, wanted))


def _shared_columns(names: Sequence[str], wanted: Sequence[str], hidden: Collection[str | None]) -> tuple[str, ...]:
    _require(wanted, names)
    clash = [name for name in wanted if name in hidden]
    if clash:
        raise ConfigError(f"the identifier {clash[0]!r} is among the shared columns", hint="Leave it out")
    return tuple(name for name in names if (name in wanted if wanted else name not in hidden))


def _complete_rows(table: pl.LazyFrame) -> Mask:
    complete = table.select(pl.all_horizontal(pl.all().is_not_null())).collect().to_series().to_numpy()
    if not complete.any():
        hint = "Use --missing category, or drop the emptiest columns"
        raise DataError(f"all {len(complete):,} rows have a missing value", hint=hint)
    return complete


def _among_all_rows(mask: Mask, complete: Mask) -> Mask:
    passes = np.zeros(len(complete), np.bool_)
    passes[complete] = mask
    return passes


def _count_unique(table: pl.LazyFrame, passes: Mask) -> int:
    """Passing rows that no other passing row equals, compared by two 64-bit hashes of each row.

    A chance collision makes the count of single hashes too low. Where both counts agree they are right; where they do
    not, pairs of hashes are counted. Either way an error takes two chance collisions at once.
    """
    if not passes.any():
        return 0
    ordered = _hashes(table, passes)
    ordered.sort(axis=1)
    by_first, by_second = (_count_singles(one[1:] == one[:-1]) for one in ordered)
    if by_first == by_second:
        return by_first
    first, second = _hashes(table, passes)
    order = np.lexsort((second, first))
    first, second = first[order], second[order]
    return _count_singles((first[1:] == first[:-1]) & (second[1:] == second[:-1]))


def _hashes(table: pl.LazyFrame, passes: Mask) -> NDArray[np.uint64]:
    """Two hashes of each passing row."""
    found = np.empty((len(SEEDS), int(passes.sum())), np.uint64)
    done = 0
    for part in _parts(table, passes):
        plain = sets_as_text(from_native(part)[0])
        for place, seed in enumerate(SEEDS):
            found[place, done : done + part.height] = plain.hash_rows(seed).to_numpy()
        done += part.height
    return found


def _count_singles(as_previous: Mask) -> int:
    """How many sorted entries differ from both neighbours; `as_previous` says which equal the one before, from 1 on."""
    repeated = np.concatenate(([False], as_previous)) | np.concatenate((as_previous, [False]))
    return int((~repeated).sum())


def _parts(table: pl.LazyFrame, wanted: Mask) -> Iterator[pl.DataFrame]:
    """The wanted rows in table order, part by part."""
    for start in range(0, len(wanted), PART_ROWS):
        yield table.slice(start, PART_ROWS).collect().filter(pl.Series(wanted[start : start + PART_ROWS]))


def _write_all(opened: _Opened, parts: Sequence[tuple[Path | None, Sequence[str], Mask]]) -> None:
    """Write parts of a table, all of them or none: files are complete under other names before one gets its own.

    Unfinished files that a killed command, or one whose disk let it delete nothing, left for the same parts go first.
    """
    wanted = [(path, columns, rows) for path, columns, rows in parts if path is not None]
    made: list[tuple[Path, Path]] = []
    try:
        for path, columns, rows in wanted:
            with disk_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                begin, end = f".{path.stem}.", f"{UNFINISHED}{path.suffix}"
                ours = f"{escape(begin)}*{escape(end)}"
                for left in [*path.parent.glob(ours), *path.parent.glob(f".{ours}.*{UNFINISHED}")]:
                    left.unlink()
                temporary = path.with_name(f"{begin}{secrets.token_hex(8)}{end}")
                made.append((temporary, path))  # before it is there: an interrupt may come as soon as it is
                temporary.touch(mode=0o600, exist_ok=False)
                _write(opened, columns, rows, temporary)
        for temporary, path in made:
            with disk_errors(path):
                temporary.chmod(0o644)
                temporary.replace(path)
    except BaseException:
        for temporary, _ in made:
            with suppress(OSError):
                temporary.unlink()
        raise


def _write(opened: _Opened, columns: Sequence[str], wanted: Mask, path: Path) -> None:
    table = opened.table.select(columns)
    if ENDINGS[path.suffix.lower()] == "parquet":
        write_parts(lambda: _parts(table, wanted), table.collect_schema(), path)
    elif path.suffix.lower() in TEXT_ENDINGS and opened.texts is not None and opened.typed is not None:
        whole = pl.concat(_parts(opened.table.select(*columns, ROW), wanted))
        write_table(restore_texts(whole, opened.texts, opened.typed), path, force=True)
    else:
        write_table(pl.concat(_parts(table, wanted)), path, force=True)
