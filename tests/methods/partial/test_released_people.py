"""What partially-federated learning releases holds for persons, for every sensitive column, and together with what was
released before. Each test is a failure that was once measured."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.anonymity.checker.joint_release import joint_release
from kohort.anonymity.checker.measures import measure
from kohort.anonymity.gate.keys import group_rows
from kohort.anonymity.relational.rule import SensitiveColumns
from kohort.errors import IntegrityError, RefusedError
from kohort.methods.partial import release
from kohort.methods.partial.release import GRID, generalise_batch
from kohort.privacy.releases import ReleaseAccount, units_of
from kohort.runs.config import load_plan
from kohort.runs.run import Outcome, run
from kohort.tables.datasets.catalogue import load_dataset
from kohort.tables.domain import learn_domain
from kohort.tables.schema import Schema


def released(frame: pl.DataFrame, *, gate: dict[str, Any] | None = None, **parts: Any) -> Outcome:
    plan = load_plan(
        {
            "data": {"table": "memory", "target": "y", "features": "rest", **parts.pop("data", {})},
            "sites": parts.pop("sites", {"count": 3, "split": "iid"}),
            "train": {"rounds": 2, "optimizer": "sgd", "lr": 0.1, "batch": 32},
            "policy": {"min_rows": 1, "min_k": 2, "min_cell": 3},
            "method": {"name": "partial", "gate": {"k": 5, "release_k": 5, **(gate or {})}},
        }
    )
    return run(plan, seed=3, tables={"": frame})


def visits(patients: int = 60, each: int = 12) -> pl.DataFrame:
    random = np.random.default_rng(1)
    patient = np.repeat(np.arange(patients), each)
    age = 30 + 10 * (patient % 4)
    dose = random.integers(0, 50, len(patient)) + patient % 7
    y = np.where(random.random(len(patient)) < 0.5, "ill", "well")
    return pl.DataFrame({"patient": patient + 1000, "age": age, "dose": dose, "y": y})


def test_classes_of_visits_hold_k_patients() -> None:
    """300 classes, 297 of them of one patient, were once released as 10-anonymous."""
    frame = visits()
    schema = Schema.of(target="y", quasi=["age"], features=["dose"], identifiers=["patient"], sensitive=["y"])
    schema = schema.resolve(frame.columns)
    domain = learn_domain(frame, schema, missing="drop")
    who = frame["patient"].rank("dense").to_numpy().astype(np.int64) - 1
    made = generalise_batch(frame, schema=schema, domain=domain, k=10, l=2, persons=who)
    judged = made.with_columns(frame["patient"])
    assert measure(judged, quasi=["age", "dose"], sensitive=["y"], persons="patient").k >= 10
    by_rows = generalise_batch(frame, schema=schema, domain=domain, k=10, l=2).with_columns(frame["patient"])
    assert measure(by_rows, quasi=["age", "dose"], persons="patient").k < 10


def test_the_claim_of_a_run_names_persons_and_columns() -> None:
    found = released(visits(), data={"quasi": ["age"], "identifiers": ["patient"]}, sites={"split": "column:age"})
    assert found.received is not None
    (line,) = [item.guarantee for item in found.disclosed if item.kind == "k-anonymous"]
    assert "unit=person" in str(line)
    assert "sensitive=('y',)" in str(line)


def test_the_order_of_what_the_hub_receives_tells_nothing() -> None:
    """Rows once came in the order of the site's table, in which visits of one patient stand together."""
    found = released(visits(), data={"quasi": ["age"], "identifiers": ["patient"]}, sites={"split": "column:age"})
    assert found.received is not None
    for part in found.received.partition_by("sender", "batch"):
        rows = part.drop("sender", "batch")
        assert rows.height > 0
        assert rows.equals(rows.sort(rows.columns))


