"""Membership inference on silos: the area under the curve of a threshold on the loss."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.studies.anonymised.silo_membership import loss_threshold_area


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
