"""Plan files: TOML in, one frozen, validated `Plan` out.

The sections are the dataclasses the rest of kohort uses, and `[method]` is whatever the registered method of that name
declares, so a new method needs no change here. Unknown keys are errors that name the nearest valid one.

Guarantee: a plan with a key that its method, model kind, split or engine does not read is refused before anything runs;
only where the command line chose another one are such keys of the file left out, and `Plan.notes` names them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Final

from kohort.errors import ConfigError, nearest
from kohort.methods.registry import find_method, methods
from kohort.privacy.ledger.ledger import canonical
from kohort.privacy.policy import Policy
from kohort.protocol.plan.sections import LEARNED_KINDS, ModelSection, TrainSection
from kohort.runs.plan import default_method as defaults
from kohort.runs.plan import reading
from kohort.runs.plan.costs import CostSection
from kohort.runs.plan.data_options import with_data
from kohort.runs.plan.mapping import with_hierarchies, with_mapping
from kohort.runs.plan.overrides import (
    METHOD_NAME,
    apply_overrides,
    dotted_keys,
    key_of,
    place_of,
    without_deprecated_keys,
    without_keys,
)
from kohort.runs.plan.sections import DEPLOYED, DataSection, SitesSection
from kohort.runs.plan.validation import validated
from kohort.toml import read_toml

__all__ = [
    "DEPLOYED",
    "CostSection",
    "DataSection",
    "Plan",
    "SitesSection",
    "apply_overrides",
    "json_schema",
    "key_of",
    "load_plan",
    "only_read",
    "read_plan",
]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A whole plan."""

    data: DataSection
    sites: SitesSection = field(default_factory=SitesSection)
    model: ModelSection = field(default_factory=ModelSection)
    train: TrainSection = field(default_factory=TrainSection)
    method: str
    config: Any = None
    policy: Policy = field(default_factory=Policy)
    costs: CostSection = field(default_factory=CostSection)
    given: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    """Dotted names of the keys that a file, the command line or a caller gave. Defaults are not among them."""
    also: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    """Keys that whoever made the plan reads itself, as a comparison reads `sites.low_risk`."""
    ignored: tuple[str, ...] = field(default=(), compare=False)
    """Keys of the file that were left out because the command line chose another method, model kind or split."""
    because: str = field(default="", compare=False)
    """Why it has its method, where nobody named one."""

    def to_mapping(self) -> dict[str, Any]:
        """The plan as it is written in TOML, every default spelt out."""
        sections = {name: _plain(getattr(self, name)) for name in _SECTIONS}
        own = _plain(self.config) if is_dataclass(self.config) and not isinstance(self.config, type) else {}
        whole = {**sections, "method": {"name": self.method, **own}}
        return without_keys(whole, find_method(self.method).never_reads)

    def digest(self) -> str:
        """The hash every request carries and every site approves."""
        return hashlib.blake2b(canonical(self.to_mapping()).encode(), digest_size=32).hexdigest()

    def reads(self, engine: str = "local") -> frozenset[str]:
        """Which keys of `[sites]`, `[model]` and `[train]` are read.

        Args:
            engine: The engine that carries the plan out.

        Returns:
            Dotted names, as in "train.lr".
        """
        return reading.read_keys(self, engine) | self.also

    def in_effect(self, engine: str = "local") -> dict[str, Any]:
        """The plan as it is carried out: every key that is read, defaults included, and no other.

        Args:
            engine: The engine that carries the plan out.

        Returns:
            Sections and keys as in `to_mapping`. It is a plan with the same hash.
        """
        read = self.reads(engine)
        shown = {
            section: {key: value for key, value in values.items() if f"{section}.{key}" in read}
            if section in _READ_BY_CHOICE
            else values
            for section, values in self.to_mapping().items()
        }
        return without_keys(shown, reading.unread_keys(self))

    def unread(self, engine: str = "local") -> tuple[str, ...]:
        """The keys that were given and that neither the method, nor the model, nor the engine reads, in order."""
        read, never = self.reads(engine), reading.unread_keys(self).keys() | find_method(self.method).never_reads
        return tuple(
            sorted(
                key
                for key in self.given
                if key in never or (key.partition(".")[0] in _READ_BY_CHOICE and key not in read)
            )
        )

    def require_read(self, engine: str = "local") -> None:
        """Refuse a plan that gives keys which are not read.

        Args:
            engine: The engine that is to carry the plan out.

        Raises:
            ConfigError: Some keys are not read; the message names them all, and who does not read them. Or the method
                cannot respect consent per row, which the plan asks for.
        """
        find_method(self.method).require_consent(self.config, self.data.consent)
        unread = self.unread(engine)
        if not unread:
            return
        by: dict[str, list[str]] = {}
        for key in unread:
            by.setdefault(self._reader_of(key, engine), []).append(key)
        said = "; ".join(f"{reader} does not read {', '.join(keys)}" for reader, keys in by.items())
        known = reading.reasons(self)
        reasons = dict.fromkeys(known[key] for key in unread if key in known)
        said += "".join(f", because {reason}" for reason in reasons)
        raise ConfigError(said, hint=self._instead_of(unread))

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be said about the plan with the results of its run."""
        return tuple(note for note in (self.because, self.ignored_note) if note)

    @property
    def ignored_note(self) -> str:
        """Which keys were left out; empty where none were."""
        return f"not read by {self.method}, ignored: {', '.join(self.ignored)}" if self.ignored else ""

    def _reader_of(self, key: str, engine: str) -> str:
        """Who would read a key, in the words of an error."""
        reads = find_method(self.method).reads(self.config)
        section = key.partition(".")[0]
        if section == "sites" and key in self.reads("local"):
            return f"engine {engine!r}"
        if section == "sites" and key not in ("sites.arrive", "sites.low_risk"):
            return f"split {self.sites.split!r}"
        if section == "model" and key in reads.keys:
            return f"model {self.model.kind!r}"
        return f"method {self.method!r}{' ' if reads.when else ''}{reads.when}"

    def _instead_of(self, keys: Sequence[str]) -> str:
        """What to do about keys that are not read: leave them out, or write the method's key of the same name."""
        own = dict(_leaves(_plain(self.config), "method"))
        others = [key for key in keys if not key.startswith("method.")]
        meant = [f"{own[name]} instead of {key}" for key in others if (name := key.rpartition(".")[2]) in own]
        drop = "Drop it" if len(keys) == 1 else "Drop them"
        return f"{drop}, or write {', '.join(meant)}" if meant else drop


