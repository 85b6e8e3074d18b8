"""The laws every method keeps, as plain functions: give them a method's name, they raise when a law is broken.

Law 1: the bytes the engine was handed are exactly the bytes the ledgers list.
Law 2: a site's policy wins, before any byte leaves.
Law 4: same seed, same result; one by one equals many at once, bit for bit and byte for byte.
And every message has one byte form, which it comes back to.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import polars as pl

from kohort.crypto.sums.key_holder import KEY_HOLDER
from kohort.errors import RefusedError
from kohort.methods.registry import find_method
from kohort.privacy.ledger.verify import verify_ledger
from kohort.protocol import engine as engine_module
from kohort.protocol.site import Answers, Site
from kohort.protocol.wire import decode, encode
from kohort.rng import Streams
from kohort.runs.config import Plan, load_plan
from kohort.runs.run import Outcome, run

SITE_SIZES = {"a-small": 31, "b-large": 140, "c-odd": 67, "d-even": 64}


def tables(*, seed: int = 11) -> dict[str, pl.DataFrame]:
    """One table a site, of mixed sizes, with every kind of column a method may ask for."""
    random = np.random.default_rng(seed)
    made = {}
    for name, rows in SITE_SIZES.items():
        age = random.integers(20, 80, rows)
        dose = random.normal(4.0, 1.5, rows).round(2)
        ward = random.choice(["north", "south", "west"], rows)
        chance = 1 / (1 + np.exp(-(age - 50) / 12 - (dose - 4) + (ward == "west")))
        outcome = np.where(random.random(rows) < chance, "ill", "well")
        made[name] = pl.DataFrame({"age": age, "dose": dose, "ward": ward, "outcome": outcome})
    return made


def plan_of(method: str, *, train: dict[str, Any] | None = None, policy: dict[str, Any] | None = None) -> Plan:
    """A small plan for `method`, with the keys its `example` names."""
    own = find_method(method).example_keys()
    return load_plan(
        {
            "data": {
                "table": "in-memory table",
                "target": "outcome",
                "quasi": ["age", "ward"],
                "sensitive": ["outcome"],
                "features": "rest",
                "bounds": {"age": [0, 100], "dose": [-10, 20]},
            },
            "sites": {"split": "files", **own.get("sites", {})},
            "model": {"hidden": [5]},
            "train": {"rounds": 3, "batch": 16, "lr": 0.01, **(train or {})},
            "method": own["method"],
            "policy": {"min_rows": 1, "raw": True, "min_k": 2, **(policy or {})},
        }
    )


@dataclass
class Carried:
    """What the engine was handed: (site, task, round, bytes) of every reply."""

    replies: list[tuple[str, str, int, bytes]] = field(default_factory=list)


@contextmanager
def listening() -> Iterator[Carried]:
    """Stand between the sites and the engine and keep a copy of everything that comes out."""
    carried, real = Carried(), engine_module.answer

    def answer(sites: Any, request: Any, **options: Any) -> Answers:
        answers: Answers = real(sites, request, **options)
        for site, data in zip(answers.sites, answers.each(), strict=True):
            carried.replies.append((site.name, request.task, request.round, bytes(data)))
        return answers

    with mock.patch.object(engine_module, "answer", answer):
        yield carried


@dataclass(frozen=True)
class Ran:
    """A finished run with what was carried and what the ledger says."""

    outcome: Outcome
    carried: Carried
    folder: Path
    seed: int

    @property
    def ledger(self) -> bytes:
        """The ledger file."""
        return (self.folder / "ledger" / "ledger.jsonl").read_bytes()

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The ledger's lines."""
        return [json.loads(line) for line in self.ledger.splitlines()]


def carry_out(plan: Plan, folder: Path, *, seed: int = 5, many: bool = True) -> Ran:
    """Run `plan` on the contract tables while listening."""
    with listening() as carried:
        outcome = run(plan, out=folder, seed=seed, tables=tables(), many=many)
    return Ran(outcome, carried, folder, seed)


