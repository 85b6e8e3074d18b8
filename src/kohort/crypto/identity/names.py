"""Which names hubs, sites and apps' sites may have, checked where a name is given.

A name becomes a file name, a key of TOML and a word of the command line, so it has letters, digits, dots, dashes and
underscores alone.
"""

from __future__ import annotations

import re

from kohort.errors import ConfigError

__all__ = ["check_name"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_OTHER = re.compile(r"[^A-Za-z0-9._-]+")


def check_name(name: str) -> str:
    """Refuse what is no name.

    Args:
        name: What the operator gave.

    Returns:
        The same name.

    Raises:
        ConfigError: It has other characters, is empty, or is too long; the hint says what is allowed, with a proposal.
    """
    if _NAME.fullmatch(name):
        return name
    proposal = _OTHER.sub("-", name).strip("-._")[:64]
    example = f", for example {proposal!r}" if _NAME.fullmatch(proposal) else ""
    raise ConfigError(
        f"{name!r} is no name for a site or a hub",
        hint=f"Use 1 to 64 letters, digits, dots, dashes and underscores, the first a letter or a digit{example}",
    )
