"""The rows of a phase: a person's rows train or judge, never both."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl

from kohort.models.rows import Rows
from kohort.protocol.plan.approved import TrainSection
from kohort.protocol.plan.phases import TrainingPhase
from kohort.protocol.state import SiteStates
from kohort.rng import Streams
from kohort.rounds.phase_rows import rows_of

PERSONS, EACH = 60, 5


def site(person: pl.Series | None) -> Any:
    count = PERSONS * EACH
    rows = Rows(np.arange(count, dtype=np.float32)[:, None], np.zeros(count, dtype=np.float32), person=person)
    return SimpleNamespace(
        name="a",
        training_rows=rows,
        count=count,
        streams=Streams.seeded(4),
        table=SimpleNamespace(low=None, count=count),
        state=SiteStates().get,
    )


def test_a_person_judges_with_all_rows_or_none() -> None:
    phase = TrainingPhase(train=TrainSection(), held_out=0.3)
    named = site(pl.Series(np.arange(PERSONS * EACH) % PERSONS))
    trained, judges = rows_of(named, phase), rows_of(named, phase, held_out=True)
    assert trained.person is not None
    assert judges.person is not None
    assert trained.count + judges.count == PERSONS * EACH
    assert not set(trained.person) & set(judges.person)
    assert 0.1 < judges.count / (PERSONS * EACH) < 0.5


def test_rows_without_persons_judge_by_a_draw_of_their_own() -> None:
    phase = TrainingPhase(train=TrainSection(), held_out=0.3)
    plain = site(None)
    judges = rows_of(plain, phase, held_out=True)
    drawn = Streams.seeded(4).generator("held-out", "all").random(PERSONS * EACH) < 0.3
    assert judges.x[:, 0].tolist() == np.flatnonzero(drawn).tolist()
    assert judges.person is None
