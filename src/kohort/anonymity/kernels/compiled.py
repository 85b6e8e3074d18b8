"""How the loops are compiled: cached on disk, without the interpreter's lock, division as NumPy has it."""

from __future__ import annotations

from typing import Any

import numba

__all__ = ["compiled"]

compiled: Any = numba.njit(cache=True, nogil=True, error_model="numpy")
