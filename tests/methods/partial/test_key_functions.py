"""Keys inside runs: similarities of made images, and key functions that are installed where the rows are."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.anonymity.checker.measures import measure
from kohort.anonymity.gate.keys import key_version
from kohort.errors import ConfigError, RefusedError, SiteError
from kohort.runs.config import Plan, load_plan
from kohort.runs.explain import explain_plan
from kohort.runs.run import Outcome, run
from kohort.testing.site_servers import ServedSites

SIDE = 4
PIXELS = tuple(f"pixel{place}" for place in range(SIDE * SIDE))
MODULE = """
from kohort.anonymity.gate.keys import GateKey

def _make(text):
    planes = int(text or 1)
    return lambda pixels: [tuple(row[:planes]) for row in (pixels.to_numpy() > 8).tolist()]

def _by_all(text):
    return lambda pixels: (pixels.to_series() > pixels.to_series().mean()).to_list()

KEY = GateKey(name="bright", make=_make)
BY_ALL = GateKey(name="by-all", make=_by_all)
"""


@cache
def images() -> pl.DataFrame:
    """Bright left halves and bright right halves, with noise."""
    generator = np.random.default_rng(2)
    left = generator.random(480) < 0.5
    made = generator.normal(4, 2, (480, SIDE, SIDE))
    made[left, :, : SIDE // 2] += 7
    made[~left, :, SIDE // 2 :] += 7
    pixels = made.clip(0, 16).round().reshape(480, -1)
    return pl.DataFrame(pixels, schema=PIXELS).with_columns(side=pl.Series(np.where(left, "left", "right")))


def plan(gate: dict[str, Any], **method: Any) -> Plan:
    return load_plan(
        {
            "data": {"table": "memory", "target": "side", "quasi": PIXELS, "test": 0.25,
                     "bounds": dict.fromkeys(PIXELS, (0, 16)), "categories": {"side": ["left", "right"]}},
            "sites": {"count": 4},
            "model": {"kind": "logistic"},
            "train": {"rounds": 3, "optimizer": "sgd", "lr": 0.3, "batch": 32},
            "policy": {"raw": True, "trust_counts": True, "min_rows": 1, "min_k": 2},
            "method": {"name": "partial", "gate": {"k": 20, "release_k": 5, "release_l": 1, **gate}, **method},
        }
    )  # fmt: skip


def outcome(given: Plan, *, served: bool = False) -> Outcome:
    tables = {"": images()}
    return run(given, seed=1, tables=tables, backend=ServedSites(tables) if served else None)


def test_images_are_trained_on_end_to_end() -> None:
    exact, alike = outcome(plan({"count": "local"})), outcome(plan({"key": "similarity:4"}))
    assert exact.received is None  # no image equals twenty others
    assert alike.received is not None
    assert alike.received.height > 200
    assert measure(alike.received, quasi=[*PIXELS, "sender"]).k >= 5  # on what was released, not on the key
    assert alike.accuracy > 0.9
    raw = outcome(plan({"key": "similarity:2", "released": "raw", "count": "local"}))
    assert any("(100.0%) are unique on the shipped columns" in note for note in raw.notes)


def test_the_contract_calls_a_key_a_rule_and_no_proof() -> None:
    said = explain_plan(plan({"key": "similarity:4"})).steps
    for task in ("partial.share", "partial.count.table"):
        what = next(step.what for step in said if step.task == task)
        assert "its key, similarity:4: a rule of the gate, and no proof that rows are alike" in what
    assert not any("no proof" in step.what for step in explain_plan(plan({})).steps)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module with key functions, installed for this test."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "made_keys", raising=False)
    (tmp_path / "made_keys.py").write_text(MODULE)
    return tmp_path / "made_keys.py"


def test_an_installed_function_makes_keys_and_its_version_is_approved(module: Path) -> None:
    gate = {"key": "function:made_keys:KEY:3", "count": "local", "k": 10}
    given = plan(gate)
    version = given.to_mapping()["method"]["gate"]["key_version"]
    assert len(version) == 32
    assert version in next(step.what for step in explain_plan(given).steps if step.task == "partial.share")
    here, there = outcome(given), outcome(given, served=True)
    assert here.received is not None
    assert there.received is not None
    assert here.received.equals(there.received)
    module.write_text(MODULE + "\n# other code\n")
    assert plan(gate).digest() != given.digest()
    with pytest.raises(RefusedError, match="not the one that the plan was made with") as caught:
        outcome(given, served=True)
    assert caught.value.code == "version"
    assert plan({"key": "similarity:4"}).to_mapping()["method"]["gate"]["key_version"] == ""


def test_a_site_with_other_code_refuses_before_anything_leaves(
    module: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from kohort.methods.partial import config
    from kohort.transport.deployment import site_run

    given, honest = plan({"key": "function:made_keys:KEY", "count": "local"}), site_run.approved_plan_for

    def with_other_code(*arguments: Any, **options: Any) -> Any:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(config, "key_version", lambda _: "f" * 32)
            return honest(*arguments, **options)

    monkeypatch.setattr(site_run, "approved_plan_for", with_other_code)
    folder = tmp_path / "sites"
    with pytest.raises((RefusedError, SiteError), match="fewer than the quorum"):
        run(given, seed=1, backend=ServedSites({"": images()}, folder=folder))
    ledger = (folder / "site-01" / "ledger" / "ledger.jsonl").read_text()
    assert "not the one that the plan was made with" in ledger
    assert '"event":"release"' not in ledger


def test_only_key_functions_that_look_at_a_row_alone_are_called(module: Path) -> None:
    for key, said in [
        ("function:os:system", "os:system is no key function"),
        ("function:no_such_module:KEY", "is not installed here"),
        ("function:made_keys", "named by module and name"),
        ("function:made_keys:KEY-1", "named by module and name"),
    ]:
        with pytest.raises(ConfigError, match=said):
            plan({"key": key})
    with pytest.raises(RefusedError, match="gives a row another key beside other rows"):
        outcome(plan({"key": "function:made_keys:BY_ALL", "count": "local"}))
    budget = {"kept": "sum", "dp": {"epsilon": 2.0, "delta": 1e-6}, "secure": {"sum": "masks"}}
    with pytest.raises(ConfigError, match="may look at other rows"):
        plan({"key": "function:made_keys:KEY", "count": "local"}, **budget)
    assert key_version("bins:a=1;similarity:3") == ""
