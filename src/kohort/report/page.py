"""One self-contained page: what the runs learned, what it cost, and what every site gave away.

The page asks the network for nothing and needs no script; its own content policy forbids both. Names of sites, methods
and runs are untrusted text and are escaped. It shows counts, measures and names, never the value of a cell, and it
holds no clock: the same runs give the same page, byte for byte.
"""

from __future__ import annotations

import json
import math
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING, Any

from kohort.errors import ConfigError
from kohort.files import write_atomic
from kohort.report import charts, words
from kohort.report.runs import Run, check_run

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["render", "twin_of", "write_report"]

SITES_NAMED = 40
"""With more sites than this, the page names only the ones served worst and draws the spread of all."""
NAMES_A_REASON = 10

_SHOWN_OF_PLAN = {
    "data": ("table", "target", "quasi", "sensitive", "items", "missing", "encoding", "test"),
    "sites": ("count", "split", "quorum"),
    "model": ("kind", "hidden", "activation", "dtype"),
    "train": ("rounds", "local_epochs", "batch", "optimizer", "lr", "fraction", "aggregate"),
    "policy": ("raw", "domain", "min_rows", "min_k", "min_l", "max_t", "min_sum_sites", "epsilon", "delta"),
    "costs": ("bytes_per_second", "watts"),
}
_PACKAGES = ("kohort", "numpy", "numba", "polars", "altair")


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A drawing, the words for whoever cannot see it, and the words beneath it."""

    svg: str
    alt: str
    caption: str


@dataclass(frozen=True, kw_only=True)
class Board:
    """The headline table of runs that can be compared: all of classes, or all of numbers."""

    columns: tuple[str, ...]
    keys: tuple[str, ...]
    runs: tuple[Run, ...]
    by_round: Chart | None
    by_site: Chart | None
    sites: tuple[SiteLine, ...]
    spread: tuple[SpreadLine, ...]
    site_count: int


@dataclass(frozen=True, kw_only=True)
class SiteLine:
    """One site: its rows, and the figure of every run on its test rows."""

    name: str
    rows: int | None
    test_rows: int | None
    scores: tuple[float | None, ...]


@dataclass(frozen=True, kw_only=True)
class SpreadLine:
    """How evenly one run serves its sites."""

    run: Run
    lowest: float
    quarter: float
    median: float
    three_quarters: float
    highest: float


@dataclass(frozen=True, kw_only=True)
class Aside:
    """Sites that did not take part for the same reason."""

    what: str
    reason: str
    count: int
    names: tuple[str, ...]
    """The first few of them."""


def write_report(
    path: Path, runs: Sequence[Mapping[str, Any]], *, title: str, plan: Mapping[str, Any] | None = None
) -> Path:
    """Write the page to `path` and its JSON twin beside it, each whole or not at all; gives the twin's path back.

    `runs` are the JSON objects of finished runs, or `{"method": ..., "error": ...}` for one that did not finish.
    """
    twin = twin_of(path)
    page = render(runs, title=title, plan=plan).encode()
    content = {"title": title, "plan": plan, "versions": _versions(), "runs": list(runs)}
    write_atomic(twin, (json.dumps(_finite(content), indent=1, allow_nan=False) + "\n").encode())
    write_atomic(path, page)
    return twin


def twin_of(path: Path) -> Path:
    """Where the JSON twin of a page lies."""
    if path.suffix.lower() not in {".html", ".htm"}:
        raise ConfigError(f"a report is an HTML page, not {path.name}", hint="Let --out end in .html")
    return path.with_suffix(".json")


def render(runs: Sequence[Mapping[str, Any]], *, title: str, plan: Mapping[str, Any] | None = None) -> str:
    """The page as text."""
    checked = _uniquely_named([check_run(run, where="a run given to the report") for run in runs])
    if not checked:
        raise ConfigError("there is no run to report", hint="Carry out a plan first: kohort run PLAN.toml --out DIR")
    finished = [run for run in checked if not run.error]
    shared = words.printable(plan)
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            title=words.printable(title),
            lead=_lead(finished, shared),
            boards=_boards(finished),
            finished=finished,
            failed=[run for run in checked if run.error],
            asides={run.label: _asides(run) for run in finished},
            summaries=_summaries(),
            kinds=words.kinds_in_order({item.kind for run in finished for item in run.disclosed}),
            bytes_chart=_chart(
                charts.bytes_by_kind(finished),
                alt="Bars: megabytes that left the sites in each run, by kind of guarantee.",
                caption="Bytes count what passed the doors, as the ledgers list it.",
            ),
            seconds_chart=_chart(
                charts.seconds_by_part(finished),
                alt="Bars: seconds of the slowest site, the hub and the transfer in each run.",
                caption="How long it would take with every site on its own machine.",
            ),
            plan=_shown_plan(shared),
            versions=_versions(),
        )
    )


def _boards(runs: Sequence[Run]) -> list[Board]:
    """Classifiers and regressions are never set side by side: their figures do not compare."""
    found = []
    for is_classifier in (True, False):
        chosen = tuple(run for run in runs if run.is_classifier == is_classifier)
        if chosen:
            found.append(_board(chosen, is_classifier=is_classifier))
    return found


def _board(runs: tuple[Run, ...], *, is_classifier: bool) -> Board:
    score = "accuracy" if is_classifier else "R²"
    names = list(dict.fromkeys(name for run in runs for name in (*run.site_rows, *run.by_site)))
    measured = [name for name in names if any(name in run.by_site for run in runs)]
    few = len(names) <= SITES_NAMED
    drawing = charts.score_by_site(runs, measured, title=score) if few else charts.score_spread(runs, title=score)
    lines = [_site_line(name, runs) for name in names]
    return Board(
        columns=("accuracy", "F1", "AUC") if is_classifier else ("R²", "RMSE", "MAE"),
        keys=("accuracy", "f1", "auc") if is_classifier else ("r2", "rmse", "mae"),
        runs=runs,
        by_round=_chart(
            charts.score_by_round(runs, title=f"{score} on the test rows"),
            alt=f"Lines: {score} on the test rows after each round, one line a run; it ends at "
            + ", ".join(f"{run.label} {words.measure(run.score)}" for run in runs)
            + ".",
            caption=f"{score[0].upper()}{score[1:]} after each round"
            + ("; a level line is a run without rounds." if any(len(run.history) < 2 for run in runs) else "."),
        ),
        by_site=_chart(
            drawing,
            alt=f"{'Dots' if few else 'Lines'}: {score} on the test rows of each site, by run.",
            caption=f"{score[0].upper()}{score[1:]} on each site's own test rows."
            if few
            else f"How many sites reach which {score}.",
        ),
        sites=tuple(lines if few else sorted(lines, key=_worst)[: SITES_NAMED // 2]),
        spread=tuple(line for run in runs if (line := _spread_line(run)) is not None),
        site_count=len(names),
    )


def _site_line(name: str, runs: Sequence[Run]) -> SiteLine:
    measures = [run.by_site.get(name, {}) for run in runs]
    test_rows = next((int(rows) for found in measures if isinstance(rows := found.get("rows"), int | float)), None)
    return SiteLine(
        name=name,
        rows=next((run.site_rows[name] for run in runs if name in run.site_rows), None),
        test_rows=test_rows,
        scores=tuple(run.score_of(found) for run, found in zip(runs, measures, strict=True)),
    )


def _worst(line: SiteLine) -> float:
    return min((score for score in line.scores if score is not None), default=math.inf)


def _spread_line(run: Run) -> SpreadLine | None:
    scores = sorted(score for found in run.by_site.values() if (score := run.score_of(found)) is not None)
    if len(scores) < 2:
        return None
    quarter, median, three_quarters = quantiles(scores, n=4, method="inclusive")
    return SpreadLine(
        run=run, lowest=scores[0], quarter=quarter, median=median, three_quarters=three_quarters, highest=scores[-1]
    )


def _asides(run: Run) -> list[Aside]:
    found: dict[tuple[str, str], list[str]] = {}
    for what, sites in (("refused by their policy", run.refused), ("dropped", run.dropped)):
        for site, reason in sites.items():
            found.setdefault((what, reason), []).append(site)
    return [
        Aside(what=what, reason=reason, count=len(names), names=tuple(names[:NAMES_A_REASON]))
        for (what, reason), names in found.items()
    ]


def _lead(runs: Sequence[Run], plan: Mapping[str, Any] | None) -> str:
    """One sentence that says what was done on what."""
    if not runs:
        return "No run finished."
    table = (plan or {}).get("data", {}).get("table")
    origin = f" of {table}" if isinstance(table, str) else ""
    sites = sorted({run.sites for run in runs})
    many = words.count(sites[0]) if len(sites) == 1 else f"{words.count(sites[0])} to {words.count(sites[-1])}"
    rows = max(sum(run.site_rows.values()) for run in runs)
    held = f"held {words.count(rows)} training rows{origin}" if rows else "took part"
    ways = "each way of learning together" if len(runs) > 1 else "learning together"
    return (
        f"{many} {'site' if sites == [1] else 'sites'} {held}. This page shows what {ways} gained, cost and gave away."
    )


def _shown_plan(plan: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """The part of a plan that tells runs apart; declared categories and bounds stay out of the page."""
    lines = []
    for section, keys in _SHOWN_OF_PLAN.items():
        values = (plan or {}).get(section)
        if isinstance(values, Mapping):
            lines += [(f"{section}.{key}", _as_text(values[key])) for key in keys if values.get(key) not in (None, [])]
    return lines


def _as_text(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _uniquely_named(runs: Sequence[Run]) -> list[Run]:
    """Runs with labels a chart can tell apart."""
    seen: Counter[str] = Counter()
    named = []
    for run in runs:
        seen[run.label] += 1
        again = seen[run.label]
        named.append(run if again == 1 else replace(run, name=f"{run.label} ({again})"))
    return named


def _summaries() -> dict[str, str]:
    """What each installed method does, in its own words."""
    from kohort.methods.registry import methods

    return {name: method.summary for name, method in methods().items()}


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def _chart(svg: str | None, *, alt: str, caption: str) -> Chart | None:
    return None if svg is None else Chart(svg=svg, alt=alt, caption=caption)


def _finite(value: Any) -> Any:
    """JSON knows no NaN: what is not finite becomes null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("kohort.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "count": words.count,
        "measure": words.measure,
        "bound": words.bound,
        "size": words.size,
        "seconds": words.seconds,
        "kind": words.kind_named,
    }
    return made
