"""Rows that are appended to the tables of real sites: tables are read again at a step of the contract, and no other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.anonymity.checker.measures import measure
from kohort.errors import ConfigError
from kohort.methods.partial import method as partial_method
from kohort.protocol.plan.arrival import parse_arrival
from kohort.runs.config import Plan, load_plan
from kohort.runs.explain import explain_plan
from kohort.runs.run import Outcome, run
from kohort.testing.site_servers import ServedSites

SITES = ("east", "north", "south", "west")
EVERY = "appended/2 rounds"


def plan(gate: Mapping[str, Any], *, arrive: str = EVERY, data: Mapping[str, Any] | None = None, **method: Any) -> Plan:
    return load_plan(
        {
            "data": {"table": list(SITES), "target": "y", "quasi": ["age"], "features": ["hours"], "test": 0,
                     "bounds": {"age": (20, 70), "hours": (0, 9)}, "categories": {"y": ["high", "low"]},
                     **(data or {})},
            "sites": {"split": "files", "arrive": arrive},
            "model": {"kind": "logistic"},
            "train": {"rounds": 3, "optimizer": "sgd", "lr": 0.3, "batch": 0},
            "policy": {"raw": True, "trust_counts": True, "min_rows": 1, "min_k": 2},
            "method": {"name": "partial", "gate": {"release_k": 5, **gate}, **method},
        }
    )  # fmt: skip


def rows(count: int, *, seed: int, age: int | None = None) -> pl.DataFrame:
    generator = np.random.default_rng(seed)
    ages = generator.choice([20, 30], count) if age is None else np.full(count, age)
    hours = generator.integers(0, 10, count)
    return pl.DataFrame({"age": ages, "hours": hours, "y": np.where(hours > 4, "high", "low")})


@dataclass
class Growing:
    """Tables that grow: what each holds when it is read for the first time, for the second time, and so on."""

    tables: Mapping[str, list[pl.DataFrame]]
    reads: dict[str, int] = field(default_factory=dict)

    def read(self, site: str) -> pl.DataFrame:
        self.reads[site] = self.reads.get(site, 0) + 1
        states = self.tables[site]
        return states[min(self.reads[site], len(states)) - 1]

    def run(self, given: Plan, *, folder: Path | None = None, out: Path | None = None) -> Outcome:
        begun = {site: states[0] for site, states in self.tables.items()}
        return run(given, seed=3, out=out, backend=ServedSites(begun, folder=folder, read_again=self.read))


def growing(appended: Mapping[str, pl.DataFrame], count: int = 60) -> Growing:
    began = {site: rows(count, seed=number) for number, site in enumerate(SITES)}
    return Growing(
        {site: [own, pl.concat([own, appended[site]]) if site in appended else own] for site, own in began.items()}
    )


def sent(found: Outcome, *, batch: int, site: str | None = None) -> pl.DataFrame:
    assert found.received is not None
    kept = found.received.filter(pl.col("batch") == batch)
    return kept if site is None else kept.filter(pl.col("sender") == site)


def test_rows_that_were_appended_are_a_batch_of_their_own() -> None:
    new = {site: rows(30, seed=10 + number) for number, site in enumerate(SITES)}  # equal to earlier rows, many of them
    tables = growing(new)
    found = tables.run(plan({"k": 20, "count": "local", "released": "generalised"}))
    assert tables.reads == dict.fromkeys(SITES, 2)
    assert {site: sent(found, batch=1, site=site).height for site in SITES} == dict.fromkeys(SITES, 60)
    assert {site: sent(found, batch=2, site=site).height for site in SITES} == dict.fromkeys(SITES, 30)
    assert found.received is not None
    assert measure(found.received, quasi=["age", "hours", "sender", "batch"], sensitive=["y"]).k >= 5
    assert "360 of 360 rows were shared, generalised" in found.notes


def test_too_few_late_rows_wait_for_more() -> None:
    tables = growing({site: rows(3, seed=10) for site in SITES})
    found = tables.run(plan({"k": 20, "count": "local", "released": "generalised"}))
    assert found.received is not None
    assert found.received["batch"].unique().to_list() == [1]
    assert sum(found.site_rows.values()) == 4 * 63


def openings(folder: Path, site: str) -> list[list[str]]:
    lines = (folder / site / "openings.jsonl").read_text().splitlines()
    return [parts for _, name, parts, *_ in map(json.loads, lines) if "partial.count.table" in name]


def test_keys_are_counted_again_when_enough_sites_have_enough_new_rows(tmp_path: Path) -> None:
    new = {site: rows(12, seed=10 + number, age=50) for number, site in enumerate(SITES[:3])}
    found = growing(new).run(plan({"k": 30, "count": "secure", "released": "raw"}), folder=tmp_path)
    assert sent(found, batch=1)["age"].unique().sort().to_list() == [20, 30]
    assert {site: sent(found, batch=2, site=site)["age"].to_list() for site in SITES} == {
        site: [50] * 12 if site in new else [] for site in SITES
    }
    first, second = openings(tmp_path, "east")[0], openings(tmp_path, "east")[-1]
    assert (first, second) == (sorted(SITES), sorted([*SITES, "east#1", "north#1", "south#1"]))
    assert openings(tmp_path, "west")[-1] == second  # who has no new rows notes those of the others


@pytest.mark.parametrize("sites", [SITES[:2], SITES[:3]])
def test_too_few_new_rows_are_not_counted_and_approvals_stay(sites: tuple[str, ...], tmp_path: Path) -> None:
    few = {site: pl.concat([rows(7, seed=20, age=50), rows(7, seed=10, age=20)]) for site in sites[:2]}
    few |= {site: rows(1, seed=10, age=20) for site in sites[2:]}
    found = growing(few).run(plan({"k": 40, "count": "secure", "released": "raw"}), folder=tmp_path)
    assert sent(found, batch=2)["age"].unique().to_list() == [20]  # approved before; the new key waits
    assert all("#" not in part for parts in openings(tmp_path, "east") for part in parts)


def test_a_hub_that_counts_for_a_few_new_rows_gets_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    new = {site: rows(12, seed=10, age=50) for site in SITES[:2]}
    honest = partial_method._count

    def lying(config: Any, hub: Any, number: int) -> Any:
        if not number:
            return (yield from honest(config, hub, number))
        yield partial_method._ask_news(hub, number)
        return (yield from partial_method.COUNT.run(hub, threshold=30, stage=number))

    monkeypatch.setattr(partial_method, "_count", lying)
    with pytest.raises(Exception, match="fewer than the quorum"):
        growing(new).run(plan({"k": 30, "count": "secure", "released": "raw"}), folder=tmp_path)
    ledger = (tmp_path / "west" / "ledger" / "ledger.jsonl").read_text()
    assert "keys are counted again when 3 sites have new rows, 30 in all" in ledger
    assert len(openings(tmp_path, "west")) == 1


def test_only_rows_at_the_end_are_taken(tmp_path: Path) -> None:
    tables = growing({site: rows(30, seed=10) for site in SITES})
    own = tables.tables["north"]
    own[1] = pl.concat([own[1].slice(1), own[1].head(1)])  # moved
    typed = tables.tables["south"]
    typed[1] = typed[1].with_columns(pl.col("hours").cast(pl.Float64))
    found = tables.run(plan({"k": 20, "count": "local", "released": "raw"}), folder=tmp_path)
    assert {site: sent(found, batch=2, site=site).height for site in SITES} == {
        "east": 30, "north": 0, "south": 0, "west": 30,
    }  # fmt: skip
    north, south = ((tmp_path / site / "ledger" / "ledger.jsonl").read_text() for site in ("north", "south"))
    assert "only rows appended to its end are taken" in north
    assert "columns are of another type since rows were appended: hours" in south


def test_appended_rows_outside_the_domain_take_no_part_and_are_counted(tmp_path: Path) -> None:
    strange = rows(4, seed=11).with_columns(y=pl.lit("unheard of"))
    new = {site: pl.concat([strange, rows(30, seed=10)]) for site in SITES}
    found = growing(new).run(plan({"k": 20, "count": "local", "released": "raw"}), folder=tmp_path)
    assert sent(found, batch=2).height == 120
    assert "unheard of" not in set(sent(found, batch=2)["y"])
    ledger = (tmp_path / "east" / "ledger" / "ledger.jsonl").read_text()
    assert "4 appended rows have a category or class outside the agreed domain" in ledger
    assert "unheard of" not in ledger


def test_rows_without_consent_to_share_make_no_new_version(tmp_path: Path) -> None:
    def asked(frame: pl.DataFrame, word: str) -> pl.DataFrame:
        return frame.with_columns(agreed=pl.lit(word))

    began = {site: asked(rows(60, seed=number), "share") for number, site in enumerate(SITES)}
    new = {site: asked(rows(12, seed=10, age=50), "train" if site == "west" else "share") for site in SITES}
    tables = Growing({site: [own, pl.concat([own, new[site]])] for site, own in began.items()})
    given = plan({"k": 30, "count": "secure", "released": "raw"}, data={"consent": "agreed"})
    found = tables.run(given, folder=tmp_path)
    assert sent(found, batch=2)["sender"].unique().sort().to_list() == ["east", "north", "south"]
    assert "west#1" not in openings(tmp_path, "west")[-1]


def test_what_cannot_be_done_is_refused_before_anything_runs() -> None:
    gate = {"k": 20, "released": "raw"}
    frames = {site: rows(30, seed=1) for site in SITES}
    with pytest.raises(ConfigError, match="for sites with tables of their own"):
        run(plan(gate), seed=1, tables=frames)
    with pytest.raises(ConfigError, match="does not know which sites have new rows"):
        explain_plan(plan(gate, secure={"sum": "bfv"}))
    with pytest.raises(ConfigError, match="appended/10 rounds"):
        parse_arrival("appended/0 rounds")


def test_the_contract_says_that_the_table_is_read_again() -> None:
    said = explain_plan(plan({"k": 20, "released": "raw"}))
    step = next(step for step in said.steps if step.task == "partial.news")
    assert (step.times, "reads its table again" in step.what) == (2, True)
    assert "reads its table again" not in explain_plan(plan({"k": 20}, arrive="50%/2 rounds")).text
