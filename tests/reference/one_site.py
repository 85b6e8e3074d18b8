"""One site trained alone: the form that training many sites at once must equal bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np

from kohort.models.dense.network import Network
from kohort.models.dense.training import Fitted, fit_many
from kohort.models.options import FloatArray
from kohort.models.rows import Rows, stack

__all__ = ["fit_one"]


def fit_one(network: Network, weights: FloatArray, rows: Rows, *, key: int, **options: Any) -> Fitted:
    """`fit_many` with a single site, so that every array it returns has a first axis of length 1."""
    return fit_many(network, weights, stack([rows]), keys=np.array([key], dtype=np.uint64), **options)
