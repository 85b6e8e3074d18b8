"""Totals of a ledger, and what is said of one that nobody could add up."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.ledgers import open_ledger, record_one

from kohort.errors import IntegrityError
from kohort.privacy.guarantee import DP, Aggregate, Guarantee, KAnonymous, KKm
from kohort.privacy.ledger.ledger import LedgerContext
from kohort.privacy.ledger.summary import figures_of_ledger, spent_by_site, summarise, with_ledger_figures
from kohort.privacy.policy import Policy

Copy = Callable[..., Path]


@pytest.mark.parametrize("key", ["site", "to", "via", "what", "rows", "size"])
@pytest.mark.parametrize("value", [None, {}])
def test_a_malformed_line_is_said_and_not_left_out(key: str, value: Any, copy_of: Copy) -> None:
    folder = copy_of()
    path = folder / "ledger.jsonl"
    lines = [json.loads(raw) for raw in path.read_bytes().splitlines()]
    released = next(line for line in lines if line["event"] == "release")
    del released[key]
    if value is not None:
        released[key] = value
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(IntegrityError, match="the ledger holds a malformed line"):
        summarise(folder)


def written(folder: Path, claims: list[Guarantee]) -> Any:
    made = open_ledger(folder, policy=Policy(), names=("a",))
    for number, claim in enumerate(claims):
        context = LedgerContext(what="train", request=f"{number:064x}", round=number)
        record_one(made.ledger, made.sites[0].chain, context, claim, 10 + number, b"12")
        made.receipts.issue(made.ledger, [made.sites[0].chain], context)
    made.seal()
    return made


def test_the_weakest_claim_of_each_kind_is_shown(tmp_path: Path) -> None:
    claims = [
        KAnonymous(k=9, l=3, t=0.1, verified=True),
        KAnonymous(k=12, l=2, t=0.3, verified=True),
        KAnonymous(k=7, l=4, t=0.2, verified=True),
        KKm(k=5, m=2, verified=True),
        KKm(k=4, m=2, verified=True),
        KKm(k=8, m=2, verified=True),
        Aggregate(rows=3),
    ]
    written(tmp_path, claims)
    totals = {total.kind: total for total in summarise(tmp_path)}
    classes, items, sums = (totals[kind] for kind in ("k-anonymous", "k-km", "aggregate"))
    assert (classes.k, classes.l, classes.t, classes.releases, classes.rows, classes.size) == (7, 2, 0.3, 3, 12, 6)
    assert (items.k, items.l, items.epsilon, items.releases) == (4, None, None, 3)
    assert (sums.k, sums.epsilon, sums.refusals, sums.rows) == (None, None, 0, 16)


@pytest.mark.parametrize("order", [(0.1, None, 0.2), (None, 0.1), (0.1, None)])
def test_where_one_release_promises_no_t_all_together_promise_none(
    order: tuple[float | None, ...], tmp_path: Path
) -> None:
    written(tmp_path, [KAnonymous(k=9, t=t, verified=True) for t in order])
    [total] = summarise(tmp_path)
    assert total.t is None
    assert total.to_mapping()["k"] == 9


def test_what_was_spent_is_listed_by_site_without_what_cost_nothing(tmp_path: Path) -> None:
    first = DP(epsilon=0.5, delta=1e-6, account="x", unit="person")
    later = DP(epsilon=0.5, delta=1e-6, account="x", unit="person", charge=0.0)
    made = written(tmp_path, [first, later, Aggregate(rows=1)])
    assert spent_by_site(tmp_path) == {"a": [first]}
    figures = figures_of_ledger(made.ledger)
    assert (figures["unit"], figures["bytes_up"]) == ("person", 6)
    assert [item["releases"] for item in figures["disclosed"]] == [2, 1]
    run = {"epsilon": 9.0, "bytes": {"up": 0, "down": 7}, "disclosed": []}
    shown = with_ledger_figures(run, tmp_path)
    assert (shown["epsilon"], shown["delta"], shown["bytes"]) == (0.5, 1e-6, {"up": 6, "down": 7})
    assert all(item["in_words"] for item in shown["disclosed"])
    assert "bytes" not in with_ledger_figures({}, tmp_path)


def test_a_ledger_that_spent_nothing_has_no_epsilon(tmp_path: Path) -> None:
    made = written(tmp_path, [Aggregate(rows=1)])
    assert set(figures_of_ledger(made.ledger)) == {"disclosed", "bytes_up"}
    assert spent_by_site(tmp_path) == {}
