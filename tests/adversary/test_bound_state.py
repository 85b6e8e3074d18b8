"""State that a lying hub tried to bend: unpaid budgets, another seed, another member list, strangers, clusters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kohort.crypto.sums.session import SumSession
from kohort.errors import KohortError, RefusedError
from kohort.methods.hybrid import method
from kohort.privacy.openings import OpeningBook
from kohort.protocol.hub import Ask
from kohort.protocol.site import Site
from kohort.protocol.wire import Payload
from kohort.rounds import dp_accounts, summing
from kohort.rounds.clusters import join_cluster
from kohort.rounds.totals import protocol, summed
from kohort.runs.backend import Simulation
from kohort.runs.run import Outcome, run
from kohort.testing import plan_of, tables

BUDGET = {"dp": {"epsilon": 1.0, "delta": 1e-5}}
STEPS = {"batch": 0, "optimizer": "sgd"}


def fedavg(scheme: str = "masks", *, policy: Any = None, **own: Any) -> Outcome:
    train = STEPS if "dp" in own else None
    return run(
        plan_of("fedavg", own={"secure": {"sum": scheme}, **own}, train=train, policy=policy), seed=5, tables=tables()
    )


def test_without_an_answered_enrolment_nothing_else_is_asked_for() -> None:
    """A policy that keeps row counts private refuses the enrolment, and with it whatever would follow."""
    with pytest.raises(KohortError) as caught:
        fedavg(policy={"public": []}, **BUDGET)
    assert "prepare" in caught.value.message


def test_noise_that_was_not_paid_for_is_not_added() -> None:
    """The account is open, but the ledger holds no payment: as after a reservation that the door refused."""
    honest = dp_accounts._reserve

    def forgets(site: Site, request: Any) -> Any:
        release = honest(site, request)
        return replace(release, guarantee=replace(release.guarantee, account="another"))

    object.__setattr__(dp_accounts.RESERVE, "one", forgets)
    try:
        with pytest.raises(KohortError, match="not paid"):
            fedavg(**BUDGET)
    finally:
        object.__setattr__(dp_accounts.RESERVE, "one", honest)


@pytest.mark.parametrize("scheme", ["masks", "none"])
def test_a_seed_that_differs_at_one_site_is_refused(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Totals of missed rounds are sent to single sites: they must not bring other first weights."""
    honest = summed.summed_rounds

    def lies(hub: Any, **options: Any) -> Any:
        rounds = honest(hub, **options)
        reply: Any = None
        while True:
            try:
                ask = rounds.send(reply)
            except StopIteration as end:
                return end.value
            if isinstance(ask, Ask) and ask.task is summed.SUM_UPDATES and ask.round == 0 and not changed:
                changed.append(True)
                first = ask.to[0]
                nothing = {
                    "totals": np.empty((0, 1), np.uint64),
                    "places": np.empty(0, np.uint32),
                    "sizes": np.empty(0, np.int64),
                }
                lie = Payload(arrays=nothing, metrics={"first": 0}, blobs={"start": bytes(16)})
                yield Ask(task=summed.CATCH_UP, to=(first,), each={first: lie})
            reply = yield ask

    changed: list[bool] = []
    monkeypatch.setattr("kohort.methods.fedavg.summed_rounds", lies)
    with pytest.raises(KohortError, match=r"seed of the first weights|nothing to catch up"):
        fedavg(scheme)


def test_a_training_is_over_one_list_of_sites(monkeypatch: pytest.MonkeyPatch) -> None:
    """Round 0 over all sites, round 1 without one: the difference would be about its update."""
    honest = summed.secure_sum

    def drops(hub: Any, task: Any, **options: Any) -> Any:
        if options["round_number"] == 1:
            hub = replace(hub, sites=hub.sites[:-1])
        return (yield from honest(hub, task, **options))

    monkeypatch.setattr(summed, "secure_sum", drops)
    with pytest.raises(KohortError, match="one list of sites, from the first round on"):
        fedavg("bfv")


