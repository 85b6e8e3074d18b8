"""A table that was anonymised row by row shows finer values than it released; one made along boundaries does not."""

from __future__ import annotations

import numpy as np
import polars as pl

from kohort.anonymity.relational.anonymise import anonymise
from kohort.runs.auditing.audit import Audit
from kohort.runs.auditing.on_release import MadeRelease, audit_release


def people(rows: int, seed: int) -> pl.DataFrame:
    random = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "age": random.choice([*range(20, 30)] * 6 + [*range(30, 80)], rows),
            "ward": random.choice(["a"] * 12 + ["b"] * 3 + ["c", "d"], rows),
            "outcome": random.choice(["ill", "well"], rows),
        }
    )


def audited(rows: pl.DataFrame, control: pl.DataFrame | None, algorithm: str) -> Audit:
    made = anonymise(rows, quasi=["age", "ward"], sensitive=["outcome"], k=8, algorithm=algorithm)
    release = MadeRelease(
        table=made.frame,
        rows=rows[made.kept.tolist()].select(made.frame.columns),
        classes=made.classes,
        quasi=("age", "ward"),
        sensitive=("outcome",),
        hierarchies=made.hierarchies,
    )
    return audit_release(release, name="t", control=control)


def test_downcoding_of_a_recoding_row_by_row_tells_finer_values_than_were_released() -> None:
    found = audited(people(1_500, 1), people(1_500, 2), "lattice")
    (one,) = [one for one in found.findings if "downcoding" in one.attack]
    assert one.exposed
    assert one.by == "whoever gets the table"
    alone = audited(people(1_500, 1), None, "lattice")
    (one,) = [one for one in alone.findings if "downcoding" in one.attack]
    assert one.exposed  # how common values are may also be known of the persons themselves
    assert any("--control" in one.note for one in alone.findings)


def test_cuts_along_boundaries_leave_nothing_to_infer_and_that_is_said() -> None:
    (one,) = [one for one in audited(people(600, 1), None, "mondrian").findings if "downcoding" in one.attack]
    assert one.success is None
    assert "no class lies around a finer one" in one.note


def test_the_release_itself_is_what_is_attacked() -> None:
    rows = people(600, 3)
    raw = MadeRelease(table=rows, rows=rows, classes=np.arange(600), quasi=("age", "ward"), sensitive=("outcome",))
    found = audit_release(raw, name="t", control=people(600, 4))
    assert any("singling out" in one.attack and one.success is not None for one in found.findings)
    risk = found.to_mapping()["risk"]
    assert risk["before"] == risk["after"]
