"""What a gate would do: shares are those of the run, no test row is measured on, and the advice follows figures."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.errors import ConfigError, RefusedError
from kohort.rng import Streams
from kohort.runs import forecast as made
from kohort.runs.config import Plan, load_plan
from kohort.runs.forecast import GroupForecast, forecast
from kohort.runs.run import run
from kohort.runs.simulation import populate

ROWS = 1200


def table() -> dict[str, pl.DataFrame]:
    generator = np.random.default_rng(3)
    age, sex = generator.integers(20, 40, ROWS), generator.choice(["f", "m"], ROWS)
    rare = generator.random(ROWS) < 0.1
    hours = generator.integers(0, 50, ROWS)
    says = np.where((hours > 25) ^ rare, "high", "low")
    return {
        "memory": pl.DataFrame(
            {"age": np.where(rare, age + 40, age), "sex": sex, "hours": hours.astype(np.float64), "y": says}
        )
    }


def plan(**gate: Any) -> Plan:
    own = {"k": 15, "release_k": 5, "released": "generalised", "count": "secure", **gate}
    return load_plan(
        {
            "data": {"table": "memory", "target": "y", "quasi": ["age", "sex"], "features": ["hours"], "test": 0.3},
            "sites": {"count": 3, "split": "interval:age"},
            "model": {"kind": "logistic"},
            "train": {"rounds": 4, "optimizer": "sgd", "lr": 0.3, "batch": 32},
            "policy": {"min_rows": 10, "min_k": 5},
            "method": {"name": "partial", "gate": own},
        }
    )


@pytest.fixture(scope="module")
def found() -> made.Forecast:
    return forecast(plan(), seed=4, tables=table())


def test_the_rows_shared_are_those_of_the_run(found: made.Forecast) -> None:
    outcome = run(plan(), seed=4, tables=table())
    assert outcome.received is not None
    assert 0 < found.shared < found.rows
    assert (found.shared, found.rows) == (outcome.received.height, sum(outcome.site_rows.values()))
    assert found.share == found.shared / found.rows


@pytest.mark.parametrize(
    ("gate", "batches"),
    [
        ({"release_k": 200}, 2),  # the rows that pass at one site are too few for a class
        ({"count": "local", "k": 18}, 3),
        ({"rule": "l-diversity", "l": 2, "k": 15}, 3),
        ({"released": "raw", "count": "local"}, 3),
    ],
)
def test_a_count_without_generalising_is_that_of_the_run(
    gate: dict[str, Any], batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = plan(**gate).to_mapping()
    asked = load_plan({**raw, "policy": {**raw["policy"], "raw": True}}, complete=True)
    outcome = run(asked, seed=4, tables=table())
    assert outcome.received is not None
    sent = dict(outcome.received.group_by("sender").len().iter_rows())
    assert len(sent) == batches

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("a count needs no batch")

    monkeypatch.setattr("kohort.methods.partial.tasks.generalise_batch", never)
    whole = made._without_test(populate(asked, Streams.seeded(4), tables=table()))
    assert {site: rows for site, rows in made._count(asked, whole, 4).items() if rows} == sent


def test_sites_that_are_absent_are_not_counted() -> None:
    raw = plan().to_mapping()
    sites = {**raw["sites"], "faults": {"drop": 0.5}, "quorum": 0.1}
    asked = load_plan({**raw, "sites": sites}, complete=True)
    whole = made._without_test(populate(asked, Streams.seeded(8), tables=table()))
    counted = made._count(asked, whole, 8)
    assert 0 < len(counted) < len(whole.names)


def test_a_gate_that_releases_no_batch_is_refused_as_in_the_run() -> None:
    asked = plan(release_k=900)
    for refused in (run, forecast):
        with pytest.raises(RefusedError, match="no site released a row with k = 900"):
            refused(asked, seed=4, tables=table())


def test_no_test_row_reaches_a_run_or_a_score(monkeypatch: pytest.MonkeyPatch) -> None:
    test = populate(plan(), Streams.seeded(4), tables=table()).test
    training = populate(plan(), Streams.seeded(4), tables=table()).frame
    scored, plain_run, plain_scores = [], made.run, made._scores

    def watched(asked: Plan, **options: Any) -> Any:
        assert options["backend"].population.test.height == 0
        return plain_run(asked, **options)

    def scoring(model: Any, frame: pl.DataFrame) -> Any:
        scored.append(frame)
        return plain_scores(model, frame)

    monkeypatch.setattr(made, "run", watched)
    monkeypatch.setattr(made, "_scores", scoring)
    forecast(plan(), seed=4, tables=table())
    columns = ["age", "sex", "hours", "y"]
    known = Counter(training.select(columns).iter_rows())
    assert test.height
    assert len(scored) == 2 * made.REPEATS
    for frame in scored:
        assert not Counter(frame.select(columns).iter_rows()) - known


def test_rows_to_measure_on_are_not_trained_on() -> None:
    whole = populate(plan(), Streams.seeded(4), tables=table())
    part, aside, places = made._held_out(whole, 7)
    assert part.frame.height + aside.height == whole.frame.height
    assert aside.equals(whole.frame[places])
    assert part.starts[-1] == part.frame.height
    for site in range(3):
        size = int(whole.starts[site + 1] - whole.starts[site])
        inside = ((places >= whole.starts[site]) & (places < whole.starts[site + 1])).sum()
        assert inside == round(made.HELD_OUT * size)
        assert part.starts[site + 1] - part.starts[site] == size - inside


def test_a_person_is_never_on_both_sides() -> None:
    people = {"memory": table()["memory"].with_columns(pl.Series("id", np.arange(ROWS) // 3).cast(pl.String))}
    raw = plan().to_mapping()
    named = load_plan({**raw, "data": {**raw["data"], "identifiers": ["id"]}}, complete=True)
    whole = populate(named, Streams.seeded(4), tables=people)
    _, aside, places = made._held_out(whole, 7)
    assert aside.height
    left_out = np.isin(np.arange(whole.frame.height), places)
    who = whole.frame["id"].to_numpy()
    for low, high in zip(whole.starts[:-1], whole.starts[1:], strict=True):
        here, gone = who[low:high], left_out[low:high]
        assert not set(here[gone]) & set(here[~gone])


def test_a_person_at_several_sites_is_held_out_at_all_of_them() -> None:
    people = {"memory": table()["memory"].with_columns(pl.Series("id", np.arange(ROWS) // 3).cast(pl.String))}
    raw = plan().to_mapping()
    sites = {**raw["sites"], "split": "interval:age"}
    named = load_plan({**raw, "data": {**raw["data"], "identifiers": ["id"]}, "sites": sites}, complete=True)
    whole = populate(named, Streams.seeded(4), tables=people)
    assert any("have rows at several sites" in note for note in whole.notes)
    part, aside, _ = made._held_out(whole, 7)
    assert aside.height
    assert not set(part.frame["id"]) & set(aside["id"])


@pytest.mark.parametrize("count", ["secure", "local"])
def test_rare_keys_are_those_below_the_threshold(count: str) -> None:
    asked = plan(count=count)
    whole = populate(asked, Streams.seeded(4), tables=table())
    keys = list(zip(whole.frame["age"], whole.frame["sex"], strict=True))
    if count == "local":
        sites = np.repeat(np.arange(3), np.diff(whole.starts))
        keys = [(*key, int(site)) for key, site in zip(keys, sites, strict=True)]
    counted = Counter(keys)
    assert made._rare(asked, whole).tolist() == [counted[key] < 15 for key in keys]


def test_groups_add_up(found: made.Forecast) -> None:
    assert found.rare is not None
    assert found.frequent is not None
    assert found.rare.rows + found.frequent.rows == found.everybody.rows
    mixed = (found.rare.gain * found.rare.rows + found.frequent.gain * found.frequent.rows) / found.everybody.rows
    assert mixed == pytest.approx(found.everybody.gain)
    assert found.everybody.gain == pytest.approx(found.everybody.partial - found.everybody.averaging)
    assert found.to_mapping()["largest_site"] == list(found.largest_site)


def test_a_gate_that_lets_nothing_pass_is_averaging() -> None:
    found = forecast(plan(k=5000), seed=4, tables=table())
    assert (found.shared, found.everybody.gain, found.recommendation) == (0, 0.0, "averaging")
    assert found.largest_site[0] == found.largest_site[1]
    assert "no row passes" in found.because


def group(gain: float, margin: float = 0.01) -> GroupForecast:
    return GroupForecast(rows=100, partial=0.8 + gain, averaging=0.8, gain=gain, margin=margin)


@pytest.mark.parametrize(
    ("everybody", "rare", "advice", "says"),
    [
        (0.02, -0.02, "partial", "rare keys lose"),
        (0.02, -0.005, "partial", "do not clearly lose"),
        (0.005, -0.05, "averaging", "no clear gain"),
        (-0.02, 0.05, "averaging", "costs accuracy"),
    ],
)
def test_advice_follows_from_what_is_clear(everybody: float, rare: float, advice: str, says: str) -> None:
    recommended, because = made._recommended(10, group(everybody), group(rare))
    assert recommended == advice
    assert says in because


def test_other_plans_are_refused() -> None:
    raw = plan().to_mapping()
    with pytest.raises(ConfigError, match="method is 'fedavg'"):
        forecast(load_plan({**raw, "method": {"name": "fedavg"}}, complete=True), tables=table())
    arriving = load_plan({**raw, "sites": {**raw["sites"], "arrive": "25%/2 rounds"}}, complete=True)
    with pytest.raises(ConfigError, match="rows arrive over time"):
        forecast(arriving, tables=table())
