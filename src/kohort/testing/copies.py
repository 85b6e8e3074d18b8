"""Copies of a site that is under way: what an adversary does to one of them does not change the others.

A copy is made by pickling in memory. Functions are copied together with the variables they close over, because servers
keep some of their state there. Keys, hash functions and encryption contexts are copied as their kind allows, or shared
where nothing changes them. What cannot be copied is an error.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Iterable
from functools import lru_cache
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any, Generic, TypeVar

import polars as pl

__all__ = ["Saved"]

T = TypeVar("T")
_SHARED_MODULES = ("cryptography.", "_sealapi_cpp", "_tenseal_cpp", "tenseal.")
"""Keys and encryption contexts of these packages are made once and never changed by a site."""
_CODE = (type, ModuleType, CodeType, type(lru_cache(len)), pl.DataFrame, pl.Series)
_PLAIN = frozenset({str, bytes, int, float, bool, type(None), tuple, list, dict})
"""Most of what is copied; asked first, because it is fast."""
_HASHES = (type(hashlib.blake2b()), type(hashlib.sha256()))


class Saved(Generic[T]):
    """The state of an object, from which it can be made anew any number of times.

    Args:
        value: The object.
        shared: What its copies have in common with it, because nobody changes it.

    Raises:
        TypeError: A part of it cannot be copied, such as an open file.
    """

    def __init__(self, value: T, *, shared: Iterable[object] = ()) -> None:
        self._parts: list[object] = []
        written = io.BytesIO()
        _Writer(written, self._parts, {id(one) for one in shared}).dump(value)
        self._written = written.getvalue()

    def restore(self) -> T:
        """Make the object as it was when it was saved.

        Returns:
            A new one.
        """
        made: T = _Reader(io.BytesIO(self._written), self._parts).load()
        return made


class _Writer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, parts: list[object], shared: set[int]) -> None:
        super().__init__(file, protocol=5)
        self._parts, self._shared = parts, shared
        self._places: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        return self._share(obj) if id(obj) in self._shared or _is_shared(obj) else None

    def _share(self, part: object) -> int:
        if id(part) not in self._places:
            self._places[id(part)] = len(self._parts)
            self._parts.append(part)  # which also keeps its id from being taken by another object
        return self._places[id(part)]

    def _by_reference(self, part: T) -> T:
        self._shared.add(id(part))
        self._share(part)
        return part

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, CellType):
            return CellType, ()
        if isinstance(obj, FunctionType):
            return self._reduced_function(obj)
        if isinstance(obj, _HASHES):
            return _hash, (self._by_reference(obj.copy()),)
        if type(obj) is object:
            raise TypeError("an object that is known by its identity alone cannot be copied")
        return NotImplemented

    def _reduced_function(self, made: FunctionType) -> Any:
        cells = made.__closure__ or ()
        parts = (made.__code__, self._by_reference(made.__globals__), made.__name__, made.__defaults__, cells)
        closed_over = [(cell, cell.cell_contents) for cell in cells if _is_full(cell)]
        return FunctionType, parts, (made.__kwdefaults__, made.__dict__, closed_over), None, None, _fill


class _Reader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, parts: list[object]) -> None:
        super().__init__(file)
        self._parts = parts

    def persistent_load(self, pid: int) -> object:
        return self._parts[pid]


def _is_shared(obj: Any) -> bool:
    """Whether copies may have it in common: code, and what is never changed in place."""
    if type(obj) in _PLAIN:
        return False
    if isinstance(obj, FunctionType):
        return obj.__closure__ is None
    if isinstance(obj, BuiltinFunctionType):
        return obj.__self__ is None or isinstance(obj.__self__, ModuleType | type)
    return isinstance(obj, _CODE) or type(obj).__module__.startswith(_SHARED_MODULES)


def _is_full(cell: CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _fill(made: FunctionType, state: tuple[Any, dict[str, Any], list[tuple[CellType, Any]]]) -> None:
    """What a function closes over may hold the function itself, so it is set once that is made."""
    made.__kwdefaults__, attributes, closed_over = state
    made.__dict__.update(attributes)
    for cell, contents in closed_over:
        cell.cell_contents = contents


def _hash(saved: Any) -> Any:
    return saved.copy()
