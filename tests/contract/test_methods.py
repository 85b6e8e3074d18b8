"""Every registered method, whoever wrote it, is held to the laws in `suite`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.contract import carry_out, check_law_1, check_law_2, check_law_4, check_round_trip, plan_of

from kohort.methods.registry import find_method, methods

ALL = sorted(methods())
TRAININGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "fraction": {"fraction": 0.5},
    "stop": {"rounds": 6, "stop": {"metric": "loss", "patience": 2, "min_delta": 0.5}},
    "keep": {"state": "keep", "fraction": 0.75, "optimizer": "adam"},
}


@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize("many", [True, False], ids=["many", "one-by-one"])
def test_law_1_what_was_carried_is_what_the_ledger_lists(method: str, many: bool, tmp_path: Path) -> None:
    ran = carry_out(plan_of(method), tmp_path / "run", many=many)
    check_law_1(ran)
    check_round_trip(ran)


@pytest.mark.parametrize("method", ALL)
def test_law_2_the_policy_wins_before_a_byte_leaves(method: str, tmp_path: Path) -> None:
    check_law_2(method, tmp_path)


@pytest.mark.parametrize("training", TRAININGS)
@pytest.mark.parametrize("method", ALL)
def test_law_4_same_seed_same_bytes_in_any_grouping(method: str, training: str, tmp_path: Path) -> None:
    check_law_4(method, tmp_path, train=TRAININGS[training])


@pytest.mark.parametrize("method", ALL)
def test_a_method_says_what_it_is(method: str) -> None:
    found = find_method(method)
    assert found.summary.endswith(".")
    assert found.tasks, "a method without tasks asks nothing of a site"
    assert found.claims(plan_of(method).config, 100), "a method without claims cannot be judged before it starts"
