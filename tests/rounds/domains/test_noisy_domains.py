"""Domains learned under a budget: noisy counts, a threshold that delta pays for, and one account for all of it."""

from __future__ import annotations

import json
from dataclasses import replace
from math import sqrt
from pathlib import Path
from statistics import pstdev
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.rounds.domains.test_domains import CANARIES, EXTREME, RARE_CLASS, RARE_WARD, table

from kohort.errors import ConfigError, DataError, IntegrityError, RefusedError, SiteError
from kohort.privacy.dp.gaussian import gaussian_delta
from kohort.privacy.ledger.ledger import LEDGER_FILE
from kohort.protocol import engine as engine_module
from kohort.protocol.enrolment import DomainState
from kohort.protocol.site import Site
from kohort.protocol.task import Request
from kohort.rounds import dp_accounts
from kohort.rounds.domains import noisy as noisy_domains
from kohort.rounds.domains.noisy import LEVEL, MOST_ITEMS, NOISY_CELLS, NOISY_VALUES, _read
from kohort.rounds.dp_accounts import RESERVE
from kohort.runs.config import load_plan
from kohort.runs.explain import explain_plan
from kohort.runs.run import Outcome, run
from kohort.tables.domain import Domain
from kohort.tables.grid import cells_at_level

MASKS: dict[str, Any] = {"secure": {"sum": "masks"}}


def plan(data: dict[str, Any] | None = None, *, model: str = "logistic", sites: int = 4, **method: Any) -> Any:
    dp = {"epsilon": 1.0, "delta": 1e-5, **method.pop("dp", {})}
    return load_plan(
        {
            "data": {"table": "memory", "target": "outcome", "features": ["age", "dose", "ward"], "drop": ["person"],
                     "encoding": "onehot", "test": 0.1, **(data or {})},
            "sites": {"count": sites},
            "train": {"rounds": 2, "lr": 0.1, "batch": 0, "optimizer": "sgd"},
            "model": {"kind": model},
            "policy": {"min_rows": 1},
            "method": {"name": "fedavg", "dp": dp, **method},
        }
    )  # fmt: skip


def outcome(frame: pl.DataFrame | None = None, out: Path | None = None, **parts: Any) -> Outcome:
    return run(plan(**parts), seed=3, out=out, tables={"": table(4000) if frame is None else frame})


def columns(found: Outcome) -> Any:
    domain: Domain = found.model.encoder.domain
    return domain.columns


@pytest.mark.parametrize("secure", [{}, MASKS], ids=["own", "in shares"])
def test_what_one_person_has_is_in_no_file_of_a_run(secure: dict[str, Any], tmp_path: Path, kohort_here: Any) -> None:
    """An honest run with epsilon 1, no domain declared, one-person categories, and one extreme."""
    found = outcome(out=tmp_path / "run", **secure)
    assert kohort_here("report", tmp_path / "run")[0] == 0
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert {"model.json", "run.json", LEDGER_FILE, "report.html", "README.md"} <= {path.name for path in files}
    for path in files:
        content = path.read_bytes()
        assert not [canary for canary in CANARIES if canary.encode() in content], path.name
    assert "north" in (tmp_path / "run" / "model" / "model.json").read_text()  # the search finds what is there
    assert columns(found)["ward"].categories == ("north", "south", "west", "other")
    assert columns(found)["outcome"].categories == ("ill", "well")
    low, high = columns(found)["age"].bounds
    assert 10 <= low <= 20
    assert high == pytest.approx(100)
    assert columns(found)["dose"].bounds[1] == pytest.approx(10)
    assert any("learned by noisy counts" in note for note in found.notes)
    assert found.refused == found.dropped == {}


def test_the_whole_run_costs_the_plan_and_not_more(tmp_path: Path) -> None:
    outcome(out=tmp_path / "run", **MASKS)
    lines = [json.loads(line) for line in (tmp_path / "run" / "ledger" / LEDGER_FILE).read_text().splitlines()]
    spent: dict[str, list[tuple[float, float]]] = {}
    for line in lines:
        claim = line.get("guarantee", {})
        if line["event"] == "release" and claim.get("kind") == "dp" and claim.get("charge") != 0:
            paid = (claim.get("charge", claim["epsilon"]), claim.get("delta_charge", claim["delta"]))
            spent.setdefault(line["site"], []).append(paid)
            assert "simulated" in claim
    assert len(spent) == 4
    for paid in spent.values():
        assert len(paid) == 2  # the counts, then the rest of the plan
        assert 0.95 < sum(epsilon for epsilon, _ in paid) <= 1
        assert sum(delta for _, delta in paid) == pytest.approx(1e-5)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[Site, Request]]:
    """The first site of a run in shares, and the first request of every task."""
    seen: dict[str, tuple[Site, Request]] = {}
    answer = engine_module.answer

    def listen(sites: Any, request: Request, **options: Any) -> Any:
        seen.setdefault(request.task, (sites[0], request))
        return answer(sites, request, **options)

    monkeypatch.setattr(engine_module, "answer", listen)
    outcome(**MASKS)
    return seen


