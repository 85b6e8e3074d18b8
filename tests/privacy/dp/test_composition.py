"""Events grouped by how they compose, under either relation of neighbours."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kohort.errors import ConfigError
from kohort.privacy.dp.composition import parts_of
from kohort.privacy.dp.events import Event, PrivateEvent

BATCH, SAMPLED = Event(sigma=2.0, steps=8), Event(sigma=3.0, rate=0.1, steps=5)
REPLACED = PrivateEvent(epsilon=0.5, delta=1e-6, relation="replace-one")
REMOVED = PrivateEvent(epsilon=0.5, delta=1e-6)


def test_full_batches_add_up_to_one_and_equal_steps_and_releases_are_counted() -> None:
    found = parts_of([BATCH, BATCH, SAMPLED, SAMPLED, REMOVED, REMOVED], "add-or-remove-one")
    assert found.mu == pytest.approx(math.sqrt(16 / 4))
    assert found.sampled == {(3.0, 0.1): 10}
    assert found.pure == {0.5: 2}
    assert found.leak == pytest.approx(2e-6)


def test_replacing_a_unit_is_removing_and_adding_one() -> None:
    found = parts_of([BATCH, REMOVED, REPLACED], "replace-one")
    assert found.mu == pytest.approx(2 * math.sqrt(8 / 4))
    assert found.pure == {1.0: 1, 0.5: 1}
    assert found.leak == pytest.approx((1 + math.exp(0.5)) * 1e-6 + 1e-6)


def test_what_is_not_proved_is_refused() -> None:
    with pytest.raises(ConfigError, match="nothing is known of them where one is added"):
        parts_of([REPLACED], "add-or-remove-one")
    with pytest.raises(ConfigError, match="under add-or-remove-one only"):
        parts_of([SAMPLED], "replace-one")
    unknown: Any = "both"
    with pytest.raises(ConfigError, match="unknown neighbouring relation 'both'"):
        parts_of([], unknown)


def test_a_release_that_only_leaks_is_counted_in_the_leak_alone() -> None:
    found = parts_of([PrivateEvent(epsilon=0.0, delta=1e-5)], "add-or-remove-one")
    assert (found.mu, dict(found.sampled), dict(found.pure), found.leak) == (0.0, {}, {}, 1e-5)
    assert found.spreads == []
