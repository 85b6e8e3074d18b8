"""Figures 2-7 and Tables 1-2: accuracy, time and energy by the number of sites, FedAvg, and communication."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from kohort.studies.harness.lines import row, row_of
from kohort.studies.oneshot.paper import ACCURACY, ROUNDS_SKIN, SHAPES, SITE_ROWS
from kohort.studies.oneshot.runs import Runs, Table, bounds_around_mean, fedavg_plan, oneshot_plan
from kohort.studies.partial.charts import draw_lines
from kohort.studies.registry import Say

__all__ = ["Part", "by_sites", "communication", "linear_accuracy", "more_power", "shapes", "with_fedavg"]

TRAINING_SHARE = 0.7
FRACTIONS = (0.1, 0.3, 0.5, 0.7, 1.0)
MOST_SITES = 20_000


@dataclass(frozen=True)
class Part:
    """Tables, figures and notes of one part of the study."""

    tables: tuple[dict[str, Any], ...] = ()
    figures: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass
class _Curves:
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, panel: str, series: str, x: float, y: float) -> None:
        self.rows.append({"panel": panel, "series": series, "x": x, "y": y})


def shapes(tables: Mapping[str, Table]) -> Part:
    """Tables 1 and 2, for the tables that are here and their replicas."""
    sizes, locals_ = [], []
    for name, table in tables.items():
        listed = name if name in SHAPES else f"{name}:x10"
        copies = int(listed.partition(":x")[2] or 1)
        rows = table.frame.height * copies
        printed, training = SHAPES[listed], SITE_ROWS[listed]
        found = (rows, len(table.inputs), table.classes)
        sizes += [
            row(f"{listed}: {what}", paper, ours)
            for what, paper, ours in zip(("rows", "attributes", "classes"), printed, found, strict=True)
        ]
        train = round(TRAINING_SHARE * rows)
        locals_ += [
            row(f"{listed}: training rows", training[0], train),
            row(f"{listed}: rows of each of 20,000 sites", training[1], train // MOST_SITES),
        ]
    return Part(
        tables=(
            {"name": "Tables", "source": "Table 1", "rows": sizes},
            {"name": "Rows of a site", "source": "Table 2", "rows": locals_},
        )
    )


def linear_accuracy(tables: Mapping[str, Table], runs: Runs, *, seeds: Sequence[int]) -> Part:
    """The paper's model: accuracy over splits."""
    rows = []
    for name, table in tables.items():
        plan = oneshot_plan(table, sites=20)
        rows.append(row_of(name, ACCURACY[name], [runs.of(plan, table, seed).accuracy for seed in seeds]))
    return Part(tables=({"name": "Accuracy of the one-layer network (%)", "source": "Tables 3 and 4", "rows": rows},))


def by_sites(
    out: Path,
    tables: Mapping[str, Table],
    runs: Runs,
    *,
    counts: Mapping[str, Sequence[int]],
    schemes: Mapping[int, Sequence[str]],
    seeds: Mapping[int, Sequence[int]],
    say: Say,
) -> Part:
    """Figures 2-4: the same labels whoever holds the rows and however they are added, and what that takes."""
    accuracy, training, energy = _Curves(), _Curves(), _Curves()
    rows, costs = [], []
    for name, table in tables.items():
        first = counts.get(name, (1,))[0]
        for sites in counts.get(name, ()):
            for split, scheme in product(("iid", "sorted"), schemes[sites]):
                say(f"{name}: {sites} sites, {split}, {scheme}")
                plan = oneshot_plan(table, sites=sites, split=split, scheme=scheme)
                found = [runs.of(plan, table, seed) for seed in seeds[sites]]
                known = [runs.of(oneshot_plan(table, sites=first), table, seed) for seed in seeds[sites]]
                pairs = list(zip(found, known, strict=True))
                differ = sum(int((one.labels != other.labels).sum()) for one, other in pairs)
                equal = all(one.same_total(other) for one, other in pairs)
                where, series = f"{name}, {sites:,} sites, {split}, {scheme}", f"{split}, {scheme}"
                rows.append(row(f"{where}: labels that differ", 0, differ))
                rows.append(row(f"{where}: total equal bit by bit", None, "yes" if equal else "no"))
                seconds = [item.slowest + item.hub for item in found]
                accuracy.add(name, series, sites, fmean(item.accuracy for item in found))
                training.add(name, series, sites, fmean(seconds))
                energy.add(name, series, sites, fmean(item.watt_hours for item in found))
                costs += [
                    row_of(f"{where}: slowest site + hub, s", None, seconds),
                    row_of(f"{where}: processor, s", None, [item.cpu for item in found]),
                    row_of(f"{where}: watt-hours", None, [item.watt_hours for item in found]),
                    row(f"{where}: bytes up", None, found[0].up),
                ]
    figures = (
        draw_lines(out / "figure-2.svg", title="Accuracy by sites", rows=accuracy.rows, x="sites", y="%", dots=True),
        draw_lines(out / "figure-3.svg", title="Training time", rows=training.rows, x="sites", y="s", dots=True),
        draw_lines(out / "figure-4.svg", title="Energy", rows=energy.rows, x="sites", y="Wh", dots=True),
    )
    return Part(
        tables=(
            {"name": "Same labels for every split, scheme and number of sites", "source": "Figure 2", "rows": rows},
            {"name": "Time, energy and bytes by sites", "source": "Figures 3 and 4", "rows": costs},
        ),
        figures=figures,
    )


