"""Plans that are made in Python and by the demo sum updates securely, unless somebody asked for something else."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from kohort import Federation
from kohort.errors import ConfigError
from kohort.methods.registry import find_method, methods
from kohort.runs.demo import demo_plan
from kohort.runs.secure_default import with_secure_sum


def rows() -> pl.DataFrame:
    return pl.DataFrame({"x": range(30), "ward": ["a", "b", "c"] * 10, "y": ["ill", "well"] * 15})


def secure_of(federation: Federation, method: str = "fedavg", **options: Any) -> str | None:
    secure = federation.plan(method, **options).config.secure
    return None if secure is None else str(secure.sum)


@pytest.mark.parametrize(("sites", "scheme"), [(1, None), (2, None), (3, "masks"), (500, "masks"), (501, "bfv")])
def test_three_sites_and_more_sum_their_updates(sites: int, scheme: str | None) -> None:
    assert secure_of(Federation(rows(), target="y", sites=sites)) == scheme


def test_the_number_of_sites_is_that_of_the_tables_and_unknown_for_a_column() -> None:
    three = {name: rows() for name in "abc"}
    assert secure_of(Federation(three, target="y")) == "masks"
    assert secure_of(Federation({"a": rows(), "b": rows()}, target="y")) is None
    assert secure_of(Federation(rows(), target="y", split="column:ward")) == "masks"
    assert secure_of(Federation("table.csv", target="y")) == "masks"  # ten sites


def test_what_is_asked_for_wins() -> None:
    federation = Federation(rows(), target="y", sites=5)
    assert secure_of(federation, secure=None) is None
    assert secure_of(federation, secure={"sum": "bfv"}) == "bfv"
    assert secure_of(federation, dp={"epsilon": 1.0, "delta": 1e-5}) == "masks"  # noise in shares inside the sum
    assert secure_of(federation, dp={"epsilon": 1.0, "delta": 1e-5}, lr=0.1) is None  # noise at every site
    assert secure_of(federation, "oneshot") == "bfv"  # a method with a sum of its own keeps it
    assert federation.plan("central").method == "central"


@pytest.mark.parametrize(("sites", "asked", "said"), [(2, {}, "three sites"), (3, {"secure": "none"}, "masks")])
def test_averaging_in_clear_is_said_aloud(sites: int, asked: dict[str, Any], said: str) -> None:
    tables = {f"site-{number}": rows() for number in range(sites)}
    found = Federation(tables, target="y", policy={"min_rows": 1}).run("fedavg", rounds=1, **asked)
    [warning] = [text for text in found.warnings if "averaged in clear" in text]
    assert said in warning


def test_what_needs_each_sites_update_names_both_keys_and_the_way_out() -> None:
    federation = Federation(rows(), target="y", sites=5)
    with pytest.raises(ConfigError) as caught:
        federation.plan("fedavg", aggregate="krum")
    assert "train.aggregate" in caught.value.message
    assert "method.secure" in caught.value.message
    assert "secure=None" in caught.value.hint
    assert federation.plan("fedavg", aggregate="krum", secure=None).train.aggregate == "krum"
    with pytest.raises(ConfigError) as caught:
        federation.plan("fedavg", aggregate="krum", secure={"sum": "masks"})
    assert "secure=None" not in caught.value.hint


def test_the_sections_given_stay_as_they_are() -> None:
    raw = {"method": {"name": "fedavg", "secure": None}}
    assert with_secure_sum(raw, sites=5) == {"method": {"name": "fedavg"}}
    assert raw == {"method": {"name": "fedavg", "secure": None}}


def test_the_demo_averages_no_update_in_clear_where_the_method_can_sum() -> None:
    assert demo_plan(find_method("fedavg")).config.secure.sum == "masks"
    assert all(demo_plan(method).method == name for name, method in methods().items())
