"""What sites disagree about, column by column, from their profiles alone, and the mapping that mends it.

Names of columns, types, units, spellings of values, markers of missing values, shares of missing values, classes that
a site does not have, and numbers of rows of very different size. What has a clear answer becomes part of the proposed
mapping; what somebody has to decide becomes a suggestion. The agreed form is the one that most sites have, the earliest
site's where equally many do.

Guarantee: pure; nothing but profiles and counted values is looked at, so no value that fewer than their minimum of
persons have is named.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from kohort.errors import ConfigError
from kohort.tables.harmonise.mapping import ColumnRule, SiteTableMapping, TableMapping
from kohort.tables.harmonise.profiles import SHARES, ColumnProfile, TableProfile, size_power
from kohort.tables.harmonise.toml import mapping_text
from kohort.tables.harmonise.units import UnitDifference, unit_differences
from kohort.tables.harmonise.values import READ_TEXT, CountedValue, Values, counted_values, profiled_values, quoted
from kohort.tables.harmonise.words import FAMILIES, family_of, folded, is_missing_word, name_key

__all__ = ["Disagreement", "ProfileComparison", "compare_profiles"]

DisagreementKind = Literal[
    "name",
    "absent",
    "type",
    "unit",
    "range",
    "spelling",
    "yes/no",
    "missing marker",
    "missing share",
    "classes",
    "size",
]
CLOSE: Final = 0.85
"""How alike two spellings must be to be named as perhaps the same."""
MAX_CLOSE: Final = 50
_SIZES: Final = 2
"""Classes of rows, or of shares, that must lie between two sites to be worth a word."""


@dataclass(frozen=True, kw_only=True)
class Disagreement:
    """One thing that sites do not agree about."""

    kind: DisagreementKind
    column: str | None
    sites: tuple[str, ...]
    """The sites that differ from the agreed form; none where a count does not say which do."""
    message: str
    mended: bool
    """Whether the proposed mapping mends it."""

    @property
    def brief(self) -> str:
        """The same without any value of the column, for notes and errors."""
        where = "" if self.column is None else f" of {self.column}"
        return f"{self.kind}{where}" + (f" ({', '.join(self.sites)})" if self.sites else "")

    def to_plain(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "kind": self.kind,
            "column": self.column,
            "sites": list(self.sites),
            "message": self.message,
            "mended": self.mended,
        }


@dataclass(frozen=True, kw_only=True)
class ProfileComparison:
    """Everything sites disagree about, and the proposed mapping."""

    disagreements: tuple[Disagreement, ...]
    mapping: TableMapping
    suggestions: tuple[str, ...] = ()
    """What somebody who knows the tables has to decide."""

    def mapping_text(self) -> str:
        """The proposed mapping as TOML, with the disagreements as comments."""
        about = [
            "Proposed by kohort harmonise: check every line. Each site applies it to its own table (site.mapping in",
            "site.toml, data.mapping in a plan).",
            *(f"- {one.message}" for one in self.disagreements),
        ]
        return mapping_text(self.mapping, about=about, suggestions=self.suggestions)


@dataclass
class _Found:
    """What is being collected."""

    disagreements: list[Disagreement] = field(default_factory=list)
    rules: dict[str, ColumnRule] = field(default_factory=dict)
    values: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)
    at_sites: dict[str, dict[str, ColumnRule]] = field(default_factory=dict)
    suggestions: list[str] = field(default_factory=list)

    def say(
        self, kind: DisagreementKind, column: str | None, sites: Iterable[str], message: str, *, mended: bool
    ) -> None:
        self.disagreements.append(
            Disagreement(kind=kind, column=column, sites=tuple(sites), message=message, mended=mended)
        )

    def rule(self, column: str, site: str | None = None, **changes: Any) -> None:
        place = self.rules if site is None else self.at_sites.setdefault(site, {})
        place[column] = replace(place.get(column, ColumnRule()), **changes)


def compare_profiles(
    profiles: Sequence[TableProfile],
    *,
    columns: Sequence[str] | None = None,
    target: str | None = None,
    counted: Mapping[str, Sequence[CountedValue]] | None = None,
) -> ProfileComparison:
    """Compare the tables of sites by their profiles.

    Args:
        profiles: One per site.
        columns: The agreed names, if a plan says them. Other columns are compared where sites share them.
        target: The column to predict: a class that a site lacks is named.
        counted: Per column, the values that a secure count over all sites named, where profiles name none.

    Returns:
        The disagreements, the mapping that mends what can be mended, and suggestions for the rest.

    Raises:
        ConfigError: There are fewer than two profiles, or two of one site.
    """
    sites = [profile.site for profile in profiles]
    if len(set(sites)) < len(sites):
        raise ConfigError("two tables have the same name", hint="Name each file after its site")
    if len(sites) < 2:
        raise ConfigError("one table has nothing to disagree with", hint="Give the tables of two or more sites")
    found = _Found()
    for name, by_site in _same_columns(profiles, columns or (), found).items():
        values_counted = None if counted is None else counted.get(name, ())
        _compare_column(name, by_site, values_counted, found)
        if name == target and values_counted is None:
            _compare_classes(name, by_site, found)
        elif name == target:
            _compare_counted_classes(name, counted_values(values_counted or (), by_site), found)
    _compare_sizes(profiles, found)
    general = SiteTableMapping(columns=found.rules, values=found.values)
    own = {site: SiteTableMapping(columns=rules) for site, rules in found.at_sites.items()}
    return ProfileComparison(
        disagreements=tuple(found.disagreements),
        mapping=TableMapping(general=general, sites=own),
        suggestions=tuple(found.suggestions),
    )


def _same_columns(
    profiles: Sequence[TableProfile], wanted: Sequence[str], found: _Found
) -> dict[str, dict[str, ColumnProfile]]:
    """Columns by agreed name and site, whatever each site calls them."""
    groups: dict[str, dict[str, list[str]]] = {}
    for profile in profiles:
        for name in profile.columns:
            groups.setdefault(name_key(name), {}).setdefault(name, []).append(profile.site)
    by_site = {profile.site: profile.columns for profile in profiles}
    same: dict[str, dict[str, ColumnProfile]] = {}
    for names in groups.values():
        sites = [site for several in names.values() for site in several]
        twice = len(set(sites)) < len(sites)  # a site has two of them, so they are not the same
        parts = [{name: several} for name, several in names.items()] if twice else [names]
        for part in parts:
            agreed = next((name for name in part if name in wanted), None) or _most(part)
            same[agreed] = {site: by_site[site][name] for name, several in part.items() for site in several}
            same[agreed] = {site: same[agreed][site] for site in by_site if site in same[agreed]}
            _say_names(agreed, part, found)
    _say_absent(same, by_site, wanted, found)
    return same


def _most(names: Mapping[str, Sequence[str]]) -> str:
    """The name, or spelling, that most sites have; the earliest of equally frequent ones."""
    return max(names, key=lambda name: len(names[name]))


def _say_names(agreed: str, names: Mapping[str, list[str]], found: _Found) -> None:
    others = {name: sites for name, sites in names.items() if name != agreed}
    if not others:
        return
    found.rule(agreed, names=tuple(sorted(others)))
    said = ", ".join(f"{name!r} at {_join(sites)}" for name, sites in others.items())
    odd = [site for sites in others.values() for site in sites]
    found.say("name", agreed, odd, f"{agreed} has another name: {said}", mended=True)


def _say_absent(
    same: Mapping[str, Mapping[str, ColumnProfile]],
    by_site: Mapping[str, Mapping[str, ColumnProfile]],
    wanted: Sequence[str],
    found: _Found,
) -> None:
    """Columns that some sites lack: all that a plan names, else those that most sites have."""
    for name in dict.fromkeys((*wanted, *same)):
        having = same.get(name, {})
        lacking = [site for site in by_site if site not in having]
        if lacking and (name in wanted or (not wanted and 2 * len(having) > len(by_site))):
            found.say("absent", name, lacking, f"{name} is missing at {_join(lacking)}", mended=False)
            own = [other for site in lacking for other in by_site[site] if set(same.get(other, ())) == {site}]
            close = difflib.get_close_matches(name, own, n=1, cutoff=0.6)
            if close:
                found.suggestions.append(f"[columns.{name}] from = [{close[0]!r}], if that is the same column")


def _compare_column(
    name: str, by_site: Mapping[str, ColumnProfile], counted: Iterable[CountedValue] | None, found: _Found
) -> None:
    _compare_markers(name, by_site, counted, found)
    known = {site: profile for site, profile in by_site.items() if profile.kind != "empty"}
    values = profiled_values(known) if counted is None else counted_values(counted, known)
    if len(known) > 1:
        spelt = _compare_families(name, known, values, found)
        if not spelt and _compare_types(name, known, found):
            _compare_spellings(name, values, found)
            _compare_units(name, known, found)
    _compare_shares(name, by_site, found)


def _compare_markers(
    name: str, by_site: Mapping[str, ColumnProfile], counted: Iterable[CountedValue] | None, found: _Found
) -> None:
    """Texts and numbers that stand for a missing value."""
    markers = {
        site: tuple(dict.fromkeys((*filter(is_missing_word, profile.values or ()), *profile.codes)))
        for site, profile in by_site.items()
        if profile.kind in ("category", "number")
    }
    used = {site: several for site, several in markers.items() if several}
    words = [one for one in counted or () if one.kind in ("category", READ_TEXT) and is_missing_word(one.text)]
    if used or words:
        texts = {*(marker for several in used.values() for marker in several), *(one.text for one in words)}
        found.rule(name, missing=tuple(sorted(texts)))
        said = [f"{quoted(several)} at {site}" for site, several in used.items()]
        said += [f"{one.text!r} at {one.holders} of {len(by_site)} sites" for one in words]
        found.say(
            "missing marker", name, used, f"{name} has markers for missing values: {'; '.join(said)}", mended=True
        )


def _compare_families(name: str, known: Mapping[str, ColumnProfile], values: Values, found: _Found) -> bool:
    """Spellings of sex, yes and no, positive and negative. Whether the column is of such a family."""
    if any(profile.values is None or profile.kind == "items" for profile in known.values()):
        return False
    family = family_of(values.holders)
    if family is None:
        return False
    kinds = {profile.kind for profile in known.values()}
    spelt: dict[str, tuple[str, ...]] = {}
    for meaning in FAMILIES[family]:
        forms = values.forms(lambda text, meaning=meaning: text.strip().casefold() in meaning)  # type: ignore[misc]
        if len(forms) > 1:
            agreed = values.most(forms)
            spelt[agreed] = tuple(sorted(set(forms) - {agreed}))
    if not spelt:
        return kinds <= {"category"} or len(kinds) == 1
    _agree_on_family(name, values, spelt, found)
    kind: DisagreementKind = "yes/no" if family == "yes/no" else "spelling"
    odd = values.sites_with(text for others in spelt.values() for text in others)
    found.say(kind, name, odd, f"{name} is spelt differently: {values.words()}", mended=True)
    return True


def _agree_on_family(name: str, values: Values, spelt: Mapping[str, tuple[str, ...]], found: _Found) -> None:
    """The agreed spellings, and the type of the columns that have them."""
    found.values[name] = dict(spelt)
    kinds = frozenset[str]().union(*(values.kinds[text] for text in spelt))
    if kinds <= {"boolean"}:
        found.rule(name, type="boolean")
    elif kinds <= {"number"}:
        found.rule(name, type="number")


def _compare_types(name: str, known: Mapping[str, ColumnProfile], found: _Found) -> bool:
    """Whether the values can be compared: all numbers, or all categories, after the proposed change of types."""
    kinds = {site: profile.kind for site, profile in known.items()}
    readable = {site: profile.reads_as or profile.kind for site, profile in known.items()}
    decimals = [site for site, profile in known.items() if profile.decimal == ","]
    if len(set(kinds.values())) == 1 and not (decimals and len(decimals) < len(known)):
        return True
    agreed = Counter(readable.values()).most_common(1)[0][0]
    texts = [site for site, kind in kinds.items() if kind == "category"]
    for site in decimals:
        found.rule(name, site, decimal=",")
    if len(set(readable.values())) == 1 and agreed in ("number", "date"):
        found.rule(name, type=agreed)
        how = " (decimal comma)" if decimals else ""
        found.say("type", name, texts, f"{name} is a {agreed}, and text at {_join(texts)}{how}", mended=True)
        return True
    said = "; ".join(f"{_type_words(profile)} at {site}" for site, profile in known.items())
    usual = Counter(kinds.values()).most_common(1)[0][0]
    odd = [site for site, kind in kinds.items() if kind != usual]
    found.say("type", name, odd, f"{name} has different types: {said}", mended=False)
    found.suggestions.append(f'[columns.{name}] type = "...", and [values.{name}] if codes stand for something')
    return False


def _type_words(profile: ColumnProfile) -> str:
    return f"{profile.kind} (reads as {profile.reads_as})" if profile.reads_as else profile.kind


def _compare_spellings(name: str, values: Values, found: _Found) -> None:
    """Categories and items that differ only in case, accents, blanks or punctuation."""
    keys = dict.fromkeys(folded(text) or text for text in values.holders if text in values.spelt)
    spelt: dict[str, tuple[str, ...]] = {}
    for key in keys:
        forms = values.forms(lambda text, key=key: (folded(text) or text) == key, spelt=True)  # type: ignore[misc]
        if len(forms) > 1:
            agreed = values.most(forms)
            spelt[agreed] = tuple(sorted(set(forms) - {agreed}))
    if spelt:
        found.values[name] = spelt
        said = "; ".join(f"{quoted(others)} for {agreed!r}" for agreed, others in spelt.items())
        odd = values.sites_with(text for others in spelt.values() for text in others)
        found.say("spelling", name, odd, f"{name} is spelt differently: {said}", mended=True)
    _suggest_close(name, values, found)


def _suggest_close(name: str, values: Values, found: _Found) -> None:
    """Values of single sites that look like a value which those sites do not have."""
    everywhere = {text: n for text, n in values.holders.items() if text in values.spelt}
    if not 1 < len(everywhere) <= MAX_CLOSE:
        return
    taken = {folded(text) for others in found.values.get(name, {}).values() for text in others}
    for text, count in sorted(everywhere.items()):
        if count >= values.everybody or folded(text) in taken:
            continue
        without = [other for other, n in everywhere.items() if n > count and _digits(other) == _digits(text)]
        close = difflib.get_close_matches(text, [other for other in without if other != text], n=1, cutoff=CLOSE)
        if close:
            found.suggestions.append(f"[values.{name}] {close[0]!r} = [{text!r}], if they mean the same")


def _digits(text: str) -> str:
    return "".join(one for one in text if one.isdigit())


def _compare_units(name: str, known: Mapping[str, ColumnProfile], found: _Found) -> None:
    quantiles = {site: profile.quantiles for site, profile in known.items() if profile.quantiles is not None}
    for one in unit_differences(name, quantiles):
        if one.conversion is None or one.factor is None:
            size = f"{_short(one.ratio)} times those of the others"
            found.say("range", name, [one.site], f"{name} at {one.site} has other numbers, about {size}", mended=False)
            found.suggestions.append(f"[sites.{one.site}.columns.{name}] factor = ..., if it is another unit")
            continue
        found.rule(name, one.site, factor=_tidy(one.factor), offset=one.offset)
        found.say("unit", name, [one.site], _unit_words(name, one), mended=True)


def _unit_words(name: str, one: UnitDifference) -> str:
    words = "" if one.conversion is None else one.conversion.words
    size = f"about {_short(one.ratio)} times the others"
    return f"{name} at {one.site} seems to be in another unit: {size}, as between {words}"


def _short(ratio: float) -> str:
    return f"{float(f'{ratio:.2g}'):,g}"


def _tidy(factor: float) -> float:
    """One over a whole number as it is usually written."""
    return float(f"{factor:.15g}")


def _compare_shares(name: str, by_site: Mapping[str, ColumnProfile], found: _Found) -> None:
    levels = {site: SHARES.index(profile.missing) for site, profile in by_site.items()}
    if max(levels.values()) - min(levels.values()) >= _SIZES:
        highest = [site for site, level in levels.items() if level - min(levels.values()) >= _SIZES]
        said = ", ".join(f"{SHARES[levels[site]]} at {site}" for site in by_site)
        found.say("missing share", name, highest, f"{name} is missing in different shares: {said}", mended=False)


def _compare_classes(name: str, by_site: Mapping[str, ColumnProfile], found: _Found) -> None:
    """Classes of the target that a site lacks, after the proposed spellings."""
    meaning = _meanings(name, found)
    present = {
        site: {meaning.get(text, text) for text in profiled_values({site: profile}).holders}
        for site, profile in by_site.items()
        if profile.values is not None
    }
    every = set().union(*present.values())
    lacking = {site: sorted(every - classes) for site, classes in present.items() if every - classes}
    if lacking and len(present) == len(by_site):
        said = "; ".join(f"{quoted(classes)} at {site}" for site, classes in lacking.items())
        found.say("classes", name, lacking, f"classes of {name} are absent, or too rare to name: {said}", mended=False)


def _compare_counted_classes(name: str, values: Values, found: _Found) -> None:
    """Classes of the target that fewer sites have than others, where a count does not say which."""
    meaning = _meanings(name, found)
    holders: dict[str, int] = {}
    for text, count in values.holders.items():
        agreed = meaning.get(text, text)
        holders[agreed] = holders.get(agreed, 0) + count
    few = {text: count for text, count in holders.items() if count < values.everybody}
    if few:
        said = ", ".join(f"{text!r} at {count} of {values.everybody} sites" for text, count in few.items())
        found.say("classes", name, (), f"not every site has all classes of {name}: {said}", mended=False)


def _meanings(name: str, found: _Found) -> dict[str, str]:
    return {text: agreed for agreed, others in found.values.get(name, {}).items() for text in others}


def _compare_sizes(profiles: Sequence[TableProfile], found: _Found) -> None:
    powers = {profile.site: size_power(profile.rows) for profile in profiles}
    smallest = min(powers.values())
    if max(powers.values()) - smallest >= _SIZES:
        said = ", ".join(f"{profile.rows} rows at {profile.site}" for profile in profiles)
        odd = [site for site, power in powers.items() if power == smallest]
        found.say("size", None, odd, f"sites have very different numbers of rows: {said}", mended=False)


def _join(sites: Iterable[str]) -> str:
    return ", ".join(sites)
