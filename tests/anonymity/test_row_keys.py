"""Keys of rows and their order, against sorting rows by their codes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples

from kohort.anonymity import row_keys
from kohort.anonymity.row_keys import fold_codes, key_order

ROWS = st.lists(st.tuples(*[st.integers(0, 3)] * 3), max_size=14)


@examples(60, 400)
@given(rows=ROWS, largest=st.sampled_from([5, 1 << 8, 1 << 62]))
def test_keys_tell_rows_apart_and_rows_of_one_key_keep_their_order(rows, largest):
    groups = np.arange(len(rows)) % 2
    wanted = [(group, *row) for group, row in zip(groups.tolist(), rows, strict=True)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_keys, "LARGEST_KEY", largest)
        parts = ((4, np.array([row[at] for row in rows], np.uint16)) for at in range(3))
        key = fold_codes(parts, groups, 2)
        order, first = key_order(key)
    assert order.tolist() == sorted(range(len(rows)), key=lambda row: wanted[row])
    ordered = [wanted[row] for row in order.tolist()]
    assert first.tolist() == [at for at, row in enumerate(ordered) if at == 0 or row != ordered[at - 1]]
    assert groups.tolist() == [at % 2 for at in range(len(rows))]
