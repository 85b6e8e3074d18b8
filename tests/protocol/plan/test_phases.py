"""What a plan says of phases is judged before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from kohort.crypto.sums.scheme import find_scheme
from kohort.errors import ConfigError
from kohort.protocol.plan.phases import SecureSumSection
from kohort.runs.config import load_plan

SUMS = ("masks", "bfv", "ckks", "none")


@pytest.mark.parametrize("method", ["additive", "fedavg", "trees", "oneshot"])
@pytest.mark.parametrize("secure", ["age", {"sum": "maskz"}])
def test_an_unknown_secure_sum_is_refused_with_the_plan(method: str, secure: object) -> None:
    plan = {"data": {"table": "t.csv", "target": "y"}, "method": {"name": method, "secure": secure}}
    with pytest.raises(ConfigError, match="unknown secure sum"):
        load_plan(plan)


def test_a_run_with_an_unknown_secure_sum_writes_nothing(plan_file: Path, tmp_path: Path, kohort_here) -> None:
    out = tmp_path / "out"
    code, _, said = kohort_here("run", plan_file, "--set", 'method.secure="age"', "--out", out)
    assert (code, said.count("\n")) == (2, 1)
    assert "unknown secure sum 'age'" in said
    assert not out.exists()


@pytest.mark.parametrize("name", SUMS)
def test_every_sum_that_a_plan_may_name_is_there(name: str) -> None:
    assert SecureSumSection(sum=name).sum == name
    if name not in ("bfv", "ckks"):
        find_scheme(name)


def test_no_other_sum_is_there() -> None:
    with pytest.raises(ConfigError) as caught:
        find_scheme("unheard-of")
    assert sorted(caught.value.hint.removeprefix("Valid: ").split(", ")) == sorted(SUMS)
