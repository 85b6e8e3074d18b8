"""Tables 1 and 2: seconds of the server, of the slowest client, and of the transfer at 500 KB/s.

The sites are measured one by one, and the fastest of some repetitions counts. The paper counts the transfer of rows
and calls that of models negligible, which it is not over a hundred rounds here. Both are shown; the total is the
paper's sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kohort.runs.config import Plan
from kohort.runs.run import run
from kohort.studies.harness.charts import stacked_bars
from kohort.studies.harness.found import Found, Part, ResultTable
from kohort.studies.partial.paper import TIMES_EQUAL, TIMES_FASTER_HUB, Times
from kohort.studies.partial.plans import PAPER, Letter, PartialSession, paper_gate, summarise_partial

__all__ = ["MeasuredTimes", "measure_times", "running_times", "time_rows"]

FASTER: Final = 10.0
PARTS: Final = ("server", "slowest client", "transfer")


@dataclass(frozen=True, kw_only=True)
class MeasuredTimes:
    """The seconds of one setting, with the hub and the sites on the same kind of machine."""

    server: float
    client: float
    rows: float
    """Transfer of the rows that the slowest site sends."""
    models: float
    """Transfer of everything else: weights both ways, counts, domains."""

    def parts(self, speed: float) -> tuple[float, float, float]:
        """Server, slowest client and transfer of rows, with a hub that is `speed` times as fast as a site."""
        return self.server / speed, self.client, self.rows

    def total(self, speed: float) -> float:
        """The paper's sum of the three."""
        return sum(self.parts(speed))


def measure_times(plan: Plan, *, repetitions: int, seed: int = 0) -> MeasuredTimes:
    """The fastest of several runs, part by part: other work on the machine only adds time.

    Args:
        plan: The plan to run, with sites one by one.
        repetitions: How often, at least once.
        seed: The seed of every run.

    Returns:
        Seconds by part. Transfers are bytes divided by the plan's bandwidth.
    """
    found = [summarise_partial(run(plan, seed=seed, many=False)) for _ in range(repetitions)]
    rows = found[0].row_bytes / plan.costs.bytes_per_second
    return MeasuredTimes(
        server=min(one.seconds["hub"] for one in found),
        client=min(one.seconds["slowest_site"] for one in found),
        rows=rows,
        models=found[0].seconds["transfer"] - rows,
    )


def running_times(session: PartialSession) -> Part:
    """Tables 1 and 2: seconds by threshold, with a hub as fast as the sites and one ten times faster.

    Args:
        session: The running study; its depth says which thresholds, and how often each is run.

    Returns:
        Both tables and a bar chart.
    """
    depth, rounds = session.depth, session.depth.rounds
    run(paper_gate(PAPER, "k", 300, rounds=2), seed=0, many=False)  # compile first, outside the measurement
    measured: dict[tuple[Letter, int], MeasuredTimes] = {}
    chosen: list[tuple[Letter, int]] = [*(("k", k) for k in depth.timed_ks), *(("l", l_) for l_ in depth.timed_ls)]
    for letter, threshold in chosen:
        session.say(f"Running time: {letter} = {threshold}")
        plan = paper_gate(PAPER, letter, threshold, rounds=rounds)
        measured[letter, threshold] = measure_times(plan, repetitions=depth.repetitions)
    tables, bars = [], []
    for source, speed, printed, panel in (
        ("Table 1", 1.0, TIMES_EQUAL, "equal power"),
        ("Table 2", FASTER, TIMES_FASTER_HUB, "hub ten times faster"),
    ):
        tables.append(ResultTable(f"Seconds, {panel}, {rounds} rounds", source, time_rows(measured, printed, speed)))
        bars += [
            {"panel": panel, "bar": f"{letter} = {threshold}", "part": part, "value": value}
            for (letter, threshold), one in measured.items()
            for part, value in zip(PARTS, one.parts(speed), strict=True)
        ]
    title = f"Seconds for {rounds} rounds, ours"
    path = session.out / "tables-1-2.svg"
    return Part(tables, [stacked_bars(path, title=title, rows=bars, bars=None, values="seconds", horizontal=True)])


def time_rows(
    measured: Mapping[tuple[Letter, int], MeasuredTimes], printed: Mapping[str, Mapping[int, Times]], speed: float
) -> list[Found]:
    """The rows of Table 1 or 2: the paper's parts and sum, the other transfers, and the sum relative to central.

    Args:
        measured: The seconds by gate and threshold.
        printed: The paper's seconds by gate and threshold: its three parts and their sum.
        speed: How many times faster the hub is than a site.

    Returns:
        Rows in seconds. Those relative to central learning are left out where it was not measured.
    """
    central = measured.get(("k", 1))
    rows = []
    for (letter, threshold), one in measured.items():
        name = {1: "central", 555: "FedAvg"}.get(threshold, f"{letter} = {threshold}")
        theirs: tuple[float | None, ...] = printed[letter].get(threshold, (None,) * 4)
        for part, paper, ours in zip((*PARTS, "total"), theirs, (*one.parts(speed), one.total(speed)), strict=True):
            rows.append(Found(f"{name}: {part}", ours, paper))
        rows.append(Found(f"{name}: transfer of models and counts", one.models))
        if central is not None:
            relative = None if theirs[3] is None else theirs[3] / printed["k"][1][3]
            rows.append(Found(f"{name}: total, central = 1", one.total(speed) / central.total(speed), relative))
    return rows
