"""Figures 5 and 6: one round against federated averaging of the same network, which is tuned and timed warm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Final

from kohort.studies.harness.charts import line_chart, point
from kohort.studies.harness.found import Found, Part, ResultTable
from kohort.studies.harness.runs import Runs, RunSummary
from kohort.studies.oneshot.plans import OneshotDepth, OneshotSession, Table, fedavg_plan, oneshot_plan

__all__ = ["AveragingChoice", "choose", "first_within", "smoothed", "with_fedavg"]

TUNED_SITES: Final = 20
WIDTH: Final = 10
"""Rounds whose mean accuracy a setting is judged by."""
ENOUGH: Final = 0.001
"""How much accuracy on validation rows FedAvg may lose for fewer rounds."""


@dataclass(frozen=True)
class AveragingChoice:
    """The settings of FedAvg that were chosen on validation rows, and their accuracy there."""

    rate: float
    batch: int
    rounds: int
    accuracy: float


def smoothed(curve: Sequence[float], width: int = WIDTH) -> list[float]:
    """The moving average of a curve: one lucky round of an unstable rate counts little.

    Args:
        curve: One value per round.
        width: How many values up to each place are averaged; fewer at the beginning.

    Returns:
        As many values.
    """
    return [fmean(curve[max(0, place - width + 1) : place + 1]) for place in range(len(curve))]


def first_within(curve: Sequence[float], margin: float) -> int:
    """The first round, counted from 1, whose accuracy is within `margin` of the curve's end.

    Args:
        curve: Accuracy by round; at least one.
        margin: How far below its end a round may be; 0 or more.

    Returns:
        The number of the round.
    """
    return next(number for number, value in enumerate(curve, start=1) if value >= curve[-1] - margin)


def choose(runs: Runs[RunSummary], table: Table, fraction: float, depth: OneshotDepth) -> AveragingChoice:
    """The rate and batch whose last rounds are best on validation rows, and as few rounds as come near that.

    Args:
        runs: Runs over sites whose validation rows are held out.
        table: The table.
        fraction: Share of the sites that take part in a round.
        depth: The rates and batches to choose among, and the most rounds.

    Returns:
        The choice. No test row is looked at.
    """
    found = []
    for rate, batch in product(depth.rates, depth.batches):
        plan = fedavg_plan(
            table, sites=TUNED_SITES, fraction=fraction, rounds=depth.rounds, batch=batch, rate=rate
        )  # fmt: skip
        (curve,) = (one.curve for one in runs.of(plan))
        steady = smoothed(curve)
        found.append(AveragingChoice(rate, batch, first_within(steady, ENOUGH), steady[-1]))
    return max(found, key=lambda one: one.accuracy)


def with_fedavg(session: OneshotSession, tuning: Runs[RunSummary], tables: Mapping[str, Table]) -> Part:
    """Figures 5 and 6: accuracy, time, energy and bytes of both, by the number of sites.

    Args:
        session: The study's session.
        tuning: Runs over sites whose validation rows are held out.
        tables: The tables on this machine.

    Returns:
        The settings that were chosen, the table, and the two figures.
    """
    depth, out = session.depth, session.out
    compared = [name for name in depth.fedavg_tables if name in tables]
    rows, settings, time, energy = [], [], [], []
    for name in ["susy"] if "susy" in compared else compared:
        table = tables[name]
        session.say(f"{name}: FedAvg, tuning")
        chosen = {fraction: choose(tuning, table, fraction, depth) for fraction in depth.fractions}
        settings += [row for fraction, one in chosen.items() for row in _settings(f"{name}, {fraction:g}", one)]
        for sites in depth.fedavg_sites:
            session.say(f"{name}: FedAvg, {sites} sites")
            plans = {f"one shot, {scheme}": oneshot_plan(table, sites=sites, scheme=scheme)
                     for scheme in ("none", "bfv")}  # fmt: skip
            for fraction, one in chosen.items():
                plans[f"FedAvg, fraction {fraction}"] = fedavg_plan(
                    table, sites=sites, fraction=fraction, rounds=one.rounds, batch=one.batch, rate=one.rate
                )
            for series, plan in plans.items():
                (found,) = session.runs.of(plan, seeds=[0])
                time.append(point(name, series, sites, found.training_seconds))
                energy.append(point(name, series, sites, found.watt_hours))
                where = f"{name}, {sites} sites, {series}"
                rows += [
                    Found(f"{where}: accuracy (%)", found.percent),
                    Found(f"{where}: slowest site + hub, s", found.training_seconds),
                    Found(f"{where}: processor, s", found.seconds["cpu_total"]),
                    Found(f"{where}: bytes up", found.bytes["up"]),
                    Found(f"{where}: bytes down", found.bytes["down"]),
                ]
    figures = [
        line_chart(out / "figure-5.svg", title="Training time", points=time, x="sites", y="s", dots=True),
        line_chart(out / "figure-6.svg", title="Energy", points=energy, x="sites", y="Wh", dots=True),
    ]
    results = [
        ResultTable("Settings of FedAvg, by fraction, chosen on validation rows", "not in the paper", settings),
        ResultTable(f"Against FedAvg of at most {depth.rounds} rounds", "Figures 5 and 6", rows),
    ]
    return Part(results, figures)


def _settings(where: str, one: AveragingChoice) -> list[Found]:
    return [
        Found(f"{where}: rate", one.rate),
        Found(f"{where}: batch", one.batch),
        Found(f"{where}: rounds", one.rounds),
        Found(f"{where}: accuracy on validation rows (%)", 100 * one.accuracy),
    ]
