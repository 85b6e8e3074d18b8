"""Checkpoints: what sites share is stored once, and what an earlier version stored is still read."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np

from kohort.protocol.checkpoint import Checkpoint, Checkpoints
from kohort.protocol.wire import Payload, encode

SITES = tuple(f"site-{number}" for number in range(10))


def _checkpoint(shared: np.ndarray, own: dict[str, np.ndarray]) -> Checkpoint:
    sites = {site: {"learner.shared": shared, "learner.own": own[site]} for site in SITES}
    return Checkpoint(round=1, state={"weights": np.arange(3.0)}, sites=sites, ledger_lines=7, facts={"history": []})


def test_what_all_sites_share_is_stored_once_and_given_back_to_each(tmp_path: Path) -> None:
    shared, own = np.arange(10_000.0), {site: np.full(3, place) for place, site in enumerate(SITES)}
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(_checkpoint(shared, own))
    (path,) = tmp_path.glob("checkpoint-*.khrt")
    assert path.stat().st_size < 2 * shared.nbytes
    found, notes = checkpoints.latest(ledger_lines=7)
    assert found is not None
    assert notes == ()
    for site in SITES:
        assert np.array_equal(found.sites[site]["learner.shared"], shared)
        assert np.array_equal(found.sites[site]["learner.own"], own[site])
    assert np.array_equal(found.state["weights"], np.arange(3.0))


def test_equal_arrays_that_are_not_shared_stay_apart(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    own = {site: np.zeros(3) for site in SITES}
    own["site-3"] = np.ones(3)
    checkpoints.save(_checkpoint(np.zeros(2), own))
    found, _ = checkpoints.latest(ledger_lines=7)
    assert found is not None
    assert [found.sites[site]["learner.own"].sum() for site in SITES] == [0, 0, 0, 3, 0, 0, 0, 0, 0, 0]


def test_a_checkpoint_with_a_copy_per_site_is_still_read(tmp_path: Path) -> None:
    facts = {"round": 4, "format": 3, "owners": {"learner.own": list(SITES)}, "ledger_lines": 2, "facts": {}}
    arrays = {"site/learner.own": np.arange(10.0)[:, None] * np.ones(4), "plan/weights": np.arange(3.0)}
    content = encode(Payload(arrays=arrays, blobs={"facts": json.dumps(facts).encode()}))
    (tmp_path / "checkpoint-0.khrt").write_bytes(hashlib.blake2b(content, digest_size=32).digest() + content)
    found, notes = Checkpoints(tmp_path).latest(ledger_lines=2)
    assert found is not None
    assert (found.round, notes) == (4, ())
    assert all(np.array_equal(found.sites[site]["learner.own"], np.full(4, place)) for place, site in enumerate(SITES))
