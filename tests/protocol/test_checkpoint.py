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


def _round(number: int) -> Checkpoint:
    """A checkpoint after some rounds, with their history."""
    history = [{"round": place + 1, "accuracy": 1 / (place + 3)} for place in range(number + 1)]
    state = {"weights": np.full(2, float(number))}
    return Checkpoint(round=number, state=state, sites={}, ledger_lines=number, facts={"history": history, "costs": {}})


def test_the_history_is_appended_and_given_back(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    sizes = []
    for number in range(200):
        checkpoints.save(_round(number))
        sizes.append((tmp_path / f"checkpoint-{number % 2}.khrt").stat().st_size)
    assert sizes[-1] - sizes[10] < 20, "a checkpoint must not grow with the rounds before it"
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == 200
    for number in (199, 198):  # the newest, and the one before it, which needs one line less
        found, _ = Checkpoints(tmp_path).latest(ledger_lines=number)
        assert found is not None
        assert (found.round, found.facts) == (number, _round(number).facts)


def test_a_run_that_goes_on_drops_lines_that_nothing_counts(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for number in range(5):
        checkpoints.save(_round(number))
    with (tmp_path / "history.jsonl").open("ab") as file:
        file.write(b'{"round": 6, "acc')  # a process that was killed here
    again = Checkpoints(tmp_path)
    found, notes = again.latest(ledger_lines=9)
    assert found is not None
    assert (found.round, notes) == (4, ())
    again.save(_round(5))
    again.save(_round(6))
    found, _ = Checkpoints(tmp_path).latest(ledger_lines=9)
    assert found is not None
    assert found.facts == _round(6).facts


def test_a_checkpoint_whose_history_is_lost_or_altered_does_not_count(tmp_path: Path) -> None:
    checkpoints, path = Checkpoints(tmp_path), tmp_path / "history.jsonl"
    for number in range(5):
        checkpoints.save(_round(number))
    whole = path.read_bytes()
    path.write_bytes(b"".join(whole.splitlines(keepends=True)[:4]))  # a machine that lost power lost the last line
    found, notes = Checkpoints(tmp_path).latest(ledger_lines=9)
    assert found is not None
    assert (found.round, len(notes)) == (3, 1)
    path.write_bytes(whole.replace(b'"round": 2', b'"round": 3'))
    assert Checkpoints(tmp_path).latest(ledger_lines=9)[0] is None
    path.unlink()
    assert Checkpoints(tmp_path).latest(ledger_lines=9)[0] is None
    assert "does not match history.jsonl beside it" in Checkpoints(tmp_path).latest(ledger_lines=9)[1][0]


def test_a_checkpoint_that_holds_its_history_is_still_read(tmp_path: Path) -> None:
    history = [{"round": 1, "accuracy": 0.5}]
    facts = {"round": 0, "format": 4, "owners": {}, "ledger_lines": 2, "facts": {"history": history, "costs": {}}}
    content = encode(Payload(arrays={"plan/weights": np.arange(3.0)}, blobs={"facts": json.dumps(facts).encode()}))
    (tmp_path / "checkpoint-0.khrt").write_bytes(hashlib.blake2b(content, digest_size=32).digest() + content)
    found, notes = Checkpoints(tmp_path).latest(ledger_lines=2)
    assert found is not None
    assert (found.facts["history"], notes) == (history, ())