def test_a_sensitive_input_is_as_diverse_as_the_target() -> None:
    """808 women were once released with one diagnosis under l = 2."""
    random = np.random.default_rng(2)
    sex = np.repeat(["f", "m"], 300)
    diagnosis = np.where(sex == "f", np.where(random.random(600) < 0.06, "flu", "hiv"), "flu")
    frame = pl.DataFrame({"sex": sex, "age": random.choice([30, 40], 600), "diagnosis": diagnosis,
                          "y": random.choice(["a", "b"], 600)})  # fmt: skip
    found = released(frame, data={"quasi": ["sex", "age"], "sensitive": ["diagnosis"]})
    assert found.received is not None
    judged = measure(found.received, quasi=["sex", "age", "sender", "batch"], sensitive=["diagnosis", "y"])
    assert judged.k >= 5
    assert judged.l_distinct is not None
    assert judged.l_distinct >= 2


def test_missing_numbers_are_released_as_missing() -> None:
    frame = (
        visits(40, 3)
        .drop("patient")
        .with_columns(pl.when(pl.int_range(pl.len()) % 3 == 0).then(None).otherwise(pl.col("dose")).alias("dose"))
    )
    schema = Schema.of(target="y", quasi=["age"], features=["dose"]).resolve(frame.columns)
    domain = learn_domain(frame, schema, missing="category")
    made = generalise_batch(frame, schema=schema, domain=domain, k=5, l=2)
    assert measure(made, quasi=["age", "dose"], sensitive=["y"]).k >= 5
    assert 0 < made["dose"].null_count() < made.height
    whole = released(frame, data={"quasi": ["age"], "missing": "category"})
    assert whole.received is not None


def test_numbers_to_predict_go_out_on_a_public_grid_and_are_never_rare() -> None:
    """365 exact values that were unique in the whole table were once released as targets."""
    random = np.random.default_rng(5)
    age = random.integers(20, 80, 400)
    frame = pl.DataFrame({"age": age, "y": random.normal(50, 12, 400).round(4)})
    schema = Schema.of(target="y", quasi=["age"], bounds={"y": [0, 100], "age": [20, 80]}).resolve(frame.columns)
    domain = learn_domain(frame, schema, missing="drop")
    made = generalise_batch(frame, schema=schema, domain=domain, k=8, l=2)
    assert made["y"].value_counts()["count"].min() >= 8
    assert made["y"].n_unique() > 5
    steps = made["y"].to_numpy() / 100 * GRID * 2
    assert np.allclose(steps, np.rint(steps))
    assert not set(made["y"].to_list()) & set(frame["y"].to_list())


def test_a_batch_with_a_rare_number_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = visits(40, 3).drop("patient").with_columns(pl.Series("y", np.random.default_rng(1).normal(50, 9, 120)))
    schema = Schema.of(target="y", quasi=["age"], features=["dose"], bounds={"y": [0, 100]}).resolve(frame.columns)
    domain = learn_domain(frame, schema, missing="drop")
    monkeypatch.setattr(release, "_wide_enough", lambda *_: (np.arange(GRID), np.arange(GRID)))
    with pytest.raises(IntegrityError, match="is rarer"):
        generalise_batch(frame, schema=schema, domain=domain, k=5, l=1)


def test_more_values_than_the_target_has_are_refused_and_do_not_become_averaging() -> None:
    with pytest.raises(RefusedError, match="has 2 values, so no batch can have release_l = 3"):
        released(visits().drop("patient"), data={"quasi": ["age"]}, gate={"release_l": 3})
    uniform = (
        visits()
        .drop("patient")
        .with_columns(pl.when(pl.col("age") == 30).then(pl.lit("ill")).otherwise(pl.lit("well")).alias("y"))
    )
    with pytest.raises(RefusedError, match="no site released a row with k = 5 and l = 2"):
        released(uniform, data={"quasi": ["age"]}, sites={"split": "column:age"})


