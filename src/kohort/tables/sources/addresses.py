"""Addresses of tables in databases, such as `postgresql://reader:${DB_PASSWORD}@host/clinic#visits`.

The part after `#` names the table, with its schema if it has one (`#cdm.person`). `${NAME}` stands for an environment
variable, so that no password has to be written down. Files are named by path: `sqlite:///clinic.db#visits`.

Guarantee: `Address.shown` and every error of this module hold no password, and `refuse_password` keeps passwords out
of plans. Whatever stands before the last `@` counts as user and password, so that one with a `#`, `/` or `@` in it is
not taken for something else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from kohort.errors import ConfigError

__all__ = ["FILE_SCHEMES", "Address", "is_address", "refuse_password", "shown"]

FILE_SCHEMES = ("sqlite", "duckdb")
"""Databases that are a file."""
SECRET_OPTIONS = frozenset({"password", "passwd", "pwd", "sslpassword", "token", "access_token", "motherduck_token"})
_SCHEME = re.compile(r"(?P<scheme>[a-z][a-z0-9_]*(?:\+[a-z0-9_]+)?)://", re.IGNORECASE)
_PLACEHOLDER = re.compile(r"\$\{(\w+)\}")
_TABLE = re.compile(r"[\w $-]+(?:\.[\w $-]+)?")
_HIDDEN = "***"
_FORM = "Write dialect://user@host/database#table, sqlite:///FILE#table or duckdb:///FILE#table"


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a table lies. `${NAME}` is kept as it is written; `expanded` puts the environment's values in."""

    scheme: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    host: str | None = None
    port: int | None = None
    database: str = ""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    table: str | None = None

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read an address.

        Raises:
            ConfigError: It cannot be read. The error does not show it.
        """
        match = _SCHEME.match(text)
        if match is None:
            raise ConfigError("the address of a database cannot be read", hint=_FORM)
        scheme, rest = match["scheme"].lower(), text[match.end() :]
        user: str = ""
        if scheme not in FILE_SCHEMES:
            user, _, rest = rest.rpartition("@")
        rest, has_table, table = rest.rpartition("#") if "#" in rest else (rest, "", "")
        if has_table and not _TABLE.fullmatch(table):
            raise ConfigError("the name of the table after # cannot be read", hint=_FORM)
        name, colon, password = user.partition(":")
        try:
            parts = urlsplit(f"//{rest}")
            host, port = parts.hostname, parts.port
        except ValueError:
            raise ConfigError(f"the host in a {scheme} address cannot be read", hint=_FORM) from None
        if scheme in FILE_SCHEMES and (host or len(parts.path) < 2):
            raise ConfigError(f"a {scheme} address names no file", hint=f"Write {scheme}:///FILE#table")
        return cls(
            scheme=scheme,
            username=unquote(name) or None,
            password=unquote(password) if colon else None,
            host=host,
            port=port,
            database=unquote(parts.path[1:]),
            options=dict(parse_qsl(parts.query, keep_blank_values=True)),
            table=table or None,
        )

    @property
    def is_file(self) -> bool:
        """Whether the database is a file."""
        return self.scheme in FILE_SCHEMES

    @property
    def name(self) -> str:
        """What a site with this table is called: the database, without folder and ending."""
        return Path(self.database).stem if self.is_file else self.database

    def shown(self) -> str:
        """The address as it may be printed: without password."""
        secret = "" if self.password is None else f":{_HIDDEN}"
        user = f"{quote(self.username or '')}{secret}@" if self.username or secret else ""
        place = f"{self.host or ''}{'' if self.port is None else f':{self.port}'}"
        options = "&".join(
            f"{key}={_HIDDEN if key.lower() in SECRET_OPTIONS else value}" for key, value in self.options.items()
        )
        table = f"#{self.table}" if self.table else ""
        return f"{self.scheme}://{user}{place}/{self.database}{'?' if options else ''}{options}{table}"

    def expanded(self) -> Address:
        """The address with the values of the environment in place of `${NAME}`.

        Raises:
            ConfigError: A variable is not set.
        """
        return replace(
            self,
            username=None if self.username is None else _expand(self.username),
            password=None if self.password is None else _expand(self.password),
            host=None if self.host is None else _expand(self.host),
            database=_expand(self.database),
            options={key: _expand(value) for key, value in self.options.items()},
        )

    def below(self, folder: Path) -> Address:
        """The address with a relative file taken to start at `folder`."""
        return replace(self, database=str(folder / self.database)) if self.is_file else self

    @property
    def holds_password(self) -> bool:
        """Whether a password is written out, instead of named by an environment variable."""
        secrets = [self.password, *(value for key, value in self.options.items() if key.lower() in SECRET_OPTIONS)]
        return any(secret and not _PLACEHOLDER.fullmatch(secret) for secret in secrets)


def is_address(text: str) -> bool:
    """Whether a table is named by the address of a database.

    Args:
        text: The name of a table.

    Returns:
        True if it begins with a scheme and `://`; the rest is not checked.
    """
    return _SCHEME.match(text) is not None


def shown(text: str) -> str:
    """A table's name as it may be printed: an address without its password, anything else as it is.

    Args:
        text: The name of a table: an address, a path or a dataset.

    Returns:
        The name without secrets.

    Raises:
        ConfigError: It begins like an address and cannot be read.
    """
    return Address.parse(text).shown() if is_address(text) else text


def refuse_password(text: str, place: str) -> None:
    """Keep passwords out of what is hashed, stored and shown to others.

    Args:
        text: A table's name, path or address.
        place: The key that holds it, for the error.

    Raises:
        ConfigError: It is an address with a password written out, or one that cannot be read.
    """
    if is_address(text) and Address.parse(text).holds_password:
        raise ConfigError(
            f"{place} holds a password, and plans are stored and shown to others",
            hint="Write ${DB_PASSWORD} in its place and set that environment variable, or use ~/.pgpass",
        )


def _expand(text: str) -> str:
    def value_of(match: re.Match[str]) -> str:
        value = os.environ.get(match[1])
        if value is None:
            raise ConfigError(f"the environment variable {match[1]} is not set", hint="Set it, as the address needs it")
        return value

    return _PLACEHOLDER.sub(value_of, text)
