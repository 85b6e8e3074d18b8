"""Plan files: TOML in, one frozen, validated `Plan` out.

The sections are the dataclasses the rest of kohort uses, and `[method]` is whatever the registered method of that name
declares, so a new method needs no change here. Unknown keys are errors that name the nearest valid one.
"""

from __future__ import annotations

import hashlib
import tomllib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

from annotated_types import Ge, Gt, Le, Lt

from kohort.errors import ConfigError, nearest
from kohort.methods.registry import find_method, methods
from kohort.privacy.ledger.ledger import canonical
from kohort.privacy.policy import Policy
from kohort.protocol.faults import Faults
from kohort.protocol.plan import ModelSection, TrainSection

__all__ = [
    "CostSection",
    "DataSection",
    "Plan",
    "SitesSection",
    "apply_overrides",
    "json_schema",
    "key_of",
    "load_plan",
    "read_plan",
]

_FORBID = {"extra": "forbid"}
DEFAULT_METHOD = "fedavg"


@dataclass(frozen=True, kw_only=True)
class DataSection:
    """`[data]`: the table, what its columns are, and which rows are kept for testing."""

    __pydantic_config__ = _FORBID

    table: str | tuple[str, ...]
    """A named dataset or a path; several paths for `sites.split = "files"`."""
    target: str | None = None
    quasi: tuple[str, ...] = ()
    sensitive: tuple[str, ...] = ()
    identifiers: tuple[str, ...] = ()
    items: tuple[str, ...] = ()
    features: tuple[str, ...] | Literal["rest"] = ()
    drop: tuple[str, ...] = ()
    kinds: Mapping[str, Literal["number", "category", "items"]] = field(default_factory=dict)
    bins: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Public cut points that turn a number into an ordinal code."""
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    other: tuple[str, ...] = ()
    """Columns whose unseen categories become "other" instead of an error."""
    nullable: tuple[str, ...] = ()
    missing: Literal["drop", "category"] = "drop"
    encoding: Literal["label", "onehot"] = "label"
    test: Annotated[float, Ge(0), Lt(1)] | str = 0.3
    """Share of the rows kept for testing, or a table of their own; 0 keeps none, and nothing is measured."""
    validation: Annotated[float, Gt(0), Lt(1)] | None = None
    """Share of the training rows the hub holds to judge updates by (`train.reject`)."""


@dataclass(frozen=True, kw_only=True)
class SitesSection:
    """`[sites]`: how the rows are dealt out, and how many sites must answer."""

    __pydantic_config__ = _FORBID

    count: Annotated[int, Ge(1)] = 10
    split: str = "iid"
    """iid | interval:COLUMN (equal rows) | width:COLUMN | column:NAME | dirichlet | sorted | files"""
    clusters: Annotated[int, Ge(1)] | str | None = None
    alpha: Annotated[float, Gt(0)] | tuple[Annotated[float, Gt(0)], ...] = 1.0
    low_risk: Annotated[float, Gt(0), Lt(1)] | str | None = None
    """Share of each site's rows that carry a low risk, or "below:COLUMN:NUMBER" for those below it."""
    min_rows: Annotated[int, Ge(1)] = 1
    quorum: Annotated[float, Gt(0), Le(1)] = 0.5
    """Smallest share of the asked sites whose answers must count for a run to go on."""
    deadline: Annotated[float, Gt(0)] | None = None
    """Seconds a site has for an answer; later ones are left out and named."""
    arrive: str | None = None
    """Rows come in over time, as in "20%/10 rounds"; for methods that share rows."""
    faults: Faults = field(default_factory=Faults)
    """Simulated drop-outs, lateness and lies."""