def classes_of(frame: pl.DataFrame, width: int) -> np.ndarray:
    return group_rows(frame.select(pl.col("age") // width)).codes


def test_a_second_release_in_crossing_classes_is_refused(tmp_path: Path) -> None:
    """The same rows at k = 10 and then 12 once isolated 2,152 of 16,222."""
    frame = pl.DataFrame({"age": np.random.default_rng(8).integers(0, 60, 500), "id": np.arange(500)})
    units = units_of(frame, None)
    book = ReleaseAccount(tmp_path / "releases.jsonl")
    book.admit("one", units, classes_of(frame, 4), meets=lambda rows: True)
    book.admit("one", units, classes_of(frame, 4), meets=lambda rows: True)  # the same release again
    again = ReleaseAccount(tmp_path / "releases.jsonl")
    with pytest.raises(RefusedError, match="isolates persons"):
        again.admit("two", units, classes_of(frame, 6), meets=lambda rows: True)
    with pytest.raises(RefusedError, match="isolates persons"):  # part of a class, the rest left out
        again.admit("part", units[:40], classes_of(frame, 4)[:40], meets=lambda rows: True)
    again.admit("coarser", units, classes_of(frame, 8), meets=lambda rows: True)
    again.admit("allowed", units, classes_of(frame, 6), overlap=True, meets=lambda rows: True)
    shown = [pl.DataFrame({"age": classes_of(frame, width)}) for width in (4, 6, 8)]
    assert joint_release(shown[0], shown[1], quasi=["age"]).isolated > 0
    assert joint_release(shown[0], shown[2], quasi=["age"]).isolated == 0
    assert (tmp_path / "releases.jsonl").stat().st_mode & 0o077 == 0


def test_a_person_is_not_shown_again_in_a_changed_row() -> None:
    frame = pl.DataFrame({"who": [1, 2, 3, 4], "age": [30, 30, 31, 31]})
    book = ReleaseAccount()
    book.admit("one", units_of(frame, "who"), np.array([0, 0, 1, 1]), meets=lambda rows: True)
    corrected = frame.with_columns(pl.Series("age", [30, 30, 31, 35]))
    with pytest.raises(RefusedError, match="isolates persons"):
        book.admit("two", units_of(corrected, "who"), np.array([0, 0, 0, 0]), meets=lambda rows: True)
    others = pl.DataFrame({"who": [7, 8], "age": [30, 31]})
    book.admit("three", units_of(others, "who"), np.array([0, 0]), meets=lambda rows: True)


def recorded_batches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str, list[str], np.ndarray]]:
    """What every site notes in its account: account, name, person of each released row, class of each row."""
    seen: list[tuple[int, str, list[str], np.ndarray]] = []
    admit = ReleaseAccount.admit

    def record(self: ReleaseAccount, name: str, units: Any, classes: np.ndarray, **options: Any) -> None:
        admit(self, name, units, classes, **options)
        seen.append((id(self), name, [unit.person for unit in units], classes))

    monkeypatch.setattr(ReleaseAccount, "admit", record)
    return seen


def assert_batches_hold(seen: list[tuple[int, str, list[str], np.ndarray]], k: int) -> None:
    sent: dict[int, set[str]] = {}
    for account, _, people, classes in seen:
        counted = pl.DataFrame({"class": classes, "who": people}).group_by("class").agg(pl.col("who").n_unique())
        assert counted["who"].min() >= k
        assert not sent.setdefault(account, set()) & {*people}, "somebody was sent in two batches"
        sent[account] |= {*people}


def test_nobody_is_sent_in_two_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = recorded_batches(monkeypatch)
    # Patients have rows at several sites, so that some of a site's patients have none in the first half of the rows.
    layout = {"count": 3, "split": "interval:dose", "arrive": "50%/1 rounds"}
    gate = {"count": "local", "k": 5}
    released(visits(200, 4), data={"quasi": ["age"], "identifiers": ["patient"]}, sites=layout, gate=gate)
    assert len({name for _, name, _, _ in seen}) == 2
    assert_batches_hold(seen, 5)


