"""Reading TOML files that people write: one clear line for whatever is wrong with them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from kohort.errors import ConfigError

__all__ = ["parse_toml", "parse_value", "read_toml"]


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """The content of a TOML file.

    Args:
        path: The file.
        what: What it is, for messages: "plan", "schema file".

    Returns:
        Its tables and values, not yet checked.

    Raises:
        ConfigError: There is none, or it is not TOML in UTF-8.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"there is no {what} at {path}", hint="Give the path of a TOML file") from None
    except (OSError, UnicodeDecodeError):
        raise ConfigError(f"{path} cannot be read as text", hint=f"A {what} is a TOML file in UTF-8") from None
    return parse_toml(text, str(path))


def parse_toml(text: str, name: str) -> dict[str, Any]:
    """The content of TOML text.

    Args:
        text: The text.
        name: Where it is from, for messages.

    Returns:
        Its tables and values, not yet checked.

    Raises:
        ConfigError: It is not TOML, or is nested deeper than anything kohort reads.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name} is not TOML: {error}", hint="Correct that line") from None
    except RecursionError:
        raise ConfigError(f"{name} has lists or tables too deep inside each other", hint="Make it flat") from None


def parse_value(text: str) -> Any:
    """A value as TOML reads it, a number, a truth value, a list or quoted text; anything else is text.

    Args:
        text: What somebody wrote, as in `--set train.lr=0.1`.

    Returns:
        The value; `text` itself where it is no TOML value. It never fails.
    """
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
