"""Declared domains that change: a signed update from the hub, which each site's operator takes over with a command.

    domains.json     from the hub to sites: kinds, bounds, bins and categories of a plan's columns, signed and dated

Without it every operator would edit `site.toml` by hand. An update changes what is declared about columns and nothing
else: no role, no policy, no path. It names no value of a row; what it changes is printed column by column.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from kohort.crypto.identity.keys import public_from_text, public_text
from kohort.crypto.identity.parties import Identity, PublicIdentity
from kohort.errors import ConfigError, IntegrityError, RefusedError
from kohort.files import write_atomic
from kohort.privacy.ledger.ledger import canonical
from kohort.purposes import Purpose
from kohort.runs.config import Plan
from kohort.tables.schema import ColumnSpec, Schema
from kohort.transport.deployment.files import SignedFile, read_signed, write_signed
from kohort.transport.deployment.settings import read_settings, toml_value

__all__ = ["DOMAINS_FILE", "DOMAIN_KEYS", "DomainUpdate", "schema_differences"]

DOMAIN_KEYS = ("kinds", "bins", "bounds", "categories", "other", "nullable")
"""The keys of `[data]` that declare what values a column has."""
DOMAINS_FILE = "domains.json"
_HEADER = re.compile(r"\s*\[\[?\s*([A-Za-z0-9_.\"'-]+)\s*\]?\]")


@dataclass(frozen=True, kw_only=True)
class DomainUpdate:
    """Declared domains, as the hub's operator signed them."""

    hub: PublicIdentity
    made: str
    """When, in UTC; a site takes over none that is older than its last one."""
    data: Mapping[str, Any]
    """The keys of `DOMAIN_KEYS` that are declared."""
    signature: str = ""

    @classmethod
    def of(cls, hub: Identity, plan: Plan, *, now: datetime | None = None) -> DomainUpdate:
        """The domains a plan declares, signed by the hub.

        Args:
            hub: Who signs.
            plan: Whose `[data]` to take them from.
            now: The time; by default that of the clock.

        Returns:
            The update.
        """
        section = plan.to_mapping()["data"]
        data = {key: section[key] for key in DOMAIN_KEYS if section.get(key)}
        made = (now or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")
        unsigned = cls(hub=hub.public, made=made, data=data)
        signature = hub.sign(canonical(unsigned._texts()).encode(), purpose=Purpose.DOMAINS).hex()
        return cls(hub=hub.public, made=made, data=data, signature=signature)

    def write(self, path: Path) -> None:
        """As a file to hand to sites.

        Args:
            path: Where.
        """
        write_signed(path, "domains", self._texts(), self.signature)

    @classmethod
    def read(cls, path: Path, *, hub: PublicIdentity) -> DomainUpdate:
        """From such a file, if this site's hub signed it.

        Args:
            path: The file.
            hub: Who must have signed it.

        Returns:
            The update.

        Raises:
            IntegrityError: It is damaged, or somebody else signed it.
        """
        found = read_signed(path, "domains", ("hub", "made", "data"))
        damaged = IntegrityError(f"{path} is not a kohort domains file, or damaged", hint="Ask for it again")
        try:
            data = json.loads(found.texts["data"])
            datetime.strptime(found.texts["made"], "%Y-%m-%dT%H:%M:%SZ")
        except ValueError as error:
            raise damaged from error
        if public_from_text(found.texts["hub"]) != hub:
            raise IntegrityError(f"{path} is of another hub than this site's", hint="Ask the hub's operator for it")
        SignedFile(str(path), found.texts, found.signature).check(hub, Purpose.DOMAINS)
        if not isinstance(data, dict) or not set(data) <= set(DOMAIN_KEYS):
            raise damaged
        return cls(hub=hub, made=found.texts["made"], data=data, signature=found.signature)

    def apply(self, site: Path) -> list[str]:
        """Put the domains into a site's `site.toml`; comments and all other keys stay as they are.

        Args:
            site: The site's folder.

        Returns:
            What changed: a column and a key each.

        Raises:
            RefusedError: The site took over a newer update before.
            ConfigError: `site.toml` is not in a form that can be changed.
        """
        last = site / DOMAINS_FILE
        if last.is_file():
            known = read_signed(last, "domains", ("hub", "made", "data"), guarded=True).texts["made"]
            if known > self.made:
                raise RefusedError(
                    f"this update was signed on {self.made}, and one of {known} was taken over before",
                    hint="Ask the hub's operator for the newest one",
                )
        place = site / "site.toml"
        before = read_settings(place, what="site")
        text = place.read_text(encoding="utf-8")
        changed = []
        for key in DOMAIN_KEYS:
            old, new = before.get("data", {}).get(key), self.data.get(key)
            names = _columns_that_differ(old, new)
            if names:
                text = _with_key(text, key, new)
                changed += [f"{name}: {key}" for name in names]
        wanted = {**before, "data": {k: v for k, v in before.get("data", {}).items() if k not in DOMAIN_KEYS}}
        wanted["data"] |= {key: self.data[key] for key in DOMAIN_KEYS if self.data.get(key)}
        found = tomllib.loads(text)
        found["data"] = {k: v for k, v in found.get("data", {}).items() if v or k not in DOMAIN_KEYS}
        if canonical(found) != canonical(wanted):
            raise ConfigError(f"cannot change {place} by itself", hint=f"Set {', '.join(changed)} by hand")
        if changed:
            write_atomic(place, text.encode(), durable=True, private=True)
        self.write(last)
        return changed

    def _texts(self) -> dict[str, str]:
        return {"hub": public_text(self.hub), "made": self.made, "data": canonical(dict(self.data))}


def _columns_that_differ(old: Any, new: Any) -> list[str]:
    if isinstance(old or new, dict):
        left, right = dict(old or {}), dict(new or {})
        return sorted(name for name in {*left, *right} if left.get(name) != right.get(name))
    return sorted({*(old or ())} ^ {*(new or ())})


def _with_key(text: str, key: str, value: Any) -> str:
    """The file's text with one key of `[data]` set, or without it."""
    lines = text.splitlines()
    begin = next((n for n, line in enumerate(lines) if _header(line) == "data"), None)
    if begin is None:
        lines += ["", "[data]"]
        begin = len(lines) - 1
    for first, last in reversed(_places(lines, begin, key)):
        del lines[first:last]
    if value:
        lines.insert(begin + 1, f"{key} = {toml_value(value)}")
    return "\n".join(lines) + "\n"


def _places(lines: list[str], begin: int, key: str) -> list[tuple[int, int]]:
    """Where the key stands: as a line of `[data]`, over several lines, or as tables of its own."""
    found = []
    headers = [n for n, line in enumerate(lines) if _header(line) is not None] + [len(lines)]
    end = next(n for n in headers if n > begin)
    for number in range(begin + 1, end):
        if re.match(rf"\s*{key}\s*=", lines[number]):
            last = next((n for n in range(number + 1, end + 1) if _parses("\n".join(lines[number:n]))), number + 1)
            found.append((number, last))
    for number, following in pairwise(headers):
        if str(_header(lines[number])).startswith(f"data.{key}"):
            found.append((number, following))
    return found


def _header(line: str) -> str | None:
    match = _HEADER.match(line)
    return None if match is None else match.group(1)


def _parses(text: str) -> bool:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True


def schema_differences(own: Schema, meant: Schema) -> list[str]:
    """What two schemas disagree about, by column; declared facts alone, never a value of a row.

    Args:
        own: The site's schema.
        meant: The one of the plan.

    Returns:
        One text per column: "'age': bounds", "'ward' is not in this site's table".
    """
    found = [f"{name!r} is not in the plan" for name in own.columns if name not in meant.columns]
    found += [f"{name!r} is not a column here" for name in meant.columns if name not in own.columns]
    for name, spec in own.columns.items():
        other: ColumnSpec | None = meant.columns.get(name)
        parts = [] if other is None else [part for part in vars(spec) if getattr(spec, part) != getattr(other, part)]
        if parts:
            found.append(f"{name!r}: {', '.join(parts)}")
    return found if own.person == meant.person else [*found, "which identifier names the person"]