def with_fedavg(
    out: Path,
    tables: Mapping[str, Table],
    runs: Runs,
    *,
    counts: Sequence[int],
    fractions: Sequence[float],
    rounds: int,
    say: Say,
) -> Part:
    """Figures 5 and 6: one round against a hundred, with the same network."""
    time, energy = _Curves(), _Curves()
    rows = []
    for name, table in tables.items():
        for sites in counts:
            say(f"{name}: FedAvg, {sites} sites")
            plans = {
                **{
                    f"one shot, {scheme}": oneshot_plan(table, sites=sites, scheme=scheme) for scheme in ("none", "bfv")
                },
                **{
                    f"FedAvg, fraction {fraction}": fedavg_plan(table, sites=sites, fraction=fraction, rounds=rounds)
                    for fraction in fractions
                },
            }
            for series, plan in plans.items():
                found = runs.of(plan, table)
                time.add(name, series, sites, found.slowest + found.hub)
                energy.add(name, series, sites, found.watt_hours)
                where = f"{name}, {sites} sites, {series}"
                rows += [
                    row(f"{where}: accuracy (%)", None, found.accuracy),
                    row(f"{where}: slowest site + hub, s", None, found.slowest + found.hub),
                    row(f"{where}: processor, s", None, found.cpu),
                    row(f"{where}: bytes up and down", None, found.up + found.down),
                ]
    return Part(
        tables=({"name": f"Against FedAvg of {rounds} rounds", "source": "Figures 5 and 6", "rows": rows},),
        figures=(
            draw_lines(out / "figure-5.svg", title="Training time", rows=time.rows, x="sites", y="s", dots=True),
            draw_lines(out / "figure-6.svg", title="Energy", rows=energy.rows, x="sites", y="Wh", dots=True),
        ),
    )


def rounds_of_equation_16(site_rows: Sequence[int], inputs: int, fraction: float) -> float:
    """From so many rounds on a federated method sends more numbers: (mean of min(m, n_i) + 1) / fraction.

    The paper's m leaves the bias out.
    """
    return (fmean(min(inputs, rows) for rows in site_rows) + 1) / fraction


def communication(out: Path, tables: Mapping[str, Table], runs: Runs, *, sites: int) -> Part:
    """Figure 7, equation 16 with 20,000 sites, and what travels for real."""
    curves = _Curves()
    rows, real = [], []
    for name, table in tables.items():
        listed = name if name in SITE_ROWS else f"{name}:x10"
        local = max(1, SITE_ROWS[listed][1])
        for fraction in FRACTIONS:
            needed = rounds_of_equation_16([local], len(table.inputs), fraction)
            printed = ROUNDS_SKIN if name == "skin" and fraction == 0.3 else None
            rows.append(row(f"{listed}, fraction {fraction}: rounds", printed, needed))
            curves.add("20,000 sites", listed, 100 * fraction, needed)
        weights = 4 * (len(table.inputs) + 1) * (table.classes if table.classes > 2 else 1)
        for scheme in ("none", "masks", "bfv"):
            found = runs.of(oneshot_plan(table, sites=sites, scheme=scheme), table)
            real.append(row(f"{name}, {sites} sites, {scheme}: bytes up of a site", None, found.up / sites))
            real.append(
                row(
                    f"{name}, {sites} sites, {scheme}: FedAvg rounds of as many bytes up",
                    None,
                    found.up / sites / weights,
                )
            )
    figure = draw_lines(
        out / "figure-7.svg", title="Rounds", rows=curves.rows, x="sites a round (%)", y="rounds", dots=True
    )
    return Part(
        tables=(
            {"name": "Rounds from which one shot sends fewer numbers", "source": "Figure 7, eq 16", "rows": rows},
            {"name": "Bytes that travel", "source": "eq 16 counts numbers", "rows": real},
        ),
        figures=(figure,),
    )


def more_power(tables: Mapping[str, Table], runs: Runs, *, seeds: Sequence[int], features: Mapping[str, int]) -> Part:
    """A random layer in the same round, and Newton steps."""
    rows = []
    for name, size in features.items():
        if name not in tables:
            continue
        table = tables[name]
        layer = oneshot_plan(table, sites=20, oneshot={"features": size}, bounds=bounds_around_mean(table))
        newton = oneshot_plan(table, sites=20, oneshot={"rounds": 6})
        rows += [
            row_of(f"{name}: {size} random features", None, [runs.of(layer, table, seed).accuracy for seed in seeds]),
            row_of(f"{name}: 5 Newton steps", None, [runs.of(newton, table, seed).accuracy for seed in seeds]),
        ]
    return Part(tables=({"name": "More power (%)", "source": "not in the paper", "rows": rows},))