@pytest.mark.skipif("KOHORT_DATA" not in os.environ, reason="needs the table of diabetes_130us")
def test_encounters_of_real_patients(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = ["patient_nbr", "race", "gender", "age", "diag_1", "time_in_hospital", "num_medications", "insulin"]
    frame = load_dataset("diabetes_130us:raw").frame.select(*columns, "readmitted").head(20_000)
    seen = recorded_batches(monkeypatch)
    data = {
        "target": "readmitted", "quasi": ["race", "gender", "age"], "identifiers": ["patient_nbr"],
        "sensitive": ["diag_1"], "features": ["time_in_hospital", "num_medications", "insulin", "diag_1"],
        "missing": "category",
    }  # fmt: skip
    released(frame, data=data, gate={"k": 50, "release_k": 10})
    assert len(seen) == 3
    assert_batches_hold(seen, 10)


def test_classes_that_count_rows_are_caught_by_the_checker(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = visits()
    schema = Schema.of(target="y", quasi=["age"], features=["dose"], identifiers=["patient"]).resolve(frame.columns)
    domain = learn_domain(frame, schema, missing="drop")
    who = frame["patient"].rank("dense").to_numpy().astype(np.int64) - 1
    coded = SensitiveColumns.of
    monkeypatch.setattr(SensitiveColumns, "of", lambda table, names, persons: coded(table, names))
    with pytest.raises(IntegrityError, match="k is"):
        generalise_batch(frame, schema=schema, domain=domain, k=10, l=2, persons=who)


CELLS = {"band": ["20s", "30s"], "ward": ["n", "s"], "ill": ["cold", "flu", "hiv"]}


def twice(
    monkeypatch: pytest.MonkeyPatch, first: pl.DataFrame, second: pl.DataFrame, **data: Any
) -> list[pl.DataFrame]:
    """What the hub receives of two runs at one site, which keeps its release account."""
    account = ReleaseAccount()
    monkeypatch.setattr("kohort.protocol.site.ReleaseAccount", lambda: account)
    found = []
    for frame, rate in ((first, 0.1), (second, 0.2)):
        plan = load_plan(
            {
                "data": {"table": "memory", "target": "ill", "quasi": ["band", "ward"], "features": ["band", "ward"],
                         "categories": CELLS, "test": 0, **data},
                "sites": {"count": 1, "split": "iid"},
                "train": {"rounds": 1, "optimizer": "sgd", "lr": rate},
                "policy": {"min_rows": 1, "min_k": 2, "min_cell": 3},
                "method": {"name": "partial", "gate": {"k": 5, "count": "local", "release_k": 5}},
            }
        )  # fmt: skip
        received = run(plan, seed=3, tables={"": frame}).received
        assert received is not None
        found.append(received.select("band", "ward", "ill"))
    return found


def people(count: int, seed: int, ill: tuple[str, ...] = ("cold", "flu")) -> pl.DataFrame:
    random = np.random.default_rng(seed)
    columns = {"band": CELLS["band"], "ward": CELLS["ward"], "ill": list(ill)}
    who = {"who": [f"{seed}-{number}" for number in range(count)]}
    return pl.DataFrame({**who, **{name: random.choice(values, count) for name, values in columns.items()}})


@pytest.mark.parametrize("persons", [False, True])
def test_a_row_that_was_added_between_two_runs_waits_until_others_join_it(
    monkeypatch: pytest.MonkeyPatch, persons: bool
) -> None:
    """The difference of two releases was once the added row, with its diagnosis."""
    identifiers = {"identifiers": ["who"]} if persons else {"drop": ["who"]}
    table = people(300, 1)
    joined = pl.DataFrame({"who": ["late"], "band": ["30s"], "ward": ["s"], "ill": ["hiv"]})
    before, after = twice(monkeypatch, table, pl.concat([table, joined]), **identifiers)
    assert before.height == 300
    assert after.sort(after.columns).equals(before.sort(before.columns))
    many = pl.concat([table, joined, people(60, 2)])
    before, after = twice(monkeypatch, table, many, **identifiers)
    assert after.height > before.height
    columns = ["band", "ward"]
    more = after.group_by(*columns, "ill").len().join(
        before.group_by(*columns, "ill").len(), on=[*columns, "ill"], how="left", suffix="_before"
    ).with_columns(added=pl.col("len") - pl.col("len_before").fill_null(0)).filter(pl.col("added") > 0)  # fmt: skip
    shown = more.group_by(columns).agg(pl.col("added").sum(), pl.len())
    assert (shown["added"].min(), shown["len"].min()) >= (5, 2)  # what the difference shows is a class of its own


def test_new_rows_of_persons_who_were_released_before_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    table = people(300, 1)
    visits_since = people(60, 2).with_columns(who=table["who"].head(60))
    before, after = twice(monkeypatch, table, pl.concat([table, visits_since]), identifiers=["who"])
    assert after.sort(after.columns).equals(before.sort(before.columns))
