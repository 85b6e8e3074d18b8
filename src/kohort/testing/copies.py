"""Copies of a site that is under way: what an adversary does to one of them does not change the others.

Functions are copied together with the variables they close over, because servers keep some of their state there. Keys
and encryption contexts are shared, because nothing changes them. What cannot be copied is an error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Generic, TypeVar

import numpy as np
import polars as pl

__all__ = ["Saved"]

T = TypeVar("T")
_SHARED_MODULES = ("cryptography.", "_sealapi_cpp", "_tenseal_cpp", "tenseal.")
"""Keys and encryption contexts of these packages are made once and never changed by a site."""
_SHARED = (type, ModuleType, CodeType, type(lru_cache(len)), pl.DataFrame, pl.Series)
"""Code, and tables, which are never changed in place."""
_PLAIN = frozenset({str, bytes, int, float, complex, bool, type(None), range, type(...)})


class Saved(Generic[T]):
    """The state of an object, from which it can be made anew any number of times.

    Args:
        value: The object.
        shared: What its copies have in common with it, because nobody changes it.

    Raises:
        TypeError: A part of it cannot be copied, such as an open file.
    """

    def __init__(self, value: T, *, shared: Iterable[object] = ()) -> None:
        self._shared = tuple(shared)
        self._kept: T = _Copier(self._shared).copy(value)

    def restore(self) -> T:
        """Make the object as it was when it was saved.

        Returns:
            A new one.
        """
        made: T = _Copier(self._shared).copy(self._kept)
        return made


class _Copier:
    """Makes one copy; what occurs twice in the original is one object in the copy, too."""

    def __init__(self, shared: Iterable[object]) -> None:
        self._made: dict[int, Any] = {id(one): one for one in shared}
        self._alive: list[object] = []
        """What was copied: the id of an object that is gone may be taken by another."""

    def copy(self, obj: Any) -> Any:
        kind = type(obj)
        if kind in _PLAIN:
            return obj
        if id(obj) in self._made:
            return self._made[id(obj)]
        if kind in _CONTAINERS:
            return _CONTAINERS[kind](self, obj)
        if _is_shared(obj):
            return obj
        if kind is object:
            raise TypeError("an object that is known by its identity alone cannot be copied")
        make: Callable[[_Copier, Any], Any] = _MAKERS.get(kind, _Copier._reduced)
        return make(self, obj)

    def _note(self, obj: object, made: T) -> T:
        self._made[id(obj)] = made
        self._alive.append(obj)
        return made

    def _dict(self, obj: dict[Any, Any]) -> dict[Any, Any]:
        if _PLAIN.issuperset(map(type, obj.values())) and _PLAIN.issuperset(map(type, obj)):
            return self._note(obj, obj.copy())
        made: dict[Any, Any] = self._note(obj, {})
        for key, value in obj.items():
            made[key if type(key) in _PLAIN else self.copy(key)] = value if type(value) in _PLAIN else self.copy(value)
        return made

    def _set(self, obj: set[Any] | frozenset[Any]) -> Any:
        if not _PLAIN.issuperset(map(type, obj)):
            return self._reduced(obj)
        return self._note(obj, obj.copy())  # of a frozen one, that is itself

    def _list(self, obj: list[Any]) -> list[Any]:
        if _PLAIN.issuperset(map(type, obj)):
            return self._note(obj, obj.copy())
        made: list[Any] = self._note(obj, [])
        made.extend(map(self.copy, obj))
        return made

    def _tuple(self, obj: tuple[Any, ...]) -> Any:
        if _PLAIN.issuperset(map(type, obj)):
            return obj
        made = tuple(map(self.copy, obj))
        return self._made[id(obj)] if id(obj) in self._made else self._note(obj, made)

    def _array(self, obj: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if obj.dtype.hasobject:
            raise TypeError("an array of objects cannot be copied")
        made = self._note(obj, obj.copy(order="K"))
        made.flags.writeable = obj.flags.writeable
        return made

    def _hash(self, obj: Any) -> Any:
        return self._note(obj, obj.copy())

    def _method(self, obj: MethodType) -> Any:
        return self._note(obj, MethodType(obj.__func__, self.copy(obj.__self__)))

    def _builtin(self, obj: BuiltinFunctionType) -> Any:
        return self._note(obj, getattr(self.copy(obj.__self__), obj.__name__))

    def _function(self, obj: FunctionType) -> FunctionType:
        """What a function closes over may hold the function itself, so it is set once that is made."""
        cells = obj.__closure__ or ()
        new = [cell for cell in cells if id(cell) not in self._made]
        for cell in new:
            self._note(cell, CellType())
        closure = tuple(self._made[id(cell)] for cell in cells)
        made = self._note(obj, FunctionType(obj.__code__, obj.__globals__, obj.__name__, None, closure))
        made.__defaults__, made.__kwdefaults__ = self.copy(obj.__defaults__), self.copy(obj.__kwdefaults__)
        made.__dict__.update(self.copy(obj.__dict__))
        for cell in new:
            if _is_full(cell):
                self._made[id(cell)].cell_contents = self.copy(cell.cell_contents)
        return made

    def _reduced(self, obj: Any) -> Any:
        """By what the object says of itself (`object.__reduce_ex__`), or attribute by attribute."""
        kind: Any = type(obj)
        if _has_attributes_alone(kind):
            made = self._note(obj, object.__new__(kind))
            attributes = made.__dict__
            for name, value in obj.__dict__.items():
                attributes[name] = value if type(value) in _PLAIN else self.copy(value)
            return made
        parts = obj.__reduce_ex__(4)
        if isinstance(parts, str):  # a name in a module
            return obj
        make, given, state, items, pairs = (*parts, None, None, None)[:5]
        made = self._note(obj, make(*map(self.copy, given)))
        if state is not None:
            _set_state(made, self.copy(state))
        for item in items or ():
            made.append(self.copy(item))
        for key, value in pairs or ():
            made[self.copy(key)] = self.copy(value)
        return made


_CONTAINERS: dict[type, Callable[[_Copier, Any], Any]] = {
    dict: _Copier._dict,
    list: _Copier._list,
    tuple: _Copier._tuple,
    set: _Copier._set,
    frozenset: _Copier._set,
    np.ndarray: _Copier._array,
}
_MAKERS: dict[type, Callable[[_Copier, Any], Any]] = {
    type(hashlib.blake2b()): _Copier._hash,
    type(hashlib.sha256()): _Copier._hash,
    MethodType: _Copier._method,
    BuiltinFunctionType: _Copier._builtin,
    FunctionType: _Copier._function,
}


@cache
def _has_attributes_alone(kind: type) -> bool:
    """Whether objects of a class are what stands in their `__dict__`, and say nothing else of how they are copied."""
    usual = all(getattr(kind, name) is getattr(object, name) for name in ("__new__", "__reduce__", "__reduce_ex__"))
    own = any(hasattr(kind, name) for name in ("__getnewargs__", "__getnewargs_ex__", "__setstate__"))
    states = [one.__dict__["__getstate__"] for one in kind.__mro__[:-1] if "__getstate__" in one.__dict__]
    slots = any(one.__dict__.get("__slots__") for one in kind.__mro__)
    return usual and not own and not states and not slots and kind.__dictoffset__ != 0


def _is_shared(obj: Any) -> bool:
    if isinstance(obj, FunctionType):
        return obj.__closure__ is None
    if isinstance(obj, BuiltinFunctionType):
        return obj.__self__ is None or isinstance(obj.__self__, ModuleType | type)
    return isinstance(obj, _SHARED) or type(obj).__module__.startswith(_SHARED_MODULES)


def _is_full(cell: CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _set_state(made: Any, state: Any) -> None:
    if hasattr(made, "__setstate__"):
        made.__setstate__(state)
        return
    attributes, slots = state if isinstance(state, tuple) else (state, None)
    if attributes:
        made.__dict__.update(attributes)
    for name, value in (slots or {}).items():
        object.__setattr__(made, name, value)
