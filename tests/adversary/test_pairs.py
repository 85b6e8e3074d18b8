"""Pairs of categories that few persons share: a key-holder opens no such count as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.errors import RefusedError
from kohort.methods.oneshot import method as oneshot
from kohort.methods.registry import find_method
from kohort.privacy import policy
from kohort.privacy.guarantee import Cells, Pairs
from kohort.privacy.policy import Policy
from kohort.protocol import key_holder
from kohort.runs.config import load_plan
from kohort.runs.run import run

LEAST = 10


def table() -> pl.DataFrame:
    """One person is a nurse in the west; every ward and every job has many."""
    random = np.random.default_rng(8)
    ward = random.choice(["north", "south", "west"], 900).astype(object)
    job = np.where(ward == "west", "porter", random.choice(["nurse", "porter"], 900)).astype(object)
    job[np.flatnonzero(ward == "west")[0]] = "nurse"
    return pl.DataFrame({"ward": ward, "job": job, "y": random.choice(["no", "yes"], 900)})


def opened(
    monkeypatch: pytest.MonkeyPatch, seed: int = 1, scheme: str = "bfv", pairs: str = "rounded", **own: Any
) -> Any:
    """The total that the hub sees, as counts."""
    seen: list[Any] = []
    check: Callable[..., None] = oneshot.check_total

    def listen(layout: Any, totals: Any) -> None:
        seen.append(np.asarray(totals).ravel())
        check(layout, totals)

    categories = {"ward": ["north", "south", "west"], "job": ["nurse", "porter"], "y": ["no", "yes"]}
    plan = load_plan(
        {
            "data": {"table": "memory", "target": "y", "features": "rest", "encoding": "onehot", "test": 0,
                     "categories": categories},
            "sites": {"count": 4},
            "method": {"name": "oneshot", "secure": {"sum": scheme}, "oneshot": {"min_cell": LEAST} | own},
            "policy": {"min_rows": 1, "pairs": pairs},
        }
    )  # fmt: skip
    with monkeypatch.context() as patched:
        patched.setattr(oneshot, "check_total", listen)
        run(plan, seed=seed, tables={"": table()})
    return seen[0]


def small(total: Any) -> Any:
    return total[(total > 0) & (total < LEAST)]


@pytest.mark.parametrize("scheme", ["bfv", "ckks"])
def test_a_pair_that_one_person_has_is_not_opened(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rounded = opened(monkeypatch, scheme=scheme)
    assert not len(small(rounded))
    monkeypatch.setattr(key_holder, "_with_rounded_cells", lambda _, __, ___, total: total)
    exact = opened(monkeypatch, scheme=scheme)
    assert 1.0 in small(exact)  # the nurse in the west
    off = np.abs(rounded - exact)
    assert off.max() <= LEAST
    assert (off[exact >= LEAST] == 0).all()


@pytest.mark.parametrize(("scheme", "own"), [("masks", {}), ("none", {}), ("bfv", {"rounds": 2})], ids=str)
def test_a_policy_must_name_that_pairs_open(scheme: str, own: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RefusedError, match='the policy does not say pairs = "open"'):
        opened(monkeypatch, scheme=scheme, **own)
    assert 1.0 in small(opened(monkeypatch, scheme=scheme, pairs="open", **own))


@pytest.mark.parametrize("least", [1, LEAST - 1])
def test_a_plan_with_a_smaller_minimum_opens_no_pair(least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key-holder rounds below the plan's minimum: one of 1 would open all, with no word about pairs."""
    with pytest.raises(RefusedError, match='the policy does not say pairs = "open"'):
        opened(monkeypatch, min_cell=least)
    monkeypatch.setitem(policy._JUDGES, Pairs, lambda *_: None)
    assert (1.0 in opened(monkeypatch, min_cell=least)) == (least == 1)


def cells_of(name: str, keys: dict[str, Any], strict: Policy) -> list[str]:
    """What a policy says of the smallest cells of a plan's totals: nothing, or the key that refuses them."""
    data = {"table": "memory", "target": "y", "features": "rest"}
    plan = load_plan({"data": data, "method": {"name": name, **keys}})
    claims = [claim for claim in find_method(name).claims(plan.config, 500) if isinstance(claim, Cells)]
    reasons = [strict.judge(claim, task="any") or "" for claim in claims]
    return ["min_sum_cell" if "min_sum_cell" in reason else reason for reason in reasons]


def test_bins_and_categories_are_as_large_as_a_policy_demands() -> None:
    """Totals of additive models and of one-shot fits are tables, too: their smallest cells are the plan's."""
    strict = Policy(min_sum_cell=LEAST)
    for name, keys in (("additive", {"min_bin": LEAST - 1}), ("oneshot", {"oneshot": {"min_cell": LEAST - 1}})):
        for scheme in ("masks", "none"):
            assert cells_of(name, {"secure": {"sum": scheme}, **keys}, strict) == ["min_sum_cell"]
    assert cells_of("additive", {"min_bin": LEAST}, strict) == [""]
    assert cells_of("additive", {"min_bin": 2 * LEAST, "secure": {"sum": "none"}}, strict) == ["min_sum_cell"]


def test_a_plan_cannot_open_pairs_for_a_site() -> None:
    assert Policy().tightened(Policy(pairs="open")).pairs == "rounded"
    assert Policy(pairs="open").tightened(Policy()).pairs == "rounded"
    assert Policy(pairs="open").tightened(Policy(pairs="open")).judge(Pairs(), task="any") is None


class Opens:
    """A key-holder with a key of its own."""

    def __init__(self, key: bytes) -> None:
        self.plan = type("Plan", (), {"keeps_book": True})()
        self.streams = type("Streams", (), {"bytes": lambda *_: key})()


def test_rounding_keeps_the_mean_and_repeats_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    unit, least = 4**16, LEAST
    task = type("Sums", (), {"small_cells": staticmethod(lambda _: (unit, least))})()
    monkeypatch.setattr(key_holder, "find_task", lambda _: task)
    counts = np.tile(np.arange(-3, 14), 4000)
    total = (counts * unit).astype(np.int64)
    holder: Any = Opens(bytes(32))
    first = key_holder._with_rounded_cells(holder, "t", ["a", "b"], total.view(np.uint64)).view(np.int64) / unit
    again = key_holder._with_rounded_cells(holder, "t", ["b", "a"], total.view(np.uint64)).view(np.int64) / unit
    assert (first == again).all()  # opened again, it is rounded alike: repetition averages nothing out
    other: Any = Opens(bytes([1]) * 32)
    assert (
        first != key_holder._with_rounded_cells(other, "t", ["a", "b"], total.view(np.uint64)).view(np.int64) / unit
    ).any()
    for count in range(-3, 14):
        drawn = first[counts == count]
        assert set(drawn.tolist()) <= ({count} if abs(count) >= least or count == 0 else {0, np.sign(count) * least})
        assert drawn.mean() == pytest.approx(count, abs=0.35)
    part = total + unit // 3  # sums of numbers are no counts
    same = key_holder._with_rounded_cells(holder, "t", ["a", "b"], part.view(np.uint64)).view(np.int64)
    assert (same == part).all()
