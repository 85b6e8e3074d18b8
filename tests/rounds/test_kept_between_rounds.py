"""What sites keep from round to round to be quick must follow whatever it was made from."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.errors import RefusedError, SiteError
from kohort.models.rows import Rows
from kohort.privacy.ledger.ledger import Ledger
from kohort.privacy.ledger.signing import Signer
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.site import Site, SiteTable
from kohort.rng import Streams
from kohort.rounds.dp_accounts import shares_of
from kohort.rounds.phase_rows import stacked_rows
from kohort.rounds.training import _group_of
from kohort.runs.agreed import approved_plan_for
from kohort.runs.config import load_plan
from kohort.runs.simulation import schema_of

FRAME = pl.DataFrame({"age": np.arange(40), "ill": ["yes", "no"] * 20})
PHASES = [{"kind": "peers", "rows": "low", "rounds": 2}, {"kind": "server", "rows": "high", "rounds": 3}]


def approved(**train: Any) -> ApprovedPlan:
    plan = load_plan(
        {
            "data": {"table": "memory", "target": "ill", "features": "rest"},
            "sites": {"count": 2, "clusters": 1, "low_risk": 0.5},
            "model": {"kind": "logistic"},
            "train": train,
            "method": {"name": "hybrid", "phases": PHASES},
        }
    )
    schema = schema_of(plan.data, FRAME.columns, codebook=None, default=None)
    return approved_plan_for(plan, schema=schema, run="00")


def site(name: str) -> Site:
    plan = approved()
    made = Site(
        name=name,
        table=SiteTable(FRAME, 0, 20, low=8),
        schema=plan.schema,
        policy=load_plan({"method": {"name": "fedavg"}, "data": {"table": "memory"}}).policy,
        streams=Streams.seeded(1),
        ledger=Ledger(signer=Signer.from_secret(bytes(32)), folder=None, run="00"),
    )
    made.approved = plan
    made.training_rows = Rows(np.arange(40, dtype=np.float32).reshape(20, 2), np.zeros(20, dtype=np.float32))
    return made


def test_the_phases_of_a_plan_are_made_with_it() -> None:
    first, second = approved(lr=0.5), approved(lr=0.25)
    assert first.phase(1) is first.phases[1]
    assert first.phase(0).training is first.phase(0).training
    assert [phase.train.lr for phase in first.phases] == [0.5, 0.5]
    assert [phase.training.lr for phase in second.phases] == [0.25, 0.25]


@pytest.mark.parametrize("number", [-1, 2, 99])
def test_a_phase_the_plan_does_not_have_is_refused(number: int) -> None:
    with pytest.raises(RefusedError, match="has no phase"):
        approved().phase(number)


def test_shares_follow_the_roster() -> None:
    one = site("a")
    names = [f"site {number}" for number in range(9)] + ["a"]
    public = one.identity.public
    one.find_peer = dict.fromkeys(names, public).get
    assert shares_of(one, names, 1).sites == 10
    assert shares_of(one, names, 1) is shares_of(one, list(names), 1)
    assert shares_of(one, names[3:], 1).sites == 7
    assert shares_of(one, names, 2).needed == 7
    one.find_peer = dict.fromkeys(names[5:], public).get  # the operator trusts fewer now
    assert shares_of(one, names, 1).sites == 5
    one.find_peer = {}.get
    with pytest.raises(RefusedError, match="1 sites on the roster"):
        shares_of(one, names, 1)


def test_stacked_rows_follow_the_sites_and_the_phase() -> None:
    sites = [site("a"), site("b")]
    low, high = approved().phases
    together = stacked_rows(sites, high)
    assert together.counts.tolist() == [12, 12]
    assert stacked_rows(sites, high) is together
    assert stacked_rows(sites, low).counts.tolist() == [8, 8]
    assert stacked_rows(sites[:1], low).counts.tolist() == [8]
    assert np.array_equal(stacked_rows(sites, high).site(1).x, sites[1].training_rows.x[8:])


def test_a_group_follows_the_rows_of_every_site() -> None:
    sites = [site("a"), site("b")]
    group = _group_of(sites)
    assert group.counts == (20, 20)
    assert _group_of(sites) is group
    assert _group_of(tuple(sites)) is group
    assert _group_of(sites[:1]).counts == (20,)
    assert _group_of(sites[::-1]).counts == (20, 20)
    rows = sites[1].training_rows
    assert rows is not None
    sites[1].training_rows = rows.part(0, 5)
    assert _group_of(sites).counts == (20, 5)
    assert _group_of(sites).stacked.counts.tolist() == [20, 5]
    sites[1].training_rows = None
    with pytest.raises(SiteError, match="before it had rows"):
        _group_of(sites)