@dataclass(frozen=True, kw_only=True)
class CostSection:
    """`[costs]`: the rates that turn bytes and seconds into transfer time and energy."""

    __pydantic_config__ = _FORBID

    bytes_per_second: Annotated[float, Gt(0)] = 500_000.0
    """Link of each site; sites transfer side by side."""
    watts: Annotated[float, Gt(0)] = 65.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A whole plan."""

    data: DataSection
    sites: SitesSection = field(default_factory=SitesSection)
    model: ModelSection = field(default_factory=ModelSection)
    train: TrainSection = field(default_factory=TrainSection)
    method: str = DEFAULT_METHOD
    config: Any = None
    policy: Policy = field(default_factory=Policy)
    costs: CostSection = field(default_factory=CostSection)

    def to_mapping(self) -> dict[str, Any]:
        """The plan as it is written in TOML, every default spelt out."""
        sections = {
            item.name: _plain(getattr(self, item.name))
            for item in fields(self)
            if item.name not in {"method", "config"}
        }
        own = _plain(self.config) if is_dataclass(self.config) and not isinstance(self.config, type) else {}
        return {**sections, "method": {"name": self.method, **own}}

    def digest(self) -> str:
        """The hash every request carries and every site approves."""
        return hashlib.blake2b(canonical(self.to_mapping()).encode(), digest_size=32).hexdigest()


_SECTIONS: dict[str, type[Any]] = {
    "data": DataSection,
    "sites": SitesSection,
    "model": ModelSection,
    "train": TrainSection,
    "policy": Policy,
    "costs": CostSection,
}


def read_plan(path: Path, *, overrides: Sequence[str] = ()) -> Plan:
    """The plan of a TOML file, with `a.b=value` overrides applied."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"there is no plan at {path}", hint="Give the path of a TOML file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as text", hint="A plan is a TOML file in UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}", hint="Mend that line") from error
    return load_plan(apply_overrides(raw, overrides))