_SECTIONS: dict[str, type[Any]] = {
    "data": DataSection,
    "sites": SitesSection,
    "model": ModelSection,
    "train": TrainSection,
    "policy": Policy,
    "costs": CostSection,
}
_READ_BY_CHOICE: Final = ("sites", "model", "train")
"""Sections whose keys are read or not, by the method, the model kind, the split and the engine."""
_CHOOSERS: Final = {
    "model.kind": ModelSection.kind,
    "sites.split": SitesSection.split,
    "train.optimizer": TrainSection.optimizer,
}
"""Keys that decide which others are read besides `method.name`, and their defaults."""
_COMPARED: Final = frozenset({"sites.low_risk"})
"""What `kohort compare --rows low-risk` reads, whatever the method."""


def read_plan(
    path: Path,
    *,
    overrides: Sequence[str] = (),
    drop_overrides: bool = False,
    data: Mapping[str, Any] | None = None,
    compared: bool = False,
) -> Plan:
    """The plan of a TOML file, with `a.b=value` overrides applied.

    Where `overrides` choose another method, keys of the file that it does not read are left out and named in
    `Plan.notes`; likewise for another model kind, keys of `[sites]` for another split, and of `[train]` for another
    optimizer.

    Args:
        path: The file.
        overrides: What `--set` was given.
        data: Keys of `[data]` that the command line gives.
        drop_overrides: Leave out, and name, also keys of `overrides` that are not read, as a sweep over methods needs.
        compared: Whether runs are compared, which may try settings out on rows of low risk (`sites.low_risk`).

    Returns:
        The validated plan.

    Raises:
        ConfigError: The file is no plan, a value does not fit, or a key is given that nothing reads.
    """
    raw = with_data(read_toml(path, "plan"), data or {})
    changed = apply_overrides(raw, overrides, method_last=drop_overrides)
    renamed = with_hierarchies(with_mapping(without_deprecated_keys(changed), path.parent), path.parent)
    also = _COMPARED if compared else frozenset()
    first = replace(_validated_plan(renamed), also=also)
    dropped = _droppable(raw, first, overrides, drop_overrides=drop_overrides)
    plan = replace(_validated_plan(without_keys(renamed, dropped)), also=also) if dropped else first
    lost = {_two_parts(key) for key in dotted_keys(raw) - dotted_keys(changed) if key.startswith("method.")}
    plan = replace(plan, ignored=tuple(sorted({*dropped, *lost})))
    plan.require_read()
    return plan


