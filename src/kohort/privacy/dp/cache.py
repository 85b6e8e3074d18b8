"""A persistent cache of privacy-accountant results: one file in the user's cache folder.

A study asks for the same noise again and again, and the accountant's library alone takes a second to import. The file
carries the versions of this code and of the library, and its own digest; a file that does not match is ignored and
overwritten. Results do not depend on the cache. It is written when it has grown by 5 % and when the process ends, so
that a thousand new results do not cause a thousand writes.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import math
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from kohort.errors import KohortError
from kohort.files import write_atomic

__all__ = ["recall", "remember"]

CODE_VERSION = 1
"""Raise it with every change that gives other numbers."""
CACHE_FILE = "accounting.json"
_MOST = 20_000
_GROWTH = 0.05
_loaded: dict[Path, dict[str, float]] = {}
_unwritten: dict[Path, dict[str, float]] = {}


def recall(key: str) -> float | None:
    """Look up a cached result.

    Args:
        key: The full description of the computation.

    Returns:
        The result, or None when it is not in the cache.
    """
    return _entries(_path()).get(key)


def remember(key: str, value: float) -> None:
    """Store a result. A cache folder that cannot be written only costs time, so that is not an error.

    Args:
        key: The full description of the computation.
        value: Its result.
    """
    path = _path()
    new = _unwritten.setdefault(path, {})
    new[key] = _entries(path)[key] = value
    if len(new) > len(_loaded[path]) * _GROWTH:
        _write(path)


def _write(path: Path) -> None:
    new = _unwritten.pop(path, {})
    if not new:
        return
    entries = {**_read(path), **_entries(path), **new}  # another process may have written meanwhile
    if len(entries) > _MOST:
        entries = new
    _loaded[path] = entries
    body = _body(entries)
    content = json.dumps({"digest": _digest(body), "body": json.loads(body)}, sort_keys=True)
    with suppress(KohortError, OSError):
        write_atomic(path, content.encode())


@atexit.register
def _write_all() -> None:
    for path in list(_unwritten):
        _write(path)


def _path() -> Path:
    from kohort.tables.datasets.catalogue import cache_folder

    return cache_folder() / CACHE_FILE


def _entries(path: Path) -> dict[str, float]:
    if path not in _loaded:
        _loaded[path] = _read(path)
    return _loaded[path]


def _read(path: Path) -> dict[str, float]:
    try:
        found = json.loads(path.read_bytes())
        entries = found["body"]["entries"]
        body = _body(entries)
        sound = found["digest"] == _digest(body) and found["body"] == json.loads(body)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    return entries if sound and all(_is_number(value) for value in entries.values()) else {}


def _is_number(value: Any) -> bool:
    return isinstance(value, float) and math.isfinite(value) and value >= 0


def _body(entries: dict[str, float]) -> str:
    return json.dumps({"versions": _versions(), "entries": entries}, sort_keys=True)


def _digest(body: str) -> str:
    return hashlib.blake2b(body.encode(), digest_size=16).hexdigest()


@cache
def _versions() -> str:
    from importlib.metadata import version

    return f"{CODE_VERSION} dp-accounting {version('dp-accounting')} scipy {version('scipy')}"