def drawn(site: Site, request: Request, times: int) -> list[list[tuple[int, str, int]]]:
    found = []
    for number in range(times):
        again = replace(request, round=1000 + number)  # another request, other noise
        blob = NOISY_VALUES.one(site, again).payload.blobs["domain"]
        found.append(_read(site.plan, blob).values)
    return found


def test_counts_have_the_noise_of_the_budget_and_what_few_have_stays_below_the_threshold(
    asked: dict[str, tuple[Site, Request]], monkeypatch: pytest.MonkeyPatch
) -> None:
    site, request = asked[NOISY_VALUES.name]
    budget = dp_accounts.domain_budget(site.plan)
    assert budget is not None
    releases = drawn(site, request, 300)
    north = [count for values in releases for _, text, count in values if text == "north"]
    expected = budget.deviation(4)  # four undeclared columns, one value each
    assert expected == pytest.approx(23.744, rel=1e-4)
    assert pstdev(north) == pytest.approx(expected, rel=0.12)
    assert all(count > budget.threshold(4) > 100 for values in releases for _, _, count in values)
    assert not {RARE_WARD, RARE_CLASS} & {text for values in releases for _, text, _ in values}
    low = type(budget).threshold
    monkeypatch.setattr(type(budget), "threshold", lambda self, keys: low(self, keys) - 4 * self.deviation(keys))
    assert {RARE_WARD, RARE_CLASS} & {text for values in drawn(site, request, 300) for _, text, _ in values}


def test_the_policy_may_ask_for_more(asked: dict[str, tuple[Site, Request]]) -> None:
    site, request = asked[NOISY_VALUES.name]
    site.policy = replace(site.policy, min_cell=100_000)
    assert drawn(site, request, 1) == [[]]


def add_cells(site: Site, request: Request, *, columns: int = 2) -> Any:
    about = SimpleNamespace(sites=("a", "b", "c", "d"), length=columns * len(cells_at_level(LEVEL)))
    inputs = {"columns": np.arange(columns, dtype="<u4").tobytes()}
    return noisy_domains._add_cells(site, request, about, inputs)[0].view(np.int64) / 2**10  # type: ignore[arg-type]


def test_cells_carry_noise_in_shares(asked: dict[str, tuple[Site, Request]]) -> None:
    site, request = asked[NOISY_CELLS.name]
    budget = dp_accounts.domain_budget(site.plan)
    assert budget is not None
    first, second = (add_cells(site, replace(request, round=1000 + number)) for number in range(2))
    share = budget.deviation(4) / np.sqrt(3)  # four sites, of which one may collude
    assert np.std(first - second) / np.sqrt(2) == pytest.approx(share, rel=0.1)
    with pytest.raises(SiteError, match="other columns"):
        add_cells(site, request, columns=1)


def test_cells_are_not_counted_before_they_are_paid_for(
    asked: dict[str, tuple[Site, Request]], monkeypatch: pytest.MonkeyPatch
) -> None:
    site, request = asked[NOISY_CELLS.name]
    monkeypatch.setattr(type(site.chain.budget), "paid_by", lambda *_: (0.0, 0.0))
    with pytest.raises(RefusedError, match="before they were paid for"):
        add_cells(site, request)


def test_the_noise_of_training_leaves_room_for_the_counts(asked: dict[str, tuple[Site, Request]]) -> None:
    """Counts and two rounds of training together are one Gaussian mechanism, and keep the plan's budget."""
    site, _ = asked["sum.updates"]
    budget, rounds = dp_accounts.domain_budget(site.plan), 2
    assert budget is not None
    sigma = dp_accounts.account_of(site).sigmas[0]
    whole = sqrt(1 / budget.event.sigma**2 + rounds / sigma**2)
    assert gaussian_delta(whole, 1.0) + budget.threshold_delta <= 1e-5
    assert gaussian_delta(whole, 0.9) + budget.threshold_delta > 1e-5


