"""What several charges cost together: in parallel where parts share no rows, and beside what every row bears."""

from __future__ import annotations

from typing import Any

import pytest

from kohort.privacy.dp.account import Charge, Shares, SiteAccount, total_cost
from kohort.privacy.dp.accounting import epsilon_of
from kohort.privacy.dp.events import PrivateEvent


def charge(epsilon: float, part: str = "all", *, composed: float = 9.0, **more: Any) -> Charge:
    """A charge that is known to cost `epsilon`; its events by themselves would cost `composed`."""
    events = (PrivateEvent(epsilon=composed),)
    return Charge(epsilon=epsilon, delta=1e-6, events=events, part=part, **more)


def cost(*charges: Charge, **more: Any) -> tuple[float, float]:
    return total_cost(charges, "pld", **{"disjoint": True, "unit": "row", **more})


def test_charges_of_the_same_rows_add_up_and_those_of_parts_do_not() -> None:
    assert cost(charge(0.5), charge(0.25)) == pytest.approx((0.75, 2e-6))
    assert cost(charge(0.5, "low"), charge(0.25, "high")) == pytest.approx((0.5, 1e-6))
    assert cost(charge(0.5, "low"), charge(0.25, "low"), charge(0.5, "high")) == pytest.approx((0.75, 2e-6))


@pytest.mark.parametrize("more", [{"disjoint": False}, {"unit": "person"}, {"relation": "replace-one"}])
def test_parts_that_may_share_a_unit_add_up(more: dict[str, Any]) -> None:
    events = {"composed": 90.0}
    assert cost(charge(0.5, "low", **events), charge(0.25, "high", **events), **more) == pytest.approx((0.75, 2e-6))


def test_a_charge_of_all_rows_leaves_no_parts() -> None:
    assert cost(charge(0.5, "low"), charge(0.25, "high"), charge(0.125)) == pytest.approx((0.875, 3e-6))


def test_what_every_row_bears_is_added_to_each_part_unless_a_charge_covers_it() -> None:
    beside = [charge(0.25)]
    assert cost(charge(0.5, "low"), charge(0.5, "high"), beside=beside) == pytest.approx((0.75, 2e-6))
    covered = [charge(0.5, part, covers_beside=True) for part in ("low", "high")]
    assert cost(*covered, beside=beside) == pytest.approx((0.5, 2e-6))


def test_the_smaller_of_two_bounds_holds() -> None:
    small = charge(0.5, composed=0.125)
    assert cost(small, small)[0] == epsilon_of([*small.events, *small.events], 2e-6) < 0.5
    assert cost() == (0.0, 0.0)


@pytest.mark.parametrize(("sites", "quorum"), [(1, 1), (3, 3), (10, 9), (11, 10), (20, 18), (21, 19)])
def test_nine_in_ten_sites_must_answer(sites: int, quorum: int) -> None:
    assert Shares(sites=sites, colluders=2).quorum == quorum
    assert Shares(sites=sites, colluders=2).needed == quorum - 2


def test_the_first_release_pays_what_is_left_and_later_ones_nothing() -> None:
    account = SiteAccount(
        name="x", sigmas=(2.0,), judge_sigma=0.0, events=(PrivateEvent(epsilon=1.0),), epsilon=1.0, delta=1e-5,
        unit="row", relation="add-or-remove-one", scope="all rows", accountant="pld", void=False,
    )  # fmt: skip
    first, later = (account.claim(reserving=paying, simulated=True) for paying in (True, False))
    assert (first.charge, first.delta_charge, first.spent) == (1.0, None, (1.0, 1e-5))
    assert (later.charge, later.delta_charge, later.spent) == (0.0, None, (0.0, 0.0))
    assert (first.overlap, first.void, first.account) == (1, False, "x")
    begun = SiteAccount(**{**vars(account), "before": (0.25, 4e-6)})
    assert begun.claim(reserving=True, simulated=False).spent == pytest.approx((0.75, 6e-6))
    assert begun.claim(reserving=False, simulated=False).spent == (0.0, 0.0)
