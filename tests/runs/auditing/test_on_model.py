"""Shadow models of an audit: each sees all rows of a person or none."""

from __future__ import annotations

import numpy as np
import polars as pl

from kohort.models.rows import Rows
from kohort.runs.auditing.on_model import _seen


def test_a_shadow_model_sees_all_rows_of_a_person_or_none() -> None:
    rows = Rows(np.zeros((60, 1), dtype=np.float32), np.zeros(60, dtype=np.float32))
    person = pl.Series(np.arange(60) % 12)
    seen = _seen(Rows(rows.x, rows.y, person=person), 8, 1)
    assert seen.shape == (8, 60)
    assert (seen == seen[:, :12][:, person]).all()
    assert (seen.sum(axis=0) == 4).all()  # every row is in half of the models
    alone = _seen(rows, 8, 1)
    assert not (alone == alone[:, :12][:, person]).all()