def check_law_1(ran: Ran) -> None:
    """Every reply the engine was handed has one ledger line with its size and keyed digest, and every line a reply."""
    root = Streams.seeded(ran.seed)
    keys = {name: Streams(root.bytes("site", name), ran.seed).bytes("ledger") for name in (*SITE_SIZES, KEY_HOLDER)}
    carried = Counter(
        (
            site,
            task,
            number,
            len(data),
            hashlib.blake2b(data, key=keys[site], digest_size=32).hexdigest(),
        )
        for site, task, number, data in ran.carried.replies
    )
    listed = Counter(
        (line["site"], line["what"], line["round"], line["size"], line["digest"])
        for line in ran.lines
        if line["event"] == "release"
    )
    assert carried, "nothing was carried: the check would hold for any ledger"
    assert carried == listed
    assert sum(line["size"] for line in ran.lines if line["event"] == "release") == ran.outcome.bytes["up"]
    found = verify_ledger(ran.folder)
    assert found.releases == len(ran.carried.replies)
    assert found.head == ran.outcome.ledger_head


def check_law_2(method: str, folder: Path) -> None:
    """A policy that answers nothing, or lets nothing out, stops the plan before any byte leaves."""
    shut = {
        "no task": {"tasks": ["no-such-task"]},
        "no claim": {
            "raw": False,
            "domain": False,
            "min_rows": 10**9,
            "min_k": 10**9,
            "min_sum_sites": 10**9,
            "epsilon": 1e-12,
        },
    }
    for name, policy in shut.items():
        place = folder / name
        with listening() as carried:
            try:
                run(plan_of(method, policy=policy), out=place, seed=1, tables=tables())
            except RefusedError:
                pass
            else:
                raise AssertionError(f"{method} ran although the policy lets out {name}")
        assert carried.replies == []
        lines = [json.loads(line) for line in (place / "ledger" / "ledger.jsonl").read_bytes().splitlines()]
        assert {line["event"] for line in lines} == {"open", "refusal"}
        assert {line["site"] for line in lines if line["event"] == "refusal"} == set(SITE_SIZES)
        assert verify_ledger(place).releases == 0


def check_law_4(method: str, folder: Path, *, train: dict[str, Any] | None = None) -> None:
    """Same seed, same bytes; one by one, same bytes; another seed, other bytes."""
    plan = plan_of(method, train=train)
    first = carry_out(plan, folder / "first")
    again = carry_out(plan, folder / "again")
    alone = carry_out(plan, folder / "alone", many=False)
    other = carry_out(plan, folder / "other", seed=6)
    for same in (again, alone):
        assert _numbers(same) == _numbers(first)
        assert same.ledger == first.ledger
        for name in ("head.json", "receipts.jsonl"):
            assert (same.folder / "ledger" / name).read_bytes() == (first.folder / "ledger" / name).read_bytes()
        assert same.carried.replies == first.carried.replies
        assert same.outcome.bytes == first.outcome.bytes
        assert same.outcome.history == first.outcome.history
        assert same.outcome.metrics == first.outcome.metrics
    assert _numbers(other) != _numbers(first)
    assert other.ledger != first.ledger


def _numbers(ran: Ran) -> dict[str, bytes]:
    """The arrays of a model of any kind."""
    return {name: array.tobytes() for name, array in ran.outcome.model.save().arrays.items()}


def check_round_trip(ran: Ran) -> None:
    """Every message decodes, and encodes to the very same bytes."""
    assert ran.carried.replies
    for _, _, _, data in ran.carried.replies:
        assert encode(decode(data)) == data


__all__ = [
    "SITE_SIZES",
    "Carried",
    "Ran",
    "Site",
    "carry_out",
    "check_law_1",
    "check_law_2",
    "check_law_4",
    "check_round_trip",
    "listening",
    "plan_of",
    "tables",
]