def load_plan(raw: Mapping[str, Any], *, complete: bool = False) -> Plan:
    """Validate a mapping into a plan.

    Args:
        raw: The sections of a plan file, as TOML reads them. Each key under a deprecated name gives a `FutureWarning`.
        complete: `raw` spells out every default, as `Plan.to_mapping` does; keys at a default are not taken as given.

    Returns:
        The validated plan.

    Raises:
        ConfigError: A section or key is unknown (a hint names the nearest), a value does not fit, or a key is unread.
    """
    plan = _validated_plan(without_deprecated_keys(raw))
    if complete:
        open_keys = frozenset(key for key in plan.given if key.partition(".")[0] not in _READ_BY_CHOICE)
        config, train = find_method(plan.method).fill(plan.config, TrainSection(), plan.model, open_keys)
        defaults = Plan(data=plan.data, method=plan.method, config=config, train=train).to_mapping()
        known = {f"{section}.{key}": value for section in _READ_BY_CHOICE for key, value in defaults[section].items()}
        same = {key for key, value in known.items() if _value_of(raw, key) == value}
        same |= reading.at_default(plan.config, plan.given)
        plan = replace(plan, given=plan.given - same, also=_COMPARED)
    plan.require_read()
    return plan


def only_read(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The sections of a plan without the keys that its method, model kind and split do not read.

    Args:
        raw: The sections of a plan, as `load_plan` takes them.

    Returns:
        A new mapping that `load_plan` accepts.

    Raises:
        ConfigError: A section or key is unknown, or a value does not fit.
    """
    return without_keys(raw, _validated_plan(without_deprecated_keys(raw)).unread())


def _validated_plan(raw: Mapping[str, Any]) -> Plan:
    """The plan of valid sections, whether or not all its keys are read."""
    if unknown := [key for key in raw if key not in (known := {*_SECTIONS, "method"})]:
        raise ConfigError(f"unknown section {unknown[0]!r} in the plan", hint=nearest(unknown[0], known))
    if "data" not in raw:
        raise ConfigError("the plan has no [data] section", hint='Add [data] with at least table = "..."')
    raw, automatic = defaults.with_automatic_model(raw)
    section = raw.get("method", {})
    if not isinstance(section, Mapping):
        raise ConfigError("method is not a section", hint='Write [method] and name = "fedavg"')
    given, because = dotted_keys(raw := {**raw, "method": defaults.with_short_forms(section, raw.get("data"))}), ""
    layout = validated(SitesSection, raw["sites"], "sites") if "sites" in raw else None
    if (name := section.get("name")) is not None:
        raw, because = defaults.with_default_settings(raw, sites=_dealt_sites(layout))
    made = {name: validated(section, raw[name], name) for name, section in _SECTIONS.items() if name in raw}
    own = {key: value for key, value in raw["method"].items() if key != "name"}
    if name is None:
        name, because = defaults.default_method(raw)
        own = defaults.with_default_sum(own, _dealt_sites(layout)) if name in LEARNED_KINDS else own
    method = find_method(str(name))
    defaults.require_budget_key(method, own)
    train, model = made.get("train", TrainSection()), made.get("model", ModelSection())
    config = method.for_model(validated(method.config, own, "method"), model)
    config, made["train"] = method.fill(config, train, model, given)
    return Plan(**made, method=method.name, config=config, given=given, because=automatic or because)


def _dealt_sites(sites: Any) -> int | None:
    """How many sites one table is dealt out to; None where the rows or the files decide."""
    layout = sites or SitesSection()
    return None if layout.split == "files" or layout.split.startswith("column:") else int(layout.count)


def _droppable(raw: Mapping[str, Any], plan: Plan, overrides: Sequence[str], *, drop_overrides: bool) -> frozenset[str]:
    """The unread keys of `plan` where `overrides` chose another method, model kind, split or optimizer; or all."""
    if drop_overrides:
        return frozenset(plan.unread())
    set_here = {place_of(override) for override in overrides}
    chosen = _chosen(raw, plan, set_here)
    if chosen & {METHOD_NAME, "model.kind"}:  # another model kind may be trained otherwise
        sections = {key.partition(".")[0] for key in plan.unread()}
    else:
        sections = {key.partition(".")[0] for key in chosen}
    return frozenset(key for key in plan.unread() if key.partition(".")[0] in sections and not _is_set(key, set_here))


def _chosen(raw: Mapping[str, Any], plan: Plan, set_here: set[str]) -> set[str]:
    """Which of the keys that decide what is read have another value than in the file, because the command line says."""
    now = plan.to_mapping()
    found = {key for key, usual in _CHOOSERS.items() if _value_of(now, key) != (_value_of(raw, key) or usual)}
    if METHOD_NAME in set_here and plan.method != (_value_of(raw, METHOD_NAME) or defaults.default_method(raw)[0]):
        found.add(METHOD_NAME)
    return found & set_here


def _is_set(key: str, set_here: set[str]) -> bool:
    """Whether one of the names set here is a key, part of it, or the section it is in."""
    return any(f"{name}.".startswith(f"{key}.") or f"{key}.".startswith(f"{name}.") for name in set_here)


def _value_of(raw: Mapping[str, Any], key: str) -> Any:
    """The value of a key by its dotted name of two parts; None where it is not given."""
    section, _, name = key.partition(".")
    values = raw.get(section)
    return values.get(name) if isinstance(values, Mapping) else None


def _two_parts(key: str) -> str:
    return ".".join(key.split(".")[:2])


def _leaves(values: Any, place: str) -> Iterator[tuple[str, str]]:
    """The name and the dotted name of every value; entries of a list are numbered from 1."""
    if isinstance(values, Mapping):
        for key, value in values.items():
            yield from _leaves(value, f"{place}.{key}")
    elif isinstance(values, list) and values and isinstance(values[0], Mapping):
        yield from _leaves(values[0], f"{place}.1")
    else:
        yield place.rpartition(".")[2], place


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a plan, built from the sections and the registered methods.

    Raises:
        ConfigError: Two sections or methods define different types of the same name.
    """
    from pydantic import TypeAdapter

    properties = {name: TypeAdapter(section).json_schema() for name, section in _SECTIONS.items()}
    variants = []
    for method in methods().values():
        own = TypeAdapter(method.config).json_schema()
        name = {"const": method.name, "description": method.summary}
        nameless = method.name in (defaults.NETWORKS, *LEARNED_KINDS)  # a plan without a name may mean any of them
        required = [*([] if nameless else ["name"]), *own.get("required", [])]
        variants.append({**own, "properties": {"name": name, **own.get("properties", {})}, "required": required})
    # References start at the document's root, so that is where the definitions have to lie.
    definitions: dict[str, Any] = {}
    for part in (*properties.values(), *variants):
        for name, definition in part.pop("$defs", {}).items():
            if definitions.setdefault(name, definition) != definition:
                raise ConfigError(f"two parts of the plan are both called {name!r}", hint="Rename one of them")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kohort plan",
        "type": "object",
        "properties": {**properties, "method": {"anyOf": variants}},
        "required": ["data"],
        "additionalProperties": False,
        "$defs": definitions,
    }


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        value = {key_of(item.name): getattr(value, item.name) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
