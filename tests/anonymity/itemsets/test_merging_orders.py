"""Which clusters join: by the loss of their union, or by their places in two orderings, as the paper prints it."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from kohort.anonymity.itemsets.kkm import anonymise_items


def joined(merge: str, delta: float, **options: Any) -> list[list[int]]:
    """Ages that end in one class, of four pairs of rows that lose 0, 1, 4 and 5 of 100 years."""
    ages = [40, 40, 41, 42, 90, 94, 0, 5, 100, 100]
    codes = [["a"], ["a"], ["b"], ["c"], ["a"], ["a"], ["d"], ["e"], ["f"], ["g"]]
    frame = pl.DataFrame({"age": ages, "codes": codes})
    made = anonymise_items(frame, quasi=["age"], items="codes", k=2, m=1, merge=merge, delta=delta, **options)  # type: ignore[arg-type]
    classes: dict[int, list[int]] = {}
    for age, cluster in zip(ages, made.cluster.tolist(), strict=True):
        classes.setdefault(cluster, []).append(age)
    return sorted(classes.values())


def test_the_union_decides_for_all_and_the_own_places_for_printed() -> None:
    """The seed loses nothing in ages and items. By the union its partner is 41 to 42, next to it in age. By places it
    is 90 to 94: further by relational loss, and next to it by item loss."""
    assert [40, 40, 41, 42] in joined("all", 0.06)
    assert [40, 40, 90, 94] in joined("printed", 0.25)
    assert joined("none", 0.25) == [[0, 5], [40, 40], [41, 42], [90, 94], [100, 100]]


def test_both_stay_within_delta() -> None:
    for merge in ("all", "printed", "paying"):
        for delta in (0.02, 0.1, 0.4):
            frame = pl.DataFrame({"age": np.arange(60), "codes": [[str(at % 7)] for at in range(60)]})
            made = anonymise_items(frame, quasi=["age"], items="codes", k=3, m=1, merge=merge, delta=delta)  # type: ignore[arg-type]
            alone = anonymise_items(frame, quasi=["age"], items="codes", k=3, m=1, merge="none")
            assert made.relational_loss <= max(delta, alone.relational_loss) + 0.02
