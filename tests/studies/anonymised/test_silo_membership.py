"""Membership inference on silos: the area under the curve of a threshold on the loss."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.studies.anonymised import silo_membership as attack
from kohort.studies.anonymised.silo_membership import loss_threshold_area
from kohort.studies.anonymised.study import QUICK
from kohort.studies.anonymised.tables import case_named


def model(**_: Any) -> Any:
    """A model that says of every row how likely its class 1 is: the row's own `p`."""
    encoder = SimpleNamespace(
        within=lambda frame: (frame["p"] >= 0).to_numpy(), target=lambda frame: frame["y"].to_numpy().astype(float)
    )
    return SimpleNamespace(
        encoder=encoder, predict_proba=lambda frame: np.column_stack([1 - frame["p"].to_numpy(), frame["p"].to_numpy()])
    )


def test_the_area_is_how_often_a_member_has_the_smaller_loss() -> None:
    members = pl.DataFrame({"p": [0.9, 0.2, 0.6, -1.0], "y": [1, 0, 1, 1]})  # likelihoods 0.9, 0.8, 0.6; one unreadable
    others = pl.DataFrame({"p": [0.7, 0.5], "y": [1, 0]})  # 0.7, 0.5
    own, rest = [0.9, 0.8, 0.6], [0.7, 0.5]
    by_hand = np.mean([(one > other) + 0.5 * (one == other) for one in own for other in rest])
    assert loss_threshold_area(model(), members, others) == pytest.approx(by_hand)
    assert loss_threshold_area(model(), members, members) == pytest.approx(0.5)


def test_the_attack_runs_on_the_study_s_own_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its plan once dropped a column that the study's table does not have, and the whole study ended there."""
    monkeypatch.setattr(attack, "ROWS", 600)
    monkeypatch.setattr(attack, "ROUNDS", 2)
    session = SimpleNamespace(say=lambda _: None, depth=replace(QUICK, attacks=1))
    part = attack.silo_membership(session, case_named("adult"))
    found = {row.setting: row.ours for row in part.tables[0].rows}
    assert set(found) == {
        f"{rows}: {what}"
        for rows in ("rows as they are", "each silo 3-anonymous")
        for what in ("area", "accuracy on test rows")
    }
    assert all(0 < float(value) < 1 for value in found.values())
