"""Tables 1 and 2: seconds of the server, of the slowest client, and of the transfer at 500 KB/s.

Measured, sites one by one, the fastest of some repetitions. The paper counts the rows' transfer and calls the models'
negligible, which a hundred rounds of ours are not; both are shown, and the total is the paper's sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kohort.runs.config import Plan
from kohort.runs.run import run
from kohort.studies.harness.lines import row
from kohort.studies.partial.charts import draw_seconds
from kohort.studies.partial.figures import Part
from kohort.studies.partial.paper import TIMES_EQUAL, TIMES_FASTER_HUB, Times
from kohort.studies.partial.runs import PAPER, Letter, found_of, paper_gate
from kohort.studies.registry import Say

__all__ = ["Measured", "measure_times", "running_times"]

FASTER: Final = 10.0


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The seconds of one setting, hub and sites on the same kind of machine."""

    server: float
    client: float
    rows: float
    """Transfer of the rows the slowest site ships."""
    models: float
    """Transfer of everything else: weights to and fro, counts, domains."""

    def total(self, speed: float) -> float:
        """The paper's sum, with a hub that is `speed` times as fast as a site."""
        return self.server / speed + self.client + self.rows


def measure_times(plan: Plan, *, repetitions: int, seed: int = 0) -> Measured:
    """The fastest of several runs, part by part: other work on the machine only ever adds."""
    found = [found_of(run(plan, seed=seed, many=False)) for _ in range(repetitions)]
    rows = found[0].row_bytes / plan.costs.bytes_per_second
    return Measured(
        server=min(item.seconds["hub"] for item in found),
        client=min(item.seconds["slowest_site"] for item in found),
        rows=rows,
        models=found[0].seconds["transfer"] - rows,
    )


def running_times(out: Path, *, ks: Sequence[int], ls: Sequence[int], rounds: int, repetitions: int, say: Say) -> Part:
    """Tables 1 and 2."""
    run(paper_gate(PAPER, "k", 300, rounds=2), seed=0, many=False)  # compile first: that is nobody's running time
    measured: dict[tuple[Letter, int], Measured] = {}
    chosen: list[tuple[Letter, int]] = [*(("k", k) for k in ks), *(("l", threshold) for threshold in ls)]
    for letter, threshold in chosen:
        say(f"Running time: {letter} = {threshold}")
        plan = paper_gate(PAPER, letter, threshold, rounds=rounds)
        measured[letter, threshold] = measure_times(plan, repetitions=repetitions)
    tables, bars = [], []
    for source, speed, printed, panel in (
        ("Table 1", 1.0, TIMES_EQUAL, "equal power"),
        ("Table 2", FASTER, TIMES_FASTER_HUB, "hub ten times faster"),
    ):
        tables.append({"name": f"Seconds, {panel}, {rounds} rounds", "source": source,
                       "rows": _rows(measured, printed, speed)})  # fmt: skip
        bars += [
            {"panel": panel, "setting": f"{letter} = {threshold}", "server": item.server / speed,
             "slowest client": item.client, "transfer": item.rows}
            for (letter, threshold), item in measured.items()
        ]  # fmt: skip
    figure = draw_seconds(out / "tables-1-2.svg", title=f"Seconds for {rounds} rounds, ours", rows=bars)
    return Part(tables=tuple(tables), figures=(figure,))


def _rows(
    measured: Mapping[tuple[Letter, int], Measured], printed: Mapping[str, Mapping[int, Times]], speed: float
) -> list[dict[str, Any]]:
    central = measured.get(("k", 1))
    rows = []
    for (letter, threshold), item in measured.items():
        name = {1: "central", 555: "FedAvg"}.get(threshold, f"{letter} = {threshold}")
        theirs: Sequence[float | None] = printed[letter].get(threshold, (None,) * 4)
        ours = (item.server / speed, item.client, item.rows, item.total(speed))
        for part, figure, value in zip(("server", "slowest client", "transfer", "total"), theirs, ours, strict=True):
            rows.append(row(f"{name}: {part}", figure, value))
        rows.append(row(f"{name}: transfer of models and counts", None, item.models))
        if central is not None:
            known = theirs[3]
            relative = None if known is None else known / printed["k"][1][3]
            rows.append(row(f"{name}: total, central = 1", relative, item.total(speed) / central.total(speed)))
    return rows
