"""Compiled loops that are kept on disk, and read from there without getting ready to compile.

Guarantee: a loop that was compiled before for the same types runs as it was compiled, also where several processes
saved code of one loop at once. Code for types that an installed version no longer has is compiled anew. Where no folder
can be written to, every process compiles for itself.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.runtime.nrt import rtsys

__all__ = ["SavedCode", "compile_and_save", "must_compile"]


class _SavedIndex(IndexDataCacheFile):
    """The list of what is saved of one loop; empty where it names types that are gone or renamed since."""

    def _load_index(self) -> Any:
        try:
            return super()._load_index()  # type: ignore[no-untyped-call]
        except (AttributeError, ImportError):
            return {}


class SavedCode(FunctionCache):
    """Numba's cache on disk, read without getting ready to compile.

    Before Numba looks for saved code it loads all it would need to compile (SciPy among it), which takes half a second.
    Saved code needs the memory manager alone; and what compiles gets ready by itself. Loops that use NumPy's reductions
    load some of it after all.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        made = self._cache_file
        self._cache_file = _SavedIndex(self._cache_path, self._impl.filename_base, made._source_stamp)  # type: ignore[no-untyped-call]

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The saved code for some argument types; None where there is none."""
        rtsys.initialize(target_context)
        with self._guard_against_spurious_io_errors():
            found = self._load_overload(sig, target_context)  # type: ignore[no-untyped-call]
            # Two processes that save code for different types at once may write to the same file.
            return found if found is not None and found.signature.args == tuple(sig) else None

    def holds(self, sig: Any, target_context: Any) -> bool:
        """Whether there is saved code for some argument types; it is not loaded.

        Args:
            sig: The types.
            target_context: What the code is for.

        Returns:
            True where the index on disk lists it.
        """
        key = self._index_key(sig, target_context.codegen())  # type: ignore[no-untyped-call]
        return key in self._cache_file._load_index()  # type: ignore[no-untyped-call]


def compile_and_save(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """A decorator that compiles a loop for the types of each first call, and saves the code.

    Args:
        **options: Of `numba.njit`, beside those that all loops share: outside the interpreter's lock, division as NumPy
            has it.

    Returns:
        The decorator.
    """

    def prepare(function: Callable[..., Any]) -> Any:
        made: Any = numba.njit(nogil=True, error_model="numpy", **options)(function)
        if hasattr(made, "py_func"):  # with NUMBA_DISABLE_JIT it is the function itself
            with suppress(RuntimeError):  # neither the package nor the user has a folder to save to
                made._cache = SavedCode(made.py_func)
        return made

    return prepare


def must_compile(loop: Any, *arguments: object) -> bool:
    """Whether calling a loop with these arguments compiles it, and saves the code.

    Args:
        loop: What `compile_and_save` made.
        *arguments: What it would be called with; their types alone matter.

    Returns:
        False where it is compiled or saved already, and where nothing is compiled or nothing can be saved.
    """
    saved = getattr(loop, "_cache", None)
    if not isinstance(saved, SavedCode):
        return False
    types = tuple(numba.typeof(argument) for argument in arguments)  # type: ignore[no-untyped-call]
    return types not in loop.overloads and not saved.holds(types, loop.targetctx)
