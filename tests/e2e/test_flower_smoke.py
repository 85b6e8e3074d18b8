"""Three real sites and a hub on this machine, with TLS and node keys: the same model as in one process, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.flower_federation import federation, plan_with, tables_of

pytest.importorskip("flwr")

from kohort.privacy.ledger.verify import verify_ledger
from kohort.runs.config import read_plan
from kohort.runs.run import run

pytestmark = pytest.mark.e2e


def test_three_sites_train_over_tls(tmp_path: Path) -> None:
    plan = plan_with(tmp_path, rounds=2)
    with federation(tmp_path, plan, tables_of(3)) as made:
        result = made.run(tmp_path / "out", "--seed", 1)
        shown = made.kohort("hub", "status", made.hub, "--json")
    local = run(read_plan(plan), seed=1, out=tmp_path / "local")
    assert (result["engine"], result["sites"], result["rounds"]) == ("flower", 3, 2)
    assert result["dropped"] == result["refused"] == {}
    assert result["metrics"]["accuracy"] == local.accuracy
    for name in ("model.safetensors",):
        assert (tmp_path / "out" / "model" / name).read_bytes() == (tmp_path / "local" / "model" / name).read_bytes()
    assert shown.count('"online"') == 3
    assert verify_ledger(tmp_path / "out").releases == 3 * 3
    for name in tables_of(3):
        assert verify_ledger(made.site(name)).releases == 3
