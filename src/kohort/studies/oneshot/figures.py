"""Figures 2-4, 7 and Tables 1-2: accuracy, time and energy by the number of sites, and communication."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import Any

from kohort.runs.run import run
from kohort.studies.harness.charts import line_chart, point
from kohort.studies.harness.found import Found, Part, ResultTable
from kohort.studies.oneshot.paper import ACCURACY, ROUNDS_SKIN, SHAPES, SITE_ROWS
from kohort.studies.oneshot.plans import OneshotSession, Table, bounds_around_mean, listed, oneshot_plan

__all__ = ["by_sites", "communication", "linear_accuracy", "more_power", "rounds_of_equation_16", "shapes",
           "warm_up"]  # fmt: skip

TRAINING_SHARE = 0.7
FRACTIONS = (0.1, 0.3, 0.5, 0.7, 1.0)
MOST_SITES = 20_000
Tables = Mapping[str, Table]
Curves = dict[str, list[dict[str, Any]]]


def shapes(tables: Tables) -> Part:
    """Tables 1 and 2, for the tables on this machine and their replicas.

    Args:
        tables: The tables on this machine, by name.

    Returns:
        Both tables.
    """
    sizes, per_site = [], []
    for name, table, printed in listed(tables, SHAPES):
        rows = table.frame.height
        found = {"rows": rows, "attributes": len(table.inputs), "classes": table.classes}
        for (what, ours), paper in zip(found.items(), printed, strict=True):
            sizes.append(Found(f"{name}: {what}", ours, paper))
        train = round(TRAINING_SHARE * rows)
        per_site.append(Found(f"{name}: training rows", train, SITE_ROWS[name][0]))
        per_site.append(Found(f"{name}: rows of each of 20,000 sites", train // MOST_SITES, SITE_ROWS[name][1]))
    return Part([ResultTable("Tables", "Table 1", sizes), ResultTable("Rows per site", "Table 2", per_site)])


def warm_up(table: Table, schemes: Iterable[str]) -> None:
    """One run with every secure sum, so that the runs whose time is measured find code and keys loaded.

    Args:
        table: Any table of the study.
        schemes: The secure sums.
    """
    for scheme in schemes:
        run(oneshot_plan(table, sites=3, scheme=scheme), seed=0)


def linear_accuracy(session: OneshotSession, tables: Tables) -> Part:
    """The paper's model: accuracy over several splits.

    Args:
        session: The running study; its seeds are the splits.
        tables: The tables on this machine, by name.

    Returns:
        One table with accuracies in per cent.
    """
    rows = [
        Found.mean(name, session.runs.values(oneshot_plan(table, sites=20), lambda one: one.percent), printed)
        for name, table, printed in listed(tables, ACCURACY)
    ]
    return Part([ResultTable("Accuracy of the one-layer network (%)", "Tables 3 and 4", rows)])


def by_sites(session: OneshotSession, tables: Tables) -> Part:
    """Figures 2 to 4: whether every split and secure sum predicts the same, and the time and energy each takes.

    Args:
        session: The running study; its depth says which numbers of sites and secure sums are compared.
        tables: The tables on this machine, by name.

    Returns:
        Two tables and the three figures.
    """
    depth, runs = session.depth, session.runs
    rows, costs = [], []
    curves: Curves = {"accuracy": [], "time": [], "energy": []}
    for name, table in tables.items():
        counts = depth.counts.get(name, ())
        for sites, split in product(counts, ("iid", "sorted")):
            for scheme in depth.schemes[sites]:
                session.say(f"{name}: {sites} sites, {split}, {scheme}")
                seeds = depth.repetitions[sites]
                found = runs.of(oneshot_plan(table, sites=sites, split=split, scheme=scheme), seeds=seeds)
                known = runs.of(oneshot_plan(table, sites=counts[0]), seeds=seeds)
                pairs = list(zip(found, known, strict=True))
                where, series = f"{name}, {sites:,} sites, {split}, {scheme}", f"{split}, {scheme}"
                differ = sum(int((one.labels != other.labels).sum()) for one, other in pairs)
                rows.append(Found(f"{where}: labels that differ", differ, 0))
                equal = all(one.same_total(other) for one, other in pairs)
                rows.append(Found(f"{where}: total equal bit by bit", equal))
                seconds, energy = [one.training_seconds for one in found], [one.watt_hours for one in found]
                curves["accuracy"].append(point(name, series, sites, fmean(one.percent for one in found)))
                curves["time"].append(point(name, series, sites, fmean(seconds)))
                curves["energy"].append(point(name, series, sites, fmean(energy)))
                costs += [
                    Found.mean(f"{where}: slowest site + hub, s", seconds),
                    Found.mean(f"{where}: processor, s", [one.seconds["cpu_total"] for one in found]),
                    Found.mean(f"{where}: watt-hours", energy),
                    Found(f"{where}: bytes up", found[0].bytes["up"]),
                    Found(f"{where}: bytes down", found[0].bytes["down"]),
                ]
    figures = [
        line_chart(session.out / f"figure-{number}.svg", title=title, points=points, x="sites", y=unit, dots=True)
        for number, title, unit, points in (
            (2, "Accuracy by sites", "%", curves["accuracy"]),
            (3, "Training time", "s", curves["time"]),
            (4, "Energy", "Wh", curves["energy"]),
        )
    ]
    same = ResultTable("Same labels for every split, scheme and number of sites", "Figure 2", rows)
    return Part([same, ResultTable("Time, energy and bytes by sites", "Figures 3 and 4", costs)], figures)


def rounds_of_equation_16(site_rows: Sequence[int], inputs: int, fraction: float) -> float:
    """The number of rounds from which a federated method sends more numbers: (mean of min(m, n_i) + 1) / fraction.

    Args:
        site_rows: n_i, the rows of each site.
        inputs: m, the inputs without the bias, as the paper counts them.
        fraction: The share of the sites that takes part in a round.

    Returns:
        The number, not rounded.
    """
    return (fmean(min(inputs, rows) for rows in site_rows) + 1) / fraction


def communication(session: OneshotSession, tables: Tables) -> Part:
    """Figure 7, equation 16 with 20,000 sites, and the bytes that are really sent.

    Args:
        session: The running study.
        tables: The tables on this machine, by name.

    Returns:
        Two tables and the figure. Bytes are those of a run with the depth's number of sites.
    """
    sites, rows, sent, points = session.depth.bytes_sites, [], [], []
    for name, table, (_, site_rows) in listed(tables, SITE_ROWS):
        for fraction in FRACTIONS:
            needed = rounds_of_equation_16([max(1, site_rows)], len(table.inputs), fraction)
            printed = ROUNDS_SKIN if name == "skin" and fraction == 0.3 else None
            rows.append(Found(f"{name}, fraction {fraction}: rounds", needed, printed))
            points.append(point("20,000 sites", name, 100 * fraction, needed))
        weights = 4 * (len(table.inputs) + 1) * (table.classes if table.classes > 2 else 1)
        for scheme in ("none", "masks", "bfv"):
            (found,) = session.runs.of(oneshot_plan(table, sites=sites, scheme=scheme), seeds=[0])
            where, up, down = f"{name}, {sites} sites, {scheme}", found.bytes["up"] / sites, found.bytes["down"] / sites
            sent += [
                Found(f"{where}: bytes up per site", up),
                Found(f"{where}: bytes down per site", down),
                Found(f"{where}: FedAvg rounds with as many bytes up", up / weights),
            ]
    path = session.out / "figure-7.svg"
    figure = line_chart(path, title="Rounds", points=points, x="sites per round (%)", y="rounds", dots=True)
    results = [
        ResultTable("Rounds from which one shot sends fewer numbers", "Figure 7, eq 16", rows),
        ResultTable("Bytes that are sent", "eq 16 counts numbers", sent),
    ]
    return Part(results, [figure])


def more_power(session: OneshotSession, tables: Tables) -> Part:
    """A random layer in the same round, and Newton steps.

    Args:
        session: The running study; its depth names the tables and the number of random features of each.
        tables: The tables on this machine, by name.

    Returns:
        One table with accuracies in per cent.
    """
    rows = []
    for name, size in session.depth.features.items():
        if name not in tables:
            continue
        table = tables[name]
        bounds = bounds_around_mean(table)
        for what, plan in (
            (f"{size} random features", oneshot_plan(table, sites=20, oneshot={"features": size}, bounds=bounds)),
            ("5 Newton steps", oneshot_plan(table, sites=20, oneshot={"rounds": 6})),
        ):
            found = session.runs.of(plan, seeds=session.depth.power_seeds)
            rows.append(Found.mean(f"{name}: {what}", [one.percent for one in found]))
    return Part([ResultTable("With a random layer or Newton steps (%)", "not in the paper", rows)])
