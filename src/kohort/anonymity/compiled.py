"""How the loops are compiled: cached on disk, without the interpreter's lock, division as NumPy has it.

What a first call costs is mostly the number of functions that are compiled, and every new set of argument types is a
function. So loops compare where they could call min or max, work on int64, and get their arrays in few ways.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numba
import numpy as np

from kohort.saved_code import compile_and_save

__all__ = ["compiled", "first_call", "inlined", "inner", "zeros"]


compiled: Any = compile_and_save()
# For functions that only compiled ones call: leaving out the way in from Python saves much of their compile time.
inner: Any = compile_and_save(no_cpython_wrapper=True, no_cfunc_wrapper=True)

# For a part of one loop that has a name of its own: put into its caller before types are found, so that it is not
# compiled by itself. For functions with one caller.
inlined: Any = numba.njit(nogil=True, error_model="numpy", inline="always")


@inner
def zeros(count: int) -> Any:
    """Whole numbers, all 0: one function more to compile than numpy.empty, where numpy.zeros is three."""
    found = np.empty(count, np.int64)
    for i in range(count):
        found[i] = 0
    return found


@contextmanager
def first_call(*functions: Any) -> Iterator[None]:
    """Pause the garbage collector around the first call of compiled functions.

    Compiling makes millions of objects that stay, and the collector would look through them again and again: a tenth of
    the time a first call takes.

    Args:
        functions: The compiled functions that the block calls.

    Yields:
        Nothing; the collector is paused only if one of the functions has yet to be compiled.
    """
    # With NUMBA_DISABLE_JIT, functions are plain ones and have no signatures.
    pause = gc.isenabled() and not all(getattr(function, "signatures", True) for function in functions)
    if pause:
        gc.disable()
    try:
        yield
    finally:
        if pause:
            gc.enable()
