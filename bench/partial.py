"""What partially-federated learning costs: the secure count in CPU time, and a whole run on Adult.

A secure count is the agreement on a secret, the masked sum that tells how many keys there are, the masked sum of the
tables (double masking, Shamir shares, confirmations), and taking the keys out of the total. Hub and sites run in one
process and their CPU time is added up. The engine is left out: doors and ledgers have a benchmark of their own.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from time import perf_counter, process_time

import numpy as np

from bench.harness import Row, best_of
from kohort.crypto.counting import cells_for, estimate, fingerprints, peel, sketch, table
from kohort.crypto.group_secret import STEPS, GroupHub, GroupSite
from kohort.crypto.identity.parties import Identity
from kohort.crypto.sums.masks import SCHEME
from kohort.crypto.sums.modular import P61
from kohort.crypto.sums.scheme import Integers, SessionKeys, SumContext, Trust
from kohort.crypto.sums.session import SumSession
from kohort.rng import Streams
from kohort.runs.config import read_plan
from kohort.runs.run import run

__all__ = ["NAME", "SUMMARY", "measure"]

NAME = "partial"
KEYS, THRESHOLD, ROUNDS = 10_000, 100, 100
CPU_LIMITS = {10: 0.5, 100: 8.0}
RUN_LIMIT = 15.0
REPETITIONS = 3
SUMMARY = (
    f"Secure counts of {KEYS:,} keys, hub and all sites together, in CPU seconds: the masked sum of a closed domain "
    "(one count a key), and the whole count of open keys (secret, size, table, peeling) with every key known to a "
    f"third of the sites. Then a partial run on Adult as in examples/partial.toml, {ROUNDS} rounds, in seconds of the "
    "clock. Best of several."
)

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "partial.toml"


def measure() -> list[Row]:
    masked_sum(3, 10)  # imports and first use are not what is measured
    open_count(3, 10)
    rows = []
    for sites, limit in CPU_LIMITS.items():
        for what, count in (("masked sum of a closed domain", masked_sum), ("whole count of open keys", open_count)):
            cpu = best_of(REPETITIONS, lambda count=count, sites=sites: count(sites, KEYS))  # type: ignore[misc]
            setting = f"{sites} sites x {KEYS:,} keys, {what}"
            rows.append(Row.within(setting, ours=cpu, peer="limit", theirs=limit, unit="s"))
    run(read_plan(EXAMPLE, overrides=["train.rounds=2"]), seed=0)
    seconds = best_of(REPETITIONS, _whole_run)
    rows.append(Row.within(f"partial run on Adult, {ROUNDS} rounds", ours=seconds, peer="limit", theirs=RUN_LIMIT,
                           unit="s"))  # fmt: skip
    return rows


def masked_sum(sites: int, keys: int) -> float:
    """CPU seconds of one sum of capped counts over a domain everybody knows."""
    generator = np.random.default_rng(sites)
    vectors = [generator.integers(0, THRESHOLD, keys).astype(np.uint64) for _ in range(sites)]
    began = process_time()
    total = _summed(vectors, request="closed")
    cpu = process_time() - began
    _require(np.array_equal(total, np.sum(vectors, axis=0)))
    return cpu


def open_count(sites: int, keys: int) -> float:
    """CPU seconds of a whole count of keys nobody listed before."""
    generator = np.random.default_rng(sites)
    held = [np.flatnonzero(generator.random(keys) < 1 / 3) for _ in range(sites)]
    counts = [generator.integers(1, THRESHOLD, len(own)) for own in held]
    texts = [[f"key {place}".encode() for place in own] for own in held]
    began = process_time()
    secrets = _agreed(sites)
    prints = [fingerprints(secret, own) for secret, own in zip(secrets, texts, strict=True)]
    cells = cells_for(estimate(_summed([sketch(own) for own in prints], request="size")))
    tables = [table(own, count, cells) for own, count in zip(prints, counts, strict=True)]
    found = peel(_summed(tables, request="table"), cells)
    frequent = int((found.totals >= THRESHOLD).sum())
    cpu = process_time() - began
    totals = np.zeros(keys, dtype=np.int64)
    for own, count in zip(held, counts, strict=True):
        totals[own] += count
    _require(found.stuck_cells == 0 and frequent == int((totals >= THRESHOLD).sum()))
    return cpu


def _names(sites: int) -> tuple[str, ...]:
    return tuple(f"site {place}" for place in range(sites))


def _agreed(sites: int) -> list[bytes]:
    """The group's secret as every site knows it."""
    names = _names(sites)
    hub = GroupHub(names)
    known = {name: identity.public for name, identity in _identities(names).items()}
    sides = {
        name: GroupSite(names, name, b"bench", Streams.seeded(place), identity, known.get)
        for place, (name, identity) in enumerate(_identities(names).items())
    }
    inboxes = dict.fromkeys(names, b"")
    for step in range(STEPS):
        answers = {name: sides[name].reply(step, inbox) for name, inbox in inboxes.items()}
        inboxes = dict(hub.route(step, answers))
    secrets = [side.secret for side in sides.values() if side.secret is not None]
    _require(len(secrets) == sites and len(set(secrets)) == 1)
    return secrets


@cache
def _identities(names: tuple[str, ...]) -> dict[str, Identity]:
    """The sites' lasting keys, which a run makes once."""
    return {name: Identity.from_secret(name, Streams.seeded(place).bytes("id")) for place, name in enumerate(names)}


def _trust(names: tuple[str, ...], name: str) -> Trust:
    identities = _identities(names)
    return Trust(identities[name], None, 3, lambda other: identities[other].public)


@cache
def _session_keys(names: tuple[str, ...]) -> dict[str, SessionKeys]:
    """The keys of the run's session, which sites agree on once; `bench/secure_sums.py` measures that."""
    session = SumSession(run="bench", plan_hash="plan", members=names)
    keys = {
        name: SCHEME.session_keys(session, name, Streams.seeded(place), _trust(names, name))
        for place, name in enumerate(names)
    }
    message = SCHEME.gather({name: own.announcement for name, own in keys.items()})
    for own in keys.values():
        own.agree(names, message)
    return keys


def _summed(vectors: list[Integers], *, request: str) -> Integers:
    """The total of one vector a site, through the whole conversation of double masking."""
    names = _names(len(vectors))
    context = SumContext(run="bench", round=0, request=request, sites=names, length=len(vectors[0]), modulus=P61)
    hub = SCHEME.hub_side(context)
    sides = {
        name: SCHEME.site_side(context, name, Streams.seeded(place), _trust(names, name), keys)
        for place, (name, keys) in enumerate(_session_keys(names).items())
    }
    inboxes = dict.fromkeys(names, b"")
    own = dict(zip(names, vectors, strict=True))
    for step in range(SCHEME.steps):
        replies = {
            name: sides[name].reply(step, inbox, own[name] if step == SCHEME.contributes_at else None)
            for name, inbox in inboxes.items()
        }
        for name, reply in replies.items():
            hub.take(step, name, reply)
        inboxes = dict(hub.inboxes(step))
    total, survivors = hub.total()
    _require(survivors == names)
    return total


def _whole_run() -> float:
    began = perf_counter()
    found = run(read_plan(EXAMPLE, overrides=[f"train.rounds={ROUNDS}"]), seed=0)
    seconds = perf_counter() - began
    _require(found.rounds == ROUNDS and found.received is not None)
    return seconds


def _require(holds: bool) -> None:
    if not holds:
        raise RuntimeError("what was measured did not give the right result")
