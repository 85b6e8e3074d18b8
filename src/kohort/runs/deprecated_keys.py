"""Plan keys that were renamed: read under their new names, with a warning each."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from kohort.errors import ConfigError
from kohort.runs.overrides import copied

__all__ = ["without_deprecated_keys"]


def without_deprecated_keys(raw: Mapping[str, Any]) -> dict[str, Any]:
    """`raw` with every deprecated key under its new name, and a warning for each."""
    result: dict[str, Any] = copied(raw)
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
