"""The mapping that each site applies to its own table, so that columns and values mean the same everywhere.

    [columns.age]
    from = ["Age", "alter"]                  # names at home that mean this column
    type = "number"                          # number | category | boolean | date
    missing = ["unknown", "-999"]            # values at home that mean: not known
    [values.sex]
    F = ["female", "f"]                      # agreed value = spellings at home
    [sites.south.columns.weight]             # for one site alone
    factor = 0.45359237                      # agreed = home x factor + offset
    decimal = ","

Guarantee: applying a mapping keeps every row and its order, and changes no column that it does not name. Cells that
cannot be read as the agreed type become missing, and a note counts them; neither notes nor errors hold a cell.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, get_args

import polars as pl

from kohort.errors import ConfigError, DataError, nearest
from kohort.tables.domain import category_text
from kohort.tables.harmonise.words import NO, YES, as_numbers
from kohort.toml import read_toml

__all__ = ["ColumnRule", "SiteTableMapping", "TableMapping"]

AgreedType = Literal["number", "category", "boolean", "date"]
_RULE_KEYS: Final = ("from", "type", "decimal", "missing", "factor", "offset")
_SECTIONS: Final = ("columns", "values", "sites")


@dataclass(frozen=True, kw_only=True)
class ColumnRule:
    """What is done to one column. `names` is `from` in TOML."""

    names: tuple[str, ...] = ()
    type: AgreedType | None = None
    decimal: Literal[".", ","] | None = None
    missing: tuple[str, ...] = ()
    factor: float | None = None
    offset: float | None = None

    @classmethod
    def from_plain(cls, raw: Any, place: str) -> ColumnRule:
        """Read a rule from TOML values.

        Raises:
            ConfigError: A key is unknown or a value does not fit.
        """
        _require_table(raw, place)
        _refuse_unknown(raw, _RULE_KEYS, place)
        kind, decimal = raw.get("type"), raw.get("decimal")
        if kind is not None and kind not in get_args(AgreedType):
            raise ConfigError(f"{place}.type is unknown", hint=nearest(str(kind), get_args(AgreedType)))
        if decimal not in (None, ".", ","):
            raise ConfigError(f"{place}.decimal is neither . nor ,", hint='Write decimal = ","')
        return cls(
            names=_texts(raw.get("from", ()), f"{place}.from"),
            type=kind,
            decimal=decimal,
            missing=_texts(raw.get("missing", ()), f"{place}.missing"),
            factor=_finite(raw.get("factor"), f"{place}.factor", zero=False),
            offset=_finite(raw.get("offset"), f"{place}.offset"),
        )

    def to_plain(self) -> dict[str, Any]:
        """TOML values that `from_plain` reads back."""
        plain = {
            "from": list(self.names),
            "type": self.type,
            "decimal": self.decimal,
            "missing": list(self.missing),
            "factor": self.factor,
            "offset": self.offset,
        }
        return {key: value for key, value in plain.items() if value not in (None, [])}

    def over(self, general: ColumnRule) -> ColumnRule:
        """This rule of one site, completed by the one for all."""
        return ColumnRule(
            names=(*self.names, *(name for name in general.names if name not in self.names)),
            type=self.type or general.type,
            decimal=self.decimal or general.decimal,
            missing=(*self.missing, *(text for text in general.missing if text not in self.missing)),
            factor=general.factor if self.factor is None else self.factor,
            offset=general.offset if self.offset is None else self.offset,
        )


@dataclass(frozen=True, kw_only=True)
class SiteTableMapping:
    """Rules by column, and for each column its agreed values with their spellings at home."""

    columns: Mapping[str, ColumnRule] = field(default_factory=dict)
    values: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)

    @classmethod
    def from_plain(cls, raw: Any, place: str) -> SiteTableMapping:
        """Read the sections `columns` and `values`."""
        _require_table(raw, place)
        columns, values = raw.get("columns", {}), raw.get("values", {})
        _require_table(columns, f"{place}.columns")
        _require_table(values, f"{place}.values")
        return cls(
            columns={name: ColumnRule.from_plain(rule, f"{place}.columns.{name}") for name, rule in columns.items()},
            values={name: _spellings(spelt, f"{place}.values.{name}") for name, spelt in values.items()},
        )

    def to_plain(self) -> dict[str, Any]:
        """TOML values; sections without content are left out."""
        columns = {name: rule.to_plain() for name, rule in self.columns.items()}
        values = {name: {agreed: list(texts) for agreed, texts in spelt.items()} for name, spelt in self.values.items()}
        return {key: part for key, part in (("columns", columns), ("values", values)) if part}

    def over(self, general: SiteTableMapping) -> SiteTableMapping:
        """The rules of one site, completed by those for all."""
        columns = dict(general.columns)
        for name, rule in self.columns.items():
            columns[name] = rule.over(columns.get(name, ColumnRule()))
        values = {name: dict(spelt) for name, spelt in general.values.items()}
        for name, spelt in self.values.items():
            own = {text for texts in spelt.values() for text in texts}
            kept = {
                key: tuple(text for text in texts if text not in own) for key, texts in values.get(name, {}).items()
            }
            values[name] = {**kept, **{key: (*texts, *kept.get(key, ())) for key, texts in spelt.items()}}
        return SiteTableMapping(columns=columns, values=values)


@dataclass(frozen=True, kw_only=True)
class TableMapping:
    """A mapping for all sites, with parts for single ones."""

    general: SiteTableMapping = field(default_factory=SiteTableMapping)
    sites: Mapping[str, SiteTableMapping] = field(default_factory=dict)

    @classmethod
    def from_plain(cls, raw: Any, place: str = "the mapping") -> TableMapping:
        """Read a mapping from TOML values.

        Args:
            raw: The sections `columns`, `values` and `sites`.
            place: What errors call it.

        Raises:
            ConfigError: A section or key is unknown, a value does not fit, or a spelling has two meanings.
        """
        _require_table(raw, place)
        _refuse_unknown(raw, _SECTIONS, place)
        sites = raw.get("sites", {})
        _require_table(sites, f"{place}.sites")
        for name, own in sites.items():
            _require_table(own, f"{place}.sites.{name}")
            _refuse_unknown(own, ("columns", "values"), f"{place}.sites.{name}")
        return cls(
            general=SiteTableMapping.from_plain(raw, place),
            sites={name: SiteTableMapping.from_plain(own, f"{place}.sites.{name}") for name, own in sites.items()},
        )

    @classmethod
    def load(cls, path: Path) -> TableMapping:
        """Read a TOML file.

        Raises:
            ConfigError: There is no such file, or it is no mapping.
        """
        return cls.from_plain(read_toml(path, "mapping"), str(path))

    def to_plain(self) -> dict[str, Any]:
        """TOML values that `from_plain` reads back."""
        sites = {name: own.to_plain() for name, own in self.sites.items()}
        return {**self.general.to_plain(), **({"sites": sites} if sites else {})}

    @property
    def is_empty(self) -> bool:
        """Whether it changes nothing."""
        return not self.to_plain()

    def apply(self, frame: pl.DataFrame, *, site: str | None = None) -> tuple[pl.DataFrame, tuple[str, ...]]:
        """A site's table as agreed.

        Args:
            frame: The table at home.
            site: The site's name; None applies only what holds for all.

        Returns:
            The table with the agreed names, types and values, and notes that count the cells that became missing
            because they could not be read.

        Raises:
            DataError: Two columns of the table mean the same agreed one.
        """
        own = self.sites.get(site or "")
        rules = self.general if own is None else own.over(self.general)
        frame = _renamed(frame, rules.columns)
        changed: list[pl.Series] = []
        notes: list[str] = []
        for name in dict.fromkeys((*rules.columns, *rules.values)):
            if name not in frame.columns:
                continue
            rule = rules.columns.get(name, ColumnRule())
            column, lost = _applied(frame[name], rule, rules.values.get(name, {}))
            changed.append(column)
            if lost:
                where = f" of site {site!r}" if site else ""
                notes.append(f"{lost:,} cells of {name}{where} are no {rule.type or 'number'} and count as missing")
        return frame.with_columns(changed), tuple(notes)


def _renamed(frame: pl.DataFrame, rules: Mapping[str, ColumnRule]) -> pl.DataFrame:
    names: dict[str, str] = {}
    for agreed, rule in rules.items():
        found = [name for name in dict.fromkeys((agreed, *rule.names)) if name in frame.columns]
        if len(found) > 1:
            hint = f"Drop one of them, or remove it from `from` of {agreed!r}"
            raise DataError(f"columns {', '.join(found)} of one table all mean {agreed!r}", hint=hint)
        if found and found[0] != agreed:
            names[found[0]] = agreed
    return frame.rename(names)


def _applied(column: pl.Series, rule: ColumnRule, spelt: Mapping[str, tuple[str, ...]]) -> tuple[pl.Series, int]:
    """The column as agreed, and how many cells could not be read."""
    if isinstance(column.dtype, pl.List):
        meaning = {text: agreed for agreed, texts in spelt.items() for text in texts}
        return column.list.eval(pl.element().replace(meaning)) if meaning else column, 0
    if spelt or rule.missing:
        column = _respelt(column, spelt, rule.missing)
    known = column.null_count()
    if rule.type == "category":
        column = category_text(column)
    elif rule.type == "boolean":
        column = _booleans(column)
    elif rule.type == "date":
        column = _dates(column)
    if rule.type == "number" or rule.factor is not None or rule.offset is not None:
        column = _converted(as_numbers(column, decimal=rule.decimal or "."), rule)
    return column, column.null_count() - known


def _respelt(column: pl.Series, spelt: Mapping[str, tuple[str, ...]], missing: Iterable[str]) -> pl.Series:
    """Agreed values in place of spellings, and null in place of markers. Numbers without `spelt` stay numbers."""
    texts = category_text(column).str.strip_chars()
    meaning: dict[str, str | None] = {text.strip(): agreed for agreed, several in spelt.items() for text in several}
    if spelt:
        return texts.replace({**meaning, **dict.fromkeys(missing)})
    return (
        pl.select(pl.when(~texts.is_in(list(missing)).fill_null(value=False)).then(column))
        .to_series()
        .alias(column.name)
    )


def _booleans(column: pl.Series) -> pl.Series:
    if column.dtype == pl.Boolean:
        return column
    words = {**dict.fromkeys(YES, True), **dict.fromkeys(NO, False)}
    texts = category_text(column).str.strip_chars().str.to_lowercase()
    return texts.replace_strict(words, default=None, return_dtype=pl.Boolean)


def _dates(column: pl.Series) -> pl.Series:
    if column.dtype.is_temporal():
        return column.cast(pl.Date)
    return category_text(column).str.strip_chars().str.slice(0, 10).str.to_date("%Y-%m-%d", strict=False)


def _converted(column: pl.Series, rule: ColumnRule) -> pl.Series:
    """Times the factor, plus the offset. A factor that is one over a whole number divides, which rounds once."""
    if rule.factor is not None:
        divisor = round(1 / rule.factor) if abs(rule.factor) < 1 else 0
        if divisor and math.isclose(divisor * rule.factor, 1.0, rel_tol=1e-12):
            # Polars would multiply by the reciprocal, which rounds twice.
            divided = column.cast(pl.Float64).to_numpy() / divisor
            column = pl.Series(column.name, divided, nan_to_null=True)
        else:
            column = column * rule.factor
    return column + rule.offset if rule.offset else column


def _spellings(raw: Any, place: str) -> dict[str, tuple[str, ...]]:
    _require_table(raw, place)
    spelt = {agreed: _texts(texts, f"{place}.{agreed}") for agreed, texts in raw.items()}
    every = [text for texts in spelt.values() for text in texts]
    if len(set(every)) < len(every):
        raise ConfigError(f"a spelling in {place} has two meanings", hint="List each spelling once")
    return spelt


def _texts(raw: Any, place: str) -> tuple[str, ...]:
    if isinstance(raw, str) or not isinstance(raw, Iterable) or isinstance(raw, Mapping):
        raise ConfigError(f"{place} is not a list", hint='Write ["...", "..."]')
    if not all(isinstance(text, str) for text in raw):
        raise ConfigError(f"{place} holds something else than texts", hint='Put every value in quotes: "1"')
    return tuple(raw)


def _finite(raw: Any, place: str, *, zero: bool = True) -> float | None:
    if raw is None:
        return None
    good = isinstance(raw, int | float) and not isinstance(raw, bool) and math.isfinite(raw)
    if not good or (raw == 0 and not zero):
        raise ConfigError(f"{place} is not a finite number{'' if zero else ' other than 0'}", hint="Correct it")
    return float(raw)


def _require_table(raw: Any, place: str) -> None:
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{place} is not a section", hint="Write it as a TOML table, [columns.NAME] or [values.NAME]")


def _refuse_unknown(raw: Mapping[str, Any], known: Iterable[str], place: str) -> None:
    for key in raw:
        if key not in known:
            raise ConfigError(f"unknown key {key!r} in {place}", hint=nearest(key, known))
