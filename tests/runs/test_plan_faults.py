"""What the plan caused is said as such: the exit code and the key, not "repair the sites"."""

from __future__ import annotations

import pytest
from tests.conftest import small_table

from kohort.errors import ConfigError, RefusedError
from kohort.runs.config import load_plan
from kohort.runs.run import run

BASE = {
    "data": {"table": "given", "target": "outcome", "quasi": ["age"], "features": ["dose", "ward", "age"]},
    "sites": {"count": 3},
    "policy": {"min_rows": 1, "min_k": 2},
}


def test_a_k_that_no_site_can_give_is_refused_with_what_can_be_met() -> None:
    plan = load_plan(BASE | {"method": {"name": "silo", "anonymise": {"k": 1000}}})
    with pytest.raises(RefusedError, match=r"cannot be 1,000-anonymous \(k of at most \d+ can be met\)") as caught:
        run(plan, seed=1, tables={"": small_table(300)})
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("rate", [1e30, 1e308])
def test_weights_that_are_not_finite_are_a_rate_too_large(rate: float) -> None:
    train = {"lr": rate, "optimizer": "sgd", "rounds": 2}
    plan = load_plan(BASE | {"train": train, "method": {"name": "fedavg"}})
    with pytest.raises(ConfigError, match="training diverged") as caught:
        run(plan, seed=1, tables={"": small_table(300)})
    assert "train.lr" in (caught.value.hint or "")