def apply_overrides(raw: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """`raw` with every `a.b=value` set; values are TOML, and a bare word is text.

    The entries of a list of sections are numbered from 1: `method.phases.2.lr=1.0`.
    """
    result: dict[str, Any] = _deep_copy(raw)
    for override in overrides:
        place, sign, text = override.partition("=")
        keys = [key.strip() for key in place.split(".")]
        if not sign or not all(keys):
            raise ConfigError(f"cannot read --set {override!r}", hint="Write it as section.key=value")
        *parents, last = keys
        if keys == ["method", "name"] and isinstance(result.get("method"), dict):
            result["method"] = _keys_of_method(result["method"], _toml_value(text))
        inner: Any = result
        for key in parents:
            inner = _section_in(inner, key, place)
        if not isinstance(inner, dict):
            raise ConfigError(f"cannot set {place!r}: it names a list", hint="Write the number of an entry, from 1 on")
        inner[last] = _toml_value(text)
    return result


def _section_in(outer: Any, key: str, place: str) -> Any:
    """The section or list called `key` within `outer`, made where there is none."""
    if isinstance(outer, list):
        if not key.isdecimal() or not 1 <= int(key) <= len(outer):
            hint = f"Write a number from 1 to {len(outer)}"
            raise ConfigError(f"cannot set {place!r}: {key!r} is no entry of the list", hint=hint)
        following = outer[int(key) - 1]
    else:
        following = outer.setdefault(key, {})
    if not isinstance(following, dict | list):
        raise ConfigError(f"cannot set {place!r}: {key!r} is not a section")
    return following


def load_plan(raw: Mapping[str, Any]) -> Plan:
    """Validate a mapping into a plan.

    Args:
        raw: The sections of a plan file, as TOML reads them. Deprecated keys are read under their new names, with a
            `FutureWarning` each.

    Returns:
        The validated plan.

    Raises:
        ConfigError: A section or key is unknown, or a value does not fit; the message names the nearest valid one.
    """
    raw = _without_deprecated_keys(raw)
    known = {*_SECTIONS, "method"}
    for key in raw:
        if key not in known:
            raise ConfigError(f"unknown section {key!r} in the plan", hint=nearest(key, known))
    if "data" not in raw:
        raise ConfigError("the plan has no [data] section", hint='Add [data] with at least table = "..."')
    made = {name: _validate(section, raw[name], name) for name, section in _SECTIONS.items() if name in raw}
    section = raw.get("method", {})
    if not isinstance(section, Mapping):
        raise ConfigError("method is not a section", hint='Write [method] and name = "fedavg"')
    name = section.get("name", DEFAULT_METHOD)
    method = find_method(str(name))
    own = {key: value for key, value in section.items() if key != "name"}
    return Plan(**made, method=method.name, config=_validate(method.config, own, "method"))


def _without_deprecated_keys(raw: Mapping[str, Any]) -> dict[str, Any]:
    """`raw` with every deprecated key under its new name, and a warning for each."""
    result: dict[str, Any] = _deep_copy(raw)
    sites, method = result.get("sites"), result.get("method")
    _rename_key(sites, "trouble", "faults", "sites")
    _rename_key(sites.get("faults") if isinstance(sites, dict) else None, "hostile", "byzantine", "sites.faults")
    if isinstance(method, dict):
        _rename_key(method.get("dp"), "tail", "average", "method.dp")
        phases = method.get("phases")
        for number, phase in enumerate(phases if isinstance(phases, list) else (), start=1):
            dp = phase.get("dp") if isinstance(phase, dict) else None
            _rename_key(dp, "tail", "average", f"method.phases.{number}.dp")
    return result


def _rename_key(section: Any, old: str, new: str, place: str) -> None:
    if not isinstance(section, dict) or old not in section:
        return
    if new in section:
        raise ConfigError(f"{place} has both {old!r} and {new!r}", hint=f"Drop {place}.{old}, the old name")
    section[new] = section.pop(old)
    warnings.warn(f"{place}.{old} is deprecated; write {place}.{new}", FutureWarning, stacklevel=4)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a plan, built from the sections and the registered methods."""
    from pydantic import TypeAdapter

    properties = {name: TypeAdapter(section).json_schema() for name, section in _SECTIONS.items()}
    variants = []
    for method in methods().values():
        own = TypeAdapter(method.config).json_schema()
        name = {"const": method.name, "description": method.summary}
        required = [*([] if method.name == DEFAULT_METHOD else ["name"]), *own.get("required", [])]
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
        "properties": {**properties, "method": {"oneOf": variants}},
        "required": ["data"],
        "additionalProperties": False,
        "$defs": definitions,
    }


def _validate(section: type[Any], values: Any, place: str) -> Any:
    from pydantic import TypeAdapter, ValidationError

    _refuse_infinite(values, place)
    try:
        return TypeAdapter(section).validate_python(values)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = _keys_in(values, first["loc"])
        full = ".".join([place, *where])
        if first["type"] in {"unexpected_keyword_argument", "extra_forbidden"}:
            valid = _valid_keys(section, where[:-1])
            raise ConfigError(f"unknown key {full!r} in the plan", hint=nearest(where[-1], valid)) from None
        if first["type"] in {"missing", "missing_argument"}:
            raise ConfigError(f"the plan lacks {full!r}", hint="Add it") from None
        raise ConfigError(f"{full!r} in the plan: {first['msg'].lower()}", hint="Correct it") from None


def _keys_in(values: Any, location: Sequence[str | int]) -> list[str]:
    """`location` without the words the validator puts between keys, such as the alternatives of a union."""
    keys, current = [], values
    for part in location[:-1]:
        if isinstance(current, Mapping) and part in current:
            keys.append(str(part))
            current = current[part]
    last = location[-1] if location else ""
    return [*keys, str(last)] if isinstance(current, Mapping) else keys


def _refuse_infinite(value: Any, place: str) -> None:
    """TOML knows inf and nan; no key of a plan can mean them, and its hash could not be formed."""
    if isinstance(value, float) and not isfinite(value):
        raise ConfigError(f"{place!r} in the plan is not a finite number", hint="Correct it")
    if isinstance(value, Mapping):
        for key, item in value.items():
            _refuse_infinite(item, f"{place}.{key}")
    elif isinstance(value, list | tuple):
        for item in value:
            _refuse_infinite(item, place)


def _valid_keys(section: type[Any], path: Sequence[str]) -> list[str]:
    """The keys allowed at `path` below a section's dataclass."""
    current: Any = section
    for part in path:
        hints = get_type_hints(current) if is_dataclass(current) else {}
        inner = hints.get(part)
        options = [inner, *get_args(inner)]
        following = next((option for option in options if is_dataclass(option)), None)
        if following is None:
            continue
        current = following
    return [key_of(item.name) for item in fields(current)] if is_dataclass(current) else []


def _keys_of_method(section: Mapping[str, Any], name: Any) -> dict[str, Any]:
    """What of a `[method]` section still makes sense when `--set method.name` chooses another method."""
    allowed = {key_of(item.name) for item in fields(find_method(str(name)).config)}
    return {key: value for key, value in section.items() if key in allowed}


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _deep_copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _deep_copy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_deep_copy(item) for item in value]
    return value


def key_of(name: str) -> str:
    """The key of a field in TOML: a word Python keeps for itself, such as lambda, has an underscore behind it."""
    return name.removesuffix("_")


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        value = {key_of(item.name): getattr(value, item.name) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
