"""A small federation to hold methods to the laws: four tables, a plan, and a record of every byte that left a site."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import polars as pl

from kohort.methods.registry import find_method
from kohort.protocol import engine as engine_module
from kohort.protocol.answers import Answers
from kohort.protocol.answers import answer as answer_in_process
from kohort.protocol.site import Site
from kohort.protocol.task import Request
from kohort.runs.config import Plan, load_plan, only_read
from kohort.runs.run import Outcome, run

__all__ = ["SITE_SIZES", "Carried", "RecordedRun", "carry_out", "listening", "plan_of", "tables"]

SITE_SIZES = {"a-small": 31, "b-large": 140, "c-odd": 67, "d-even": 64}
"""Rows per site."""
WARDS, OUTCOMES = ("north", "south", "west"), ("ill", "well")
"""The categories of `tables()`."""
Section = Mapping[str, object]
"""Keys of one section of a plan."""


def tables(*, seed: int = 11) -> dict[str, pl.DataFrame]:
    """Make one table per site, of mixed sizes, with numbers, categories and a class that depends on them.

    Args:
        seed: Another seed makes other rows.

    Returns:
        The tables by site name; as many rows each as `SITE_SIZES` says.
    """
    random = np.random.default_rng(seed)
    made = {}
    for name, rows in SITE_SIZES.items():
        age = random.integers(20, 80, rows)
        dose = random.normal(4.0, 1.5, rows).round(2)
        ward = random.choice(WARDS, rows)
        chance = 1 / (1 + np.exp(-(age - 50) / 12 - (dose - 4) + (ward == "west")))
        outcome = np.where(random.random(rows) < chance, *OUTCOMES)
        made[name] = pl.DataFrame({"age": age, "dose": dose, "ward": ward, "outcome": outcome})
    return made


def plan_of(
    method: str,
    *,
    train: Section | None = None,
    policy: Section | None = None,
    own: Section | None = None,
    model: Section | None = None,
    data: Section | None = None,
) -> Plan:
    """Make a small plan over `tables()` for a registered method, with the keys that the method's `example` names.

    Of the other keys of the small plan, it holds those that the method reads.

    Args:
        method: The method's name.
        train: Keys of `[train]` besides those of the small plan.
        policy: Keys of `[policy]`. By default a site allows everything with two rows behind it.
        own: Keys of `[method]` besides those of the method's `example`.
        model: Keys of `[model]` besides those of the small plan.
        data: Keys of `[data]` besides those of the small plan.

    Returns:
        The plan, ready for `kohort.run` with `tables=tables()`.

    Raises:
        ConfigError: No such method is registered, or a key is not one that a plan with this method may have.
    """
    example = find_method(method).example_keys()
    small = only_read(
        {
            "data": {
                "table": "in-memory table",
                "target": "outcome",
                "quasi": ["age", "ward"],
                "sensitive": ["outcome"],
                "features": "rest",
                "bounds": {"age": [0, 100], "dose": [-10, 20]},
            },
            "sites": {"split": "files", **example.get("sites", {})},
            "model": {"hidden": [5]},
            "train": {"rounds": 3, "batch": 16, "lr": 0.01},
            "method": {**example["method"], **(own or {})},
            "policy": {"min_rows": 1, "raw": True, "min_k": 2, "pairs": "open", **(policy or {})},
        }
    )
    given = {"train": train, "model": model, "data": data}
    small = {**small, **{name: {**small.get(name, {}), **(keys or {})} for name, keys in given.items()}}
    plan = load_plan(small)
    if any(phase.dp is not None for phase in find_method(method).phases(plan.config, plan.train)):
        declared = {"ward": list(WARDS), "outcome": list(OUTCOMES)}  # a plan with a budget learns no domain
        return load_plan({**small, "data": {**small["data"], "categories": declared}})
    return plan


@dataclass
class Carried:
    """What the engine was handed."""

    requests: int = 0
    """How many requests the sites were sent."""
    replies: list[tuple[str, str, int, bytes]] = field(default_factory=list)
    """(site, task, round, bytes) of every reply."""


@contextmanager
def listening(*, stop_before: int | None = None) -> Iterator[Carried]:
    """Stand between the sites and the engine in this process, and keep a copy of every reply.

    Args:
        stop_before: Interrupt the run before this request (counted from 0), as Ctrl-C would.

    Yields:
        The record, which grows while the run is under way.

    Raises:
        KeyboardInterrupt: Request `stop_before` was due.
    """
    carried = Carried()

    def answer(sites: tuple[Site, ...], request: Request, *, many: bool = True) -> Answers:
        if carried.requests == stop_before:
            raise KeyboardInterrupt
        carried.requests += 1
        answers = answer_in_process(sites, request, many=many)
        for site, data in zip(answers.sites, answers.each(), strict=True):
            carried.replies.append((site.name, request.task, request.round, bytes(data)))
        return answers

    with mock.patch.object(engine_module, "answer", answer):
        yield carried


@dataclass(frozen=True)
class RecordedRun:
    """A finished run with its folder and what was carried."""

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
        """The ledger's lines, parsed."""
        return [json.loads(line) for line in self.ledger.splitlines()]

    def files(self) -> dict[str, bytes]:
        """The files that the same plan and seed must give again: the model (not its card for people) and the ledger.

        Not the ledger's closing line either: it holds the hashes of the card and of `run.json`, with their timings.

        Returns:
            Contents by path below the run's folder.
        """
        kept = [*(self.folder / "model").rglob("*"), *(self.folder / "ledger").rglob("*")]
        return {
            path.relative_to(self.folder).as_posix(): path.read_bytes()
            for path in sorted(kept)
            if path.is_file() and path.name not in {"README.md", "results.jsonl"}
        }


def carry_out(plan: Plan, folder: Path, *, seed: int = 5, many: bool = True, resume: bool = False) -> RecordedRun:
    """Run `plan` over `tables()` in this process and record what is carried.

    Args:
        plan: For example from `plan_of`.
        folder: Where model, ledger and `run.json` are written.
        seed: The run's seed.
        many: Whether sites are asked many at once where a task can; False asks them one by one.
        resume: Go on with an interrupted run in `folder`.

    Returns:
        The finished run.

    Raises:
        KohortError: The run failed; nothing is caught here.
    """
    with listening() as carried:
        outcome = run(plan, out=folder, seed=seed, tables=tables(), many=many, resume=resume)
    return RecordedRun(outcome, carried, folder, seed)
