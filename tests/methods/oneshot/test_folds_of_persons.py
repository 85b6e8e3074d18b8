"""Folds that choose lambda hold whole persons: a fold is judged by persons whom the others do not know."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.methods.oneshot import sums
from kohort.runs.config import load_plan
from kohort.runs.run import Outcome, run

FOLDS = 4


def visits(persons: int = 150, each: int = 8) -> pl.DataFrame:
    """Rows of a person are alike, and the answer is the person's own coin: nothing can be learned of others."""
    draw = np.random.default_rng(3)
    of_row = np.repeat(np.arange(persons), each)
    noise = draw.normal(0, 1, (persons, 18))[of_row]
    answers = draw.integers(0, 2, persons)[of_row]
    columns = {f"x{place:02}": noise[:, place] for place in range(18)}
    return pl.DataFrame({"patient": of_row, "age": draw.uniform(20, 90, len(of_row)), **columns, "ill": answers})


def fitted(split: str, *, person: bool = True) -> Outcome:
    data: dict[str, Any] = {"table": "given", "target": "ill", "features": "rest", "test": 0, "encoding": "onehot"}
    data |= {"person": "patient"} if person else {"drop": ["patient"]}
    method = {"name": "oneshot", "oneshot": {"lambda": "folds", "folds": FOLDS, "min_cell": 5}}
    sites = {"count": 3, "split": split}
    plan = load_plan(
        {"data": data, "sites": sites, "method": {**method, "secure": {"sum": "none"}}, "policy": {"pairs": "open"}}
    )
    return run(plan, seed=2, tables={"given": visits()})


@pytest.mark.parametrize("split", ["iid", "interval:age"])
def test_nobody_is_in_two_folds_at_whichever_site(split: str, monkeypatch: pytest.MonkeyPatch) -> None:
    honest, seen = sums._parts_of_rows, []

    def watched(site: Any) -> Any:
        parts = honest(site)
        seen.append([set(part.person) for part in parts])
        return parts

    monkeypatch.setattr(sums, "_parts_of_rows", watched)
    fitted(split)
    assert len(seen) >= 3
    folds = [set().union(*(parts[fold] for parts in seen)) for fold in range(FOLDS)]
    assert min(map(len, folds)) > 20
    assert sum(map(len, folds)) == len(set().union(*folds)) == 150


def test_what_only_a_persons_other_rows_tell_is_not_chosen() -> None:
    def penalty(outcome: Outcome) -> str:
        return next(note for note in outcome.notes if note.startswith("the folds chose"))

    assert penalty(fitted("iid")) != penalty(fitted("iid", person=False))
