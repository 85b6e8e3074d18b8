"""A one-shot run of five real sites: three more join, three leave, each model is that of retraining; one is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.flower_federation import Federation, federation, model_of, plan_with, tables_of, write_plan

pytest.importorskip("flwr")

from kohort.privacy.ledger.verify import verify_ledger
from kohort.runs.config import Plan, read_plan
from kohort.runs.run import run

pytestmark = [pytest.mark.e2e, pytest.mark.long]

TABLES = tables_of(8)
FIRST, LATE = tuple(TABLES)[:5], tuple(TABLES)[5:]


def oneshot_plan(root: Path) -> Path:
    import tomllib

    described = tomllib.loads(plan_with(root, sites=8).read_text())
    del described["model"], described["train"]
    own = {"name": "oneshot", "secure": {"sum": "masks"}}
    return write_plan(root / "oneshot.toml", {**described, "method": own})


def let_in(made: Federation) -> None:
    """Three more sites register, are trusted, approve the plan and start."""
    from kohort.transport.deployment.files import Registration
    from kohort.transport.deployment.site import SiteFolder

    for name in LATE:
        file = made.root / "tables" / f"{name}.csv"
        TABLES[name].write_csv(file)
        made.join(name, file)
    prints = {name: Registration.read(made.site(name) / "registration.json").site.fingerprint for name in LATE}
    for name in LATE:
        for peer in LATE:
            if peer != name:
                SiteFolder(made.site(name)).trust(peer, prints[peer])
    made.approve(made.plan, *LATE)
    made.start_sites(*LATE)


def retrained(plan: Plan, names: tuple[str, ...], out: Path) -> bytes:
    run(plan, seed=1, out=out, tables={name: TABLES[name] for name in names})
    return model_of(out)


def test_three_join_three_leave_and_a_single_leaver_is_refused(tmp_path: Path) -> None:
    path = oneshot_plan(tmp_path)
    plan = read_plan(path)
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    with federation(tmp_path, path, {name: TABLES[name] for name in FIRST}) as made:
        made.run(first, "--wait", 240)
        assert model_of(first) == retrained(plan, FIRST, tmp_path / "five")
        let_in(made)
        words = ("--wait", 240, "--json")
        joined = json.loads(
            made.kohort("hub", "join", made.hub, first, path, "--sites", ",".join(LATE), "--out", second, *words)
        )
        assert joined["sites"] == 8
        assert joined["metrics"]["accuracy"] > 0.5
        assert model_of(second) == retrained(plan, (*FIRST, *LATE), tmp_path / "eight")
        said = made.kohort("hub", "leave", made.hub, second, path, "--sites", LATE[0], "--out", third, code=4)
        assert "isolate 1 contributions" in said
        made.kohort("hub", "leave", made.hub, second, path, "--sites", ",".join(LATE), "--out", third, *words)
        assert model_of(third) == model_of(first)
        for folder in (first, second, third):
            verify_ledger(folder)
