"""The sections of results: measures of comparable runs, site by site, with their charts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import quantiles

from kohort.report import charts, words
from kohort.report.runs import Run

__all__ = ["Chart", "ResultsSection", "made_chart", "sections_of"]

SITES_NAMED = 40
"""With more sites than this, the page names only the sites with the lowest scores and draws the distribution of all."""
RUNS_ACROSS = 9
"""Runs beside each other in a table of sites; more stand in further tables, so that none has to be scrolled."""
MOST_LINES = 12
"""Runs that a chart can tell apart."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart as SVG, its alternative text for screen readers, and its caption."""

    svg: str
    alt: str
    caption: str


def made_chart(svg: str | None, *, alt: str, caption: str) -> Chart | None:
    """A chart with its texts.

    Args:
        svg: The drawing; None where there was nothing to draw.
        alt: What screen readers say instead of the drawing.
        caption: What stands below it.

    Returns:
        The chart; None without a drawing.
    """
    return None if svg is None else Chart(svg=svg, alt=alt, caption=caption)


@dataclass(frozen=True, kw_only=True)
class ResultsSection:
    """The results of runs whose measures are comparable: all classifiers, or all regressions."""

    columns: tuple[str, ...]
    """Titles of the measures."""
    keys: tuple[str, ...]
    """Keys of the same measures in `run.metrics`."""
    runs: tuple[Run, ...]
    by_round: Chart | None
    by_site: Chart | None
    sites: tuple[SiteRow, ...]
    """All sites, or those with the lowest scores when there are more than `SITES_NAMED`."""
    distribution: tuple[ScoreDistribution, ...]
    site_count: int
    blocks: tuple[slice, ...]
    """The runs that stand side by side in one table of sites."""


@dataclass(frozen=True, kw_only=True)
class SiteRow:
    """One site: its row counts, and the score of every run on its test rows."""

    name: str
    rows: int | None
    test_rows: int | None
    scores: tuple[float | None, ...]


@dataclass(frozen=True, kw_only=True)
class ScoreDistribution:
    """How the scores of one run are distributed over its sites: extremes and quartiles."""

    run: Run
    lowest: float
    quarter: float
    median: float
    three_quarters: float
    highest: float


def sections_of(runs: Sequence[Run]) -> list[ResultsSection]:
    """One section of classifiers and one of regressions: their measures cannot be compared with each other.

    Args:
        runs: The finished runs.

    Returns:
        One or two sections; none without runs.
    """
    found = []
    for is_classifier in (True, False):
        chosen = tuple(run for run in runs if run.is_classifier == is_classifier)
        if chosen:
            found.append(_section(chosen, is_classifier=is_classifier))
    return found


def _section(runs: tuple[Run, ...], *, is_classifier: bool) -> ResultsSection:
    score = "accuracy" if is_classifier else "R²"
    names = list(dict.fromkeys(name for run in runs for name in (*run.site_rows, *run.by_site)))
    measured = [name for name in names if any(name in run.by_site for run in runs)]
    few = len(names) <= SITES_NAMED
    drawing = _by_site(runs, measured if few else None, score)
    rows = [_site_row(name, runs) for name in names]
    return ResultsSection(
        columns=("accuracy", "F1", "AUC") if is_classifier else ("R²", "RMSE", "MAE"),
        keys=("accuracy", "f1", "auc") if is_classifier else ("r2", "rmse", "mae"),
        runs=runs,
        by_round=made_chart(
            charts.score_by_round(runs, title=f"{score} on the test rows") if len(runs) <= MOST_LINES else None,
            alt=f"Line chart: {score} on the test rows after each round, one line per run; final values: "
            + ", ".join(f"{run.label} {words.measure(run.score)}" for run in runs)
            + ".",
            caption=f"{score[0].upper()}{score[1:]} after each round"
            + (
                "; a horizontal line is a run that was measured at its end alone."
                if any(not charts.is_course(run) for run in runs)
                else "."
            ),
        ),
        by_site=made_chart(
            drawing,
            alt=f"{'Dot plot' if few else 'Line chart'}: {score} on the test rows of each site, by run.",
            caption=f"{score[0].upper()}{score[1:]} on each site's own test rows."
            if few
            else f"Number of sites by {score} on their own test rows.",
        ),
        sites=tuple(rows if few else sorted(rows, key=_lowest_score)[: SITES_NAMED // 2]),
        distribution=tuple(found for run in runs if (found := _distribution(run)) is not None),
        site_count=len(names),
        blocks=tuple(slice(begin, begin + RUNS_ACROSS) for begin in range(0, len(runs), RUNS_ACROSS)),
    )


def _by_site(runs: Sequence[Run], sites: Sequence[str] | None, score: str) -> str | None:
    """A dot per run and site, or how the scores are distributed; many runs are in the tables alone."""
    if len(runs) > MOST_LINES:
        return None
    return (
        charts.score_distribution(runs, title=score)
        if sites is None
        else charts.score_by_site(runs, sites, title=score)
    )


def _site_row(name: str, runs: Sequence[Run]) -> SiteRow:
    measures = [run.by_site.get(name, {}) for run in runs]
    test_rows = next((int(rows) for found in measures if isinstance(rows := found.get("rows"), int | float)), None)
    return SiteRow(
        name=name,
        rows=next((run.site_rows[name] for run in runs if name in run.site_rows), None),
        test_rows=test_rows,
        scores=tuple(run.score_of(found) for run, found in zip(runs, measures, strict=True)),
    )


def _lowest_score(site: SiteRow) -> float:
    return min((score for score in site.scores if score is not None), default=math.inf)


def _distribution(run: Run) -> ScoreDistribution | None:
    scores = sorted(score for found in run.by_site.values() if (score := run.score_of(found)) is not None)
    if len(scores) < 2:
        return None
    quarter, median, three_quarters = quantiles(scores, n=4, method="inclusive")
    return ScoreDistribution(
        run=run, lowest=scores[0], quarter=quarter, median=median, three_quarters=three_quarters, highest=scores[-1]
    )