def test_persons_add_one_row_each() -> None:
    row = pl.int_range(pl.len())
    busy = row < 350  # 350 rows of 5 persons; all other rows are about a person of their own
    frame = table(4000).with_columns(
        ward=pl.when(busy).then(pl.lit("busy")).otherwise("ward"), person=pl.when(busy).then(row // 70).otherwise(row)
    )
    data = {"drop": [], "identifiers": ["person"], "bounds": {"age": (0, 99), "dose": (0, 10)},
            "categories": {"outcome": ["ill", "well", RARE_CLASS]}}  # fmt: skip
    assert "busy" in columns(outcome(frame, data=data))["ward"].categories
    by_person = columns(outcome(frame, data=data, dp={"unit": "person"}))["ward"].categories
    assert by_person == ("north", "south", "west", "other")


@pytest.mark.parametrize(("classes", "task"), [(2, "classification"), (500, "regression")])
def test_an_integer_target_is_classes_or_a_number(classes: int, task: str) -> None:
    frame = table(4000).with_columns(outcome=pl.Series(np.arange(4000) % classes))
    found = outcome(frame, model="logistic" if classes == 2 else "linear")
    assert found.model.encoder.task == task
    assert found.model.encoder.classes == (("0", "1") if classes == 2 else None)


def test_items_and_missing_values_have_a_place() -> None:
    codes = pl.Series("codes", ["a;b", "b", None, ";".join("b" if at == 0 else f"x{at}" for at in range(12))] * 1000)
    frame = table(4000).with_columns(codes, dose=pl.when(pl.col("age") > 70).then(None).otherwise("dose"))
    found = outcome(frame, data={"missing": "category", "items": ["codes"]})
    assert {"a", "b", "other"} <= set(columns(found)["codes"].categories)
    assert columns(found)["dose"].missing
    assert MOST_ITEMS == 8


def test_a_column_of_which_nothing_is_known_is_named() -> None:
    frame = table(4000).with_columns(ward=pl.Series([f"w{at}" for at in range(4000)]))
    with pytest.raises(DataError, match="no value in ward is shared by so many that noisy counts show it") as caught:
        outcome(frame)
    assert "dp.domain_share" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "dp", [{"mechanism": "output", "delta": 0.0}, {"mechanism": "after", "unit": "site"}], ids=["no delta", "sites"]
)
def test_budgets_that_cannot_pay_need_declared_domains(dp: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="cannot pay for learning domains") as caught:
        run(
            load_plan(
                {
                    "data": {"table": "memory", "target": "outcome", "features": ["age", "ward"], "drop": ["person"]},
                    "sites": {"count": 3},
                    "train": {"rounds": 1},
                    "model": {"kind": "logistic"},
                    "method": {"name": "fedavg", "dp": dp},
                }
            ),
            seed=1,
            tables={"": table(300).drop("dose")},
        )
    assert caught.value.exit_code == 2
    assert "data.categories: age, ward, outcome" in (caught.value.hint or "")


def test_the_share_is_said_before_a_plan_is_approved() -> None:
    text = " ".join(explain_plan(plan(**MASKS)).text.split())
    assert "epsilon 0.344 and delta 1e-06 out of the plan's" in text
    assert "Epsilon 1 and delta 1e-05 per row" in text


def test_reserving_says_nothing_about_rows_outside_the_domain(asked: dict[str, tuple[Site, Request]]) -> None:
    site, request = asked[RESERVE.name]
    enrolled = site.state(DomainState).rows
    assert enrolled is not None
    assert enrolled > site.count  # it has a row of the rare class
    assert RESERVE.one(site, request).payload.metrics["rows"] == enrolled


@pytest.mark.parametrize(
    "blob",
    [b"", b"[]", b"[[],[],[]]", b'[["number"],[],[]]', b'[["number","number","category","odd"],[],[]]',
     b'[["number","number","category","category"],[[9,"x",1]],[]]',
     b'[["number","number","category","category"],[],[[0,[3,1,99999],1]]]'],
)  # fmt: skip
def test_malformed_releases_are_left_out(blob: bytes, asked: dict[str, tuple[Site, Request]]) -> None:
    site, _ = asked[NOISY_VALUES.name]
    with pytest.raises(IntegrityError, match="malformed"):
        _read(site.plan, blob)


def test_an_extreme_moves_no_bound() -> None:
    frame = table(4000)
    without = frame.with_columns(dose=pl.when(pl.col("dose") == EXTREME).then(4.0).otherwise("dose"))
    assert columns(outcome(frame, **MASKS))["dose"].bounds == columns(outcome(without, **MASKS))["dose"].bounds


@pytest.mark.parametrize(
    "method",
    [
        {"name": "additive", "rounds": 4, **MASKS, "dp": {"epsilon": 1.0, "delta": 1e-5}},
        {"name": "additive", "rounds": 4, **MASKS},
        {"name": "trees", "steps": 1, "depth": 3, "holdout": 0.0, **MASKS},
    ],
    ids=["additive, epsilon 1", "additive", "trees"],
)
def test_additive_models_and_forests_say_nothing_of_one_person(
    method: dict[str, Any], tmp_path: Path, kohort_here: Any
) -> None:
    """Model, card, report, run.json and every other file, with no domain declared."""
    data = {
        "table": "memory",
        "target": "outcome",
        "features": ["age", "dose", "ward"],
        "drop": ["person"],
        "test": 0.1,
    }
    made = load_plan({"data": data, "sites": {"count": 4}, "policy": {"min_rows": 1}, "method": method})
    run(made, seed=3, out=tmp_path / "run", tables={"": table(4000)})
    assert kohort_here("report", tmp_path / "run")[0] == 0
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert {"model.json", "run.json", LEDGER_FILE, "report.html", "README.md"} <= {path.name for path in files}
    for path in files:
        content = path.read_bytes()
        assert not [canary for canary in CANARIES if canary.encode() in content], path.name
    assert "north" in (tmp_path / "run" / "model" / "model.json").read_text()  # the search finds what is there
