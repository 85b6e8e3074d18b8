"""Two releases of the same persons show no more together than each by itself."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from kohort.errors import IntegrityError, RefusedError
from kohort.privacy.releases import ReleaseAccount, Unit, units_of

ROWS = [Unit(f"row {number}", f"person {number}") for number in range(6)]


def alone(rows: np.ndarray) -> bool:
    """A rule of two rows per class."""
    return len(rows) >= 2


def classes(*labels: int) -> np.ndarray:
    return np.array(labels, dtype=np.int64)


@pytest.fixture
def account(tmp_path: Path) -> ReleaseAccount:
    """After one release, of two classes with three rows each."""
    made = ReleaseAccount(tmp_path / "releases.jsonl")
    made.admit("first", ROWS, classes(0, 0, 0, 1, 1, 1), meets=alone)
    return made


def test_the_same_release_may_come_again_and_another_of_its_name_may_not(account: ReleaseAccount) -> None:
    account.admit("first", ROWS, classes(7, 7, 7, 3, 3, 3), meets=alone)  # the same classes under other numbers
    for labels, units in ((classes(0, 0, 1, 1, 1, 1), ROWS), (classes(0, 0, 0, 1, 1), ROWS[:5])):
        with pytest.raises(RefusedError, match="under the same name"):
            account.admit("first", units, labels, overlap=True, meets=alone)
    assert account.with_person("person 5") == ("first",)


@pytest.mark.parametrize("labels", [classes(0, 0, 0, 0, 0, 0), classes(1, 1, 1, 0, 0, 0)])
def test_unions_of_earlier_classes_are_admitted(account: ReleaseAccount, labels: np.ndarray) -> None:
    account.admit("second", ROWS, labels, meets=alone)
    assert account.with_person("person 0") == ("first", "second")


@pytest.mark.parametrize(
    ("labels", "kept", "crossed"),
    [(classes(0, 0, 1, 1, 1, 1), 6, 1), (classes(0, 0, 1, 1, 2, 2), 6, 2), (classes(0, 0, 0, 1, 1), 5, 1)],
)
def test_classes_that_cross_earlier_ones_are_refused(
    account: ReleaseAccount, labels: np.ndarray, kept: int, crossed: int
) -> None:
    with pytest.raises(RefusedError, match=f"{crossed} of its classes would be split"):
        account.admit("second", ROWS[:kept], labels, meets=alone)
    assert account.with_person("person 0") == ("first",)
    account.admit("second", ROWS[:kept], labels, overlap=True, meets=alone)
    assert account.with_person("person 0") == ("first", "second")


def test_a_person_is_not_shown_again_in_another_row(account: ReleaseAccount) -> None:
    again = [Unit("a later row", "person 0"), Unit("a stranger's", "person 9")]
    with pytest.raises(RefusedError, match="1 of its classes"):
        account.admit("second", again, classes(0, 0), meets=alone)
    account.admit("second", again[1:], classes(0), meets=alone)
    assert account.with_person("person 9") == ("second",)
    assert account.with_person("nobody") == ()


def test_all_earlier_releases_count_and_not_the_last_alone(account: ReleaseAccount) -> None:
    strangers = [Unit(f"row {number}", f"person {number}") for number in range(10, 14)]
    account.admit("second", strangers, classes(0, 0, 1, 1), meets=alone)
    with pytest.raises(RefusedError, match="1 of its classes"):
        account.admit("third", ROWS, classes(0, 0, 1, 2, 2, 2), meets=alone)
    with pytest.raises(RefusedError, match="2 of its classes"):
        account.admit("third", [*ROWS, *strangers], classes(0, 0, 1, 2, 2, 2, 3, 4, 5, 5), meets=alone)


def test_an_account_outlives_its_process_and_tells_nobody_who_is_in_it(account: ReleaseAccount, tmp_path: Path) -> None:
    read = ReleaseAccount(tmp_path / "releases.jsonl")
    read.admit("first", ROWS, classes(0, 0, 0, 1, 1, 1), meets=alone)
    with pytest.raises(RefusedError, match="would be split"):
        read.admit("second", ROWS, classes(0, 1, 1, 1, 1, 1), meets=alone)
    lines = (tmp_path / "releases.jsonl").read_text().splitlines()
    assert (len(lines), (tmp_path / "releases.jsonl").stat().st_mode & 0o777) == (2, 0o600)
    assert "person 0" not in lines[1]
    assert "row 0" not in lines[1]
    digests = [part for group in json.loads(lines[1])["classes"] for one in group for part in one]
    assert {len(bytes.fromhex(digest)) for digest in digests} == {12}
    assert len(set(digests)) == 12  # six rows and six persons: a row's digest is never a person's
    other = ReleaseAccount(tmp_path / "other.jsonl")
    other.admit("first", ROWS, classes(0, 0, 0, 1, 1, 1), meets=alone)
    assert digests[0] not in (tmp_path / "other.jsonl").read_text()  # each account has a key of its own
    assert len(bytes.fromhex(json.loads(lines[0])["key"])) == 32


@pytest.mark.parametrize(
    "damage", ["", "{}\n", "[]\n", '{"key": "no hex"}\n', '{"key": "00"}\n{"name": "first"}\n', "{"]
)
def test_a_damaged_account_is_refused(tmp_path: Path, damage: str) -> None:
    (tmp_path / "releases.jsonl").write_text(damage)
    with pytest.raises(IntegrityError, match="account of releases was damaged"):
        ReleaseAccount(tmp_path / "releases.jsonl")


def test_an_account_without_a_file_remembers_too() -> None:
    account = ReleaseAccount()
    account.admit("first", ROWS, classes(0, 0, 0, 1, 1, 1), meets=alone)
    with pytest.raises(RefusedError, match="would be split"):
        account.admit("second", ROWS, classes(0, 1, 1, 1, 1, 1), meets=alone)


def test_equal_rows_are_told_apart_and_rows_of_one_person_are_not_two_persons() -> None:
    frame = pl.DataFrame({"who": ["a", "a", "b"], "age": [1, 1, 2]})
    units = units_of(frame, "who")
    assert [unit.person for unit in units] == ["a", "a", "b"]
    assert [unit.row.partition(":")[0] for unit in units] == ["1", "2", "1"]
    assert len({unit.row for unit in units}) == 3
    assert [unit.person for unit in units_of(frame, None)] == [unit.row for unit in units]


def test_rows_that_join_an_earlier_class_must_meet_the_rule_by_themselves(account: ReleaseAccount) -> None:
    added = [Unit(f"row {number}", f"person {number}") for number in range(6, 10)]
    with pytest.raises(RefusedError, match="added since an earlier release to 1 of its classes"):
        account.admit("one", [*ROWS, *added[:1]], classes(0, 0, 0, 1, 1, 1, 1), meets=alone)
    with pytest.raises(RefusedError, match="added since an earlier release to 2 of its classes"):
        account.admit("two", [*ROWS, *added[:2]], classes(0, 0, 0, 1, 1, 1, 0, 1), meets=alone)
    assert account.with_person("person 6") == ()
    judged = []
    account.admit(
        "three",
        [*added[:2], *ROWS, *added[2:]],
        classes(1, 1, 0, 0, 0, 1, 1, 1, 2, 2),
        meets=lambda rows: judged.append(rows.tolist()) is None,
    )
    assert judged == [[0, 1]]  # a class without an earlier row is judged by the checker as it is
    larger = [*added, *ROWS[3:], Unit("late", "late")]
    labels = classes(1, 1, 2, 2, 1, 1, 1, 2)
    with pytest.raises(RefusedError, match="to 1 of its classes"):  # those that joined are earlier rows now
        account.admit("four", larger, labels, meets=alone)
    account.admit("four", larger, labels, meets=alone, overlap=True)
    before, known = account.released([*added[:1], Unit("new", "person 0"), Unit("new", "new")], apart_from="")
    assert (before.tolist(), known.tolist()) == ([True, False, False], [True, True, False])
    before, known = account.released([Unit("late", "late")], apart_from="four")
    assert (before.tolist(), known.tolist()) == ([False], [False])
