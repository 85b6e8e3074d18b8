"""The settings files of a deployment: reading them guarded, judging their sections, and writing the templates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge

from kohort.crypto.identity.guarded_files import UNCHANGED, read_guarded
from kohort.errors import ConfigError
from kohort.privacy.policy import Policy
from kohort.runs.config import DataSection, Plan
from kohort.tables.schema import Schema
from kohort.tables.sources.opening import absolute
from kohort.toml import parse_toml

__all__ = [
    "MAPPING_FILE",
    "SCHEMA_KEYS",
    "Limits",
    "SiteSection",
    "SiteSettings",
    "read_settings",
    "section_of",
    "site_template",
    "toml_value",
]

SCHEMA_KEYS = (
    "target", "quasi", "sensitive", "identifiers", "items", "features", "drop",
    "kinds", "bins", "bounds", "categories", "other", "nullable", "person", "weight", "hierarchies", "ancestors",
    "ordered", "consent",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Limits:
    """`[limits]`: how much of it in 30 days, whatever each single request claims."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field

    runs: Annotated[int, Ge(0)] | None = None
    """Runs that may begin."""
    tasks: Mapping[str, int] = field(default_factory=dict)
    """Answers by pattern of task names: {"partial.count.*" = 12} limits secure counts, {"*.open" = 4} openings."""


@dataclass(frozen=True, kw_only=True)
class SiteSection:
    """`[site]`: who, and which table."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field

    name: str
    table: str = ""
    """A path or the address of a database; a relative path starts at the site's folder."""
    query: str = ""
    """A SELECT statement, where `table` is the address of a database. It is the site's own: no plan can change it."""
    mapping: str = ""
    """A mapping file that is applied to the table at home (`kohort harmonise`), or nothing."""
    low_risk: str = ""
    """Which rows carry a low risk: "column:NAME", a column of 0 and 1, or "below:COLUMN:NUMBER"; empty for none."""
    cluster: str = ""
    """The cluster of peers this site trains with: a name, or "column:NAME" for the one value all rows have there."""
    seed: int | None = None
    """For tests alone: makes the site's randomness predictable for everybody who knows it."""


@dataclass(frozen=True)
class SiteSettings:
    """What `site.toml` says.

    Attributes:
        site: Who the site is, and where its table lies.
        data: What the columns are, and how the table is read.
        schema: The columns' roles and domains, for the table it names.
        policy: What may leave.
        limits: How often, and by when.
    """

    site: SiteSection
    data: DataSection
    schema: Schema
    policy: Policy
    limits: Limits


def read_settings(path: Path, *, what: str) -> dict[str, Any]:
    """A settings file that decides what is trusted or may leave, if nobody else may change it.

    Args:
        path: The file.
        what: What its folder is: "site", "hub" or "door".

    Returns:
        Its content.

    Raises:
        ConfigError: There is none, or it is not TOML.
        RefusedError: Others may change it.
    """
    command = "flower" if what == "door" else what
    if not path.is_file():
        raise ConfigError(f"there is no {what} at {path.parent}", hint=f"Make one with: kohort {command} init")
    try:
        text = read_guarded(path, forbidden=UNCHANGED).decode()
    except ValueError:
        raise ConfigError(f"{path} cannot be read as text", hint="It is a TOML file in UTF-8") from None
    return parse_toml(text, str(path))


def section_of(
    raw: Mapping[str, Any], name: str, kind: type[Any], file: str, *, extra: Mapping[str, Any] | None = None
) -> Any:
    """One section of a settings file.

    Args:
        raw: The file's content.
        name: The section's name.
        kind: The dataclass that says which keys it has.
        file: The file's name, for the message.
        extra: Keys that come from elsewhere.

    Returns:
        The section.

    Raises:
        ConfigError: A key is unknown or out of range.
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_python({**raw.get(name, {}), **(extra or {})})
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join([name, *(str(part) for part in first["loc"])])
        raise ConfigError(f"{where!r} in {file}: {first['msg'].lower()}", hint="Correct it") from None


MAPPING_FILE = "mapping.toml"
"""The mapping that a site takes over from its plan, in the site's folder."""
_REMARKS = {"epsilon": "  # in total, over all runs with this table; spent epsilon never comes back"}
"""Remarks of the template on rules of the policy."""


def site_template(name: str, table: Path | str | None, plan: Plan | None) -> str:
    """A `site.toml` with the roles of `plan`, and every rule of the policy at its careful default.

    Args:
        name: The site's name.
        table: Its rows, as a path or an address; None for a key-holder.
        plan: Whose roles of columns to copy; None for none.

    Returns:
        The file's text.
    """
    lines = ["[site]", f"name = {toml_value(name)}"]
    if table is not None:
        place = str(table.resolve()) if isinstance(table, Path) else absolute(table)
        lines += [f"table = {toml_value(place)}"]
        has_mapping = plan is not None and plan.data.mapping is not None
        lines += [f"mapping = {toml_value(MAPPING_FILE)}  # applied to the table at home"] if has_mapping else []
        lines += ['# low_risk = "below:age:30"  # or "column:NAME", a column of 0 and 1; for hybrid plans']
        lines += ['# cluster = "north"  # the peers this site trains with; for hybrid plans', ""]
    lines += ["[data]  # what the columns are; must agree with the plan"]
    section = {} if plan is None else plan.to_mapping()["data"]
    lines += [f"{key} = {toml_value(section[key])}" for key in SCHEMA_KEYS if section.get(key)]
    how = {key: value for key, value in (section.get("reading") or {}).items() if value}
    lines += [f"reading = {toml_value(how)}  # how the plan's author reads a table; yours may differ"] if how else []
    lines += ["", "[policy]  # what may leave; a plan can tighten it, never loosen it"]
    lines += [f"{key} = {toml_value(value)}{_REMARKS.get(key, '')}" for key, value in Policy().to_mapping().items()]
    lines += ["", "[limits]  # in 30 days", "# runs = 20", '# tasks = {"partial.count.*" = 12}', ""]
    return "\n".join(lines)


def toml_value(value: Any) -> str:
    """The TOML form of a plain value.

    Args:
        value: Numbers, text, lists and mappings.

    Returns:
        Its text.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(str(key))} = {toml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)