@pytest.mark.parametrize("name", ["fedavg", "additive"])
def test_noise_in_shares_is_over_one_list_of_sites(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares of the noise have the size that eight sites need; four in a later round would add up to half of it."""
    own: dict[str, Any] = {"dp": {"epsilon": 9.0, "delta": 1e-4}, "secure": {"sum": "bfv"}}
    own |= {"rounds": 3} if name == "additive" else {}
    made = plan_of(name, own=own, train=STEPS if name == "fedavg" else None)
    frames = {f"{site} {part}": frame for site, frame in tables().items() for part in range(2)}
    where: Any = summed if name == "fedavg" else protocol
    honest, begin = where.secure_sum, summing._begin
    over: list[int] = []

    def drops(hub: Any, task: Any, **options: Any) -> Any:
        few = replace(hub, sites=hub.sites[:4]) if options["round_number"] == 1 else hub
        total = yield from honest(few, task, **options)
        over.append(len(total.sites))
        return total

    def forgets(site: Site, *about: Any) -> Any:
        site.state(summing.SumState).fixed.clear()
        return begin(site, *about)

    monkeypatch.setattr(where, "secure_sum", drops)
    with pytest.raises(KohortError, match="one list of sites, from the first round on"):
        run(made, seed=5, tables=frames)
    assert over == [8]
    monkeypatch.setattr(summing, "_begin", forgets)
    run(made, seed=5, tables=frames)
    assert over[1:3] == [8, 4]


def test_strangers_are_in_no_sum() -> None:
    session = SumSession(run="r", plan_hash="p", members=("a", "b", "stranger"))
    with pytest.raises(RefusedError, match="'stranger' of a secure sum is not on this site's roster"):
        session.refuse_strangers(lambda name: None if name == "stranger" else object())
    session.refuse_strangers(lambda name: name)


def test_run_keys_are_bound_to_the_cluster_that_operators_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sites named east and two west: a hub that mixes them gets keys that do not fit."""
    own = {
        "clusters": "given",
        "phases": [{"kind": "peers", "rounds": 1, "rows": "all", "optimizer": "sgd", "lr": 0.1}],
    }
    made = plan_of("hybrid", own=own)
    names = iter(["east", "east", "west", "west"])
    honest = Site.__init__

    def named(self: Site, **parts: Any) -> None:
        honest(self, **parts)
        join_cluster(self, next(names))

    monkeypatch.setattr(Site, "__init__", named)
    monkeypatch.setattr(Simulation, "check", lambda self, plan: None)  # the sites declare their clusters

    def merged(hub: Any) -> Any:
        said = yield from honest_names(hub)
        return dict.fromkeys(said, "east")

    honest_names = method.named_clusters
    monkeypatch.setattr(method, "named_clusters", merged)
    with pytest.raises(KohortError, match="run key"):
        run(made, seed=5, tables=tables())


@pytest.mark.parametrize("scheme", ["masks", "bfv"])
def test_rows_that_changed_since_an_opening_are_in_no_further_one(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The difference of two totals over the same sites would be the change of one of them."""

    def with_history(self: Site, **parts: Any) -> None:
        honest(self, **parts)
        if self.count:  # the key-holder, which has no rows, cannot know
            changed = (
                scheme == "bfv" or self.name == "b-large"
            )  # by masks, rows that changed at three sites may take part
            version = "other rows" if changed else self.data_version
            by = {"batches": None if scheme == "bfv" else {}}
            self.openings.admit("rows", "an earlier run", tuple(tables()), version=version, least=3, **by)

    honest = Site.__init__
    made = plan_of("oneshot", own={"oneshot": {"min_cell": 2}, "secure": {"sum": scheme}})
    monkeypatch.setattr(Site, "__init__", with_history)
    with pytest.raises(KohortError, match=r"rows here changed|would show 1 sites: b-large"):
        run(made, seed=5, tables=tables())


def test_an_opening_is_named_by_run_and_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub chooses run ids: a second plan under the same one is another opening."""
    names: set[str] = set()

    def listen(self: OpeningBook, family: str, name: str, sites: Any, **options: Any) -> None:
        del self, family, sites, options
        names.add(name)

    made = plan_of("oneshot", own={"oneshot": {"min_cell": 2}})
    monkeypatch.setattr(OpeningBook, "admit", listen)
    run(made, seed=5, tables=tables())
    assert names
    assert all(made.digest() in name for name in names)
