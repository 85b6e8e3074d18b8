"""Choose a setting privately: try settings drawn at random a random number of times, and keep the best run alone.

A coin of its own decides for every training row whether it is trained on or judged by, once for all tries. Each try
draws a setting, runs its plan, and counts the right predictions on the judging rows, plus Gaussian noise worth a run's
epsilon. A row is in one of the two parts, so a try costs it one run or one noisy count; what the best of all tries
costs is `kohort.privacy.dp.selection`.

Guarantee: the price holds for those who see the kept run and not how many tries there were, or how long they took. The
tries lie in a folder of their own until they have lost. Test rows are measured on in clear and are not covered.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from kohort.errors import ConfigError, IntegrityError, KohortError, RefusedError
from kohort.files import disk_errors, scratch_folder
from kohort.models.base import Model
from kohort.models.rows import encode_test_rows
from kohort.privacy.dp.accounting import AnyEvent, Event, Relation, calibrate, describe
from kohort.privacy.dp.selection import draw_tries, selection_epsilon
from kohort.privacy.ledger.summary import spent_by_site
from kohort.rng import Streams
from kohort.rounds.plan_account import PlanAccount, plan_account
from kohort.runs.agreed import approved_plan_for
from kohort.runs.backend import Simulation
from kohort.runs.config import Plan
from kohort.runs.results.outcome import Outcome
from kohort.runs.run import run
from kohort.runs.simulation import Population, populate
from kohort.tables.persons import persons_of

__all__ = ["JUDGED", "Selected", "SelectionCost", "select", "selection_cost"]

JUDGED: Final = 0.2
"""The chance of a training row to be judged by instead of trained on."""


@dataclass(frozen=True, kw_only=True)
class SelectionCost:
    """What a private selection costs, known before the first try."""

    epsilon: float
    delta: float
    score_sigma: float
    """Standard deviation of the noise on a count of right predictions."""
    mean: float
    unit: str
    scope: str
    relation: Relation
    events: tuple[str, ...]
    """What every setting exposes a row to, as ledgers tell it."""

    def to_mapping(self) -> dict[str, Any]:
        """Plain values for JSON, as those of a comparison without privacy."""
        return {
            "runs": self.mean,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "unit": self.unit,
            "scope": self.scope,
            "void": False,
            "how": "private selection: the best of a random number of tries",
            "score_sigma": self.score_sigma,
            "simulated": True,
            "rows": "all",
        }


@dataclass(frozen=True, kw_only=True)
class Selected:
    """The run that was kept."""

    setting: int
    outcome: Outcome = field(repr=False)
    price: SelectionCost


def selection_cost(plans: Sequence[Plan], *, tries: float, population: Population) -> SelectionCost:
    """What choosing among plans costs each row.

    Args:
        plans: The settings.
        tries: The mean number of tries.
        population: The sites; their rows are not looked at.

    Returns:
        The price.

    Raises:
        ConfigError: A plan has no budget, hides other units than rows, or has noise that depends on a site's rows.
        RefusedError: The price exceeds the epsilon of a plan's policy.
    """
    accounts = [_account(plan, population) for plan in plans]
    for account in accounts:
        if account.unit != "row":
            raise ConfigError(
                f"private selection is proved for rows, and a setting hides a {account.unit}",
                hint='Use dp.unit = "row"',
            )
    relation = accounts[0].relation
    if any(account.relation != relation for account in accounts):
        raise ConfigError(
            "the settings are private under different relations, and no account covers both",
            hint="Sweep mechanisms of one kind",
        )
    budgets = [account.planned for account in accounts]
    delta = max((own for _, own in budgets if own), default=0.0)
    if not delta:
        raise ConfigError("the settings have no delta, and private selection needs one", hint="Use Gaussian noise")
    weakest = min(epsilon for epsilon, _ in budgets)
    sigma = calibrate(epsilon=weakest, delta=delta, rate=1.0, steps=1, relation=relation)
    judged: list[AnyEvent] = [Event(sigma=sigma, steps=1)]
    lists = [judged, *(list(account.events) for account in accounts)]
    price = SelectionCost(
        epsilon=selection_epsilon(lists, mean=tries, delta=delta, relation=relation),
        delta=delta,
        score_sigma=sigma,
        mean=tries,
        unit="row",
        scope=" or ".join(dict.fromkeys(account.scope for account in accounts)),
        relation=relation,
        events=tuple(describe(account.events) for account in accounts),
    )
    cap = min(plan.policy.epsilon for plan in plans)
    if price.epsilon > cap:
        raise RefusedError(
            f"choosing privately costs epsilon {price.epsilon:.4g}, which exceeds the policy's {cap:g}",
            hint="Lower method.dp.epsilon or --private, or raise policy.epsilon",
        )
    return price


def _account(plan: Plan, population: Population) -> PlanAccount:
    """The account of a plan that does not depend on how many rows a site has."""
    approved = approved_plan_for(plan, schema=population.schema, run="", sites=population.names)
    if not approved.has_budget:
        raise ConfigError(
            "a setting has no privacy budget, so nothing is chosen privately", hint="Set method.dp.epsilon"
        )
    return plan_account(approved)


@dataclass(frozen=True)
class _Judging(Simulation):
    """A simulation whose judging rows were taken out before."""

    population: Population | None = field(default=None, repr=False)

    def populate(self, plan: Plan, streams: Streams) -> Population:
        """The same rows in every try."""
        del streams
        if self.population is None:
            raise AssertionError(f"no rows for {plan.method}")
        return self.population


def parted(whole: Population, generator: np.random.Generator) -> tuple[Population, pl.DataFrame]:
    """Decide for every training row by a coin whether it is judged by; rows of a person have one coin in common.

    The coins depend on no row's values, so a row is trained on or judged by, and the proof for rows holds.

    Args:
        whole: The sites.
        generator: The coins.

    Returns:
        The sites without the judging rows, and those rows.

    Raises:
        ConfigError: A site keeps no row, or none is judged by.
    """
    named = whole.schema.identifiers
    persons = persons_of(whole.frame[named[0]]) if named else None
    coins = generator.random(whole.frame.height if persons is None else int(persons.max()) + 1) < JUDGED
    judged = coins if persons is None else coins[persons]
    kept = np.concatenate([[0], np.cumsum(~judged)])
    starts = kept[whole.starts].astype(np.int64)
    if not judged.any() or not np.diff(starts).all():
        raise ConfigError("the sites have too few rows to put some aside", hint="Choose without --private")
    low = None if whole.low is None else (kept[whole.starts[:-1] + whole.low] - starts[:-1]).astype(np.int64)
    rest = whole.frame.filter(pl.Series(~judged))
    return replace(whole, frame=rest, starts=starts, low=low), whole.frame.filter(pl.Series(judged))


def select(plans: Sequence[Plan], *, out: Path, tries: float, seed: int = 0) -> Selected:
    """Choose among settings privately, and keep the run of the one chosen.

    Args:
        plans: The settings; they differ in what is trained, not in `[data]` and `[sites]`.
        out: The folder of the run that is kept; it must not exist.
        tries: The mean number of tries.
        seed: Seed of everything.

    Returns:
        The kept run and the price.

    Raises:
        ConfigError: The settings have other rows, or no private choice among them is proved.
        RefusedError: The price exceeds a policy.
        KohortError: Every try failed.
    """
    if len({str([plan.to_mapping()[part] for part in ("data", "sites")]) for plan in plans}) > 1:
        raise ConfigError("private selection needs the same rows in every try", hint="Do not sweep [data] or [sites]")
    streams = Streams.seeded(seed)
    whole = populate(plans[0], streams)
    price = selection_cost(plans, tries=tries, population=whole)
    rest, aside = parted(whole, streams.generator("private choice", "coins"))
    draws, noise = (streams.generator("private choice", name) for name in ("tries", "score"))
    place = _Judging(population=rest)
    best: tuple[float, int, Outcome] | None = None
    failed: KohortError | None = None
    with disk_errors(out), scratch_folder(out) as made:
        kept = made / "best"
        for number in range(draw_tries(tries, draws)):
            setting, folder = int(draws.integers(len(plans))), made / "try"
            try:
                outcome = run(plans[setting], out=folder, seed=seed * 100_000 + number, backend=place)
                _check_claims(folder, price)
                score = _right(outcome.model, aside) + price.score_sigma * float(noise.standard_normal())
            except IntegrityError:
                raise
            except KohortError as error:  # whether a try fails may depend on rows, so it loses and nothing is told
                failed = error
                shutil.rmtree(folder, ignore_errors=True)
                continue
            if score > (-inf if best is None else best[0]):
                best = score, setting, outcome
                shutil.rmtree(kept, ignore_errors=True)
                folder.rename(kept)
            shutil.rmtree(folder, ignore_errors=True)
        if best is None:
            raise failed or ConfigError("no try succeeded", hint="Run one setting with: kohort run")
        kept.rename(out)
    return Selected(setting=best[1], outcome=best[2], price=price)


def _right(model: Model | None, rows: pl.DataFrame) -> float:
    """How many rows a model predicts right. One row more or less changes it by 1 at most."""
    if model is None or model.task != "classification":
        raise ConfigError("private selection counts right classes, and the target is a number", hint="Drop --private")
    usable = rows.filter(pl.Series(model.encoder.predictable(rows)))
    encoded = encode_test_rows(model.encoder, usable)
    return float(np.sum(model.codes(encoded.x) == encoded.y))


def _check_claims(folder: Path, price: SelectionCost) -> None:
    """What a try's ledger claims must be what the price was computed from."""
    claimed = {claim.event for claims in spent_by_site(folder).values() for claim in claims}
    if not claimed <= set(price.events):
        raise IntegrityError(
            "a try spent other events than its plan says", hint="Report it with the version of kohort; choose by hand"
        )
