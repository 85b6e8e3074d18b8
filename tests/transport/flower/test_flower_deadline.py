"""Whoever dies in the middle of an answer keeps the hub no longer than the hub's own deadline."""

from __future__ import annotations

import time
from typing import Any

import pytest

pytest.importorskip("flwr")

from kohort.transport.flower.environment import LONGEST_UPLOAD
from kohort.transport.flower.run import LAST_LOOK, _give_up_at


@pytest.mark.parametrize(
    ("left", "low", "high"),
    [(3600.0, LONGEST_UPLOAD, LONGEST_UPLOAD), (20.0, LAST_LOOK, 20.0), (-1.0, LAST_LOOK, LAST_LOOK)],
)
def test_parts_of_an_answer_are_waited_for_until_the_deadline(
    monkeypatch: pytest.MonkeyPatch, left: float, low: float, high: float
) -> None:
    from flwr.supercore.inflatable import inflatable_utils
    from flwr.superlink.grid import http_grid

    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(inflatable_utils, "pull_objects", lambda *_, **options: asked.append(options))
    monkeypatch.setattr(http_grid, "pull_objects", http_grid.pull_objects)  # put back afterwards
    _give_up_at(time.monotonic() + left)
    http_grid.pull_objects(object_ids=["a"], pull_object_fn=lambda _: b"")
    (options,) = asked
    assert low <= options["max_time"] <= high
    assert options["object_ids"] == ["a"]
