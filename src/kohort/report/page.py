"""The HTML report: what the runs learned, what they cost, and what every site disclosed.

Guarantees: the page is one file and loads nothing from the network. It runs one script, which sorts tables and without
which nothing is missing; its Content-Security-Policy allows that script by its hash, and nothing else. Names of sites,
methods and runs are untrusted text and are escaped. The page shows counts, measures and names; of cells, names of
classes, categories and groups that at least the minimum number of rows share, and nothing else. The only date is the
one that is given, so the same arguments give the same page, byte for byte.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kohort.errors import ConfigError
from kohort.files import write_atomic
from kohort.report import charts, words
from kohort.report.about import About, facts_of
from kohort.report.curves import curves_html
from kohort.report.editions import Edition, edited, edited_plan
from kohort.report.flow import flow_picture
from kohort.report.plan_keys import shown_plan
from kohort.report.recommend import recommendation
from kohort.report.runs import Run, check_run
from kohort.report.sections import Chart, made_chart, sections_of
from kohort.report.trade_off import Point, named_by_setting, points_of, trade_off_chart
from kohort.report.verdict import verdict_on

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["json_path", "render", "write_report"]

CURVES_SHOWN = 12
"""The curves of the other columns are folded away."""
NAMES_PER_REASON = 10
"""How many absent sites are named for each reason; the others are counted."""

_PACKAGES = ("kohort", "numpy", "numba", "polars", "altair")


@dataclass(frozen=True, kw_only=True)
class AbsentSites:
    """Sites that did not take part in a run, all for the same reason."""

    what: str
    reason: str
    count: int
    names: tuple[str, ...]
    """The first few of them."""


def write_report(
    path: Path,
    runs: Sequence[Mapping[str, Any]],
    *,
    title: str,
    plan: Mapping[str, Any] | None = None,
    edition: Edition = "internal",
    settings: Sequence[Mapping[str, Any]] = (),
    about: About = About(),  # noqa: B008 - frozen
) -> Path:
    """Write the page and, beside it, its JSON twin. Each file is written whole or not at all.

    Args:
        path: The page; its name ends in `.html`. The twin has the same name with the ending `.json`.
        runs: The JSON objects of finished runs, and `{"method": ..., "error": ...}` for each run that did not finish.
        title: The heading of the page.
        plan: What the plans of the runs have in common.
        edition: For those who ran it, or without anything of single sites and machines.
        settings: Of a comparison, as `kohort.report.trade_off.read_settings` gives them.
        about: Purpose and date, which no ledger knows.

    Returns:
        The path of the JSON twin.

    Raises:
        ConfigError: `path` is not an HTML file, or there is no run.
        IntegrityError: A run lacks a key, or a key is malformed.
    """
    twin = json_path(path)
    page = render(runs, title=title, plan=plan, edition=edition, settings=settings, about=about).encode()
    content = {
        "title": title,
        "purpose": about.purpose,
        "date": about.date,
        "edition": edition,
        "plan": edited_plan(plan, edition),
        "versions": _versions(),
        "runs": [edited(run, edition) for run in runs],
    }
    write_atomic(twin, (json.dumps(_finite(content), indent=1, allow_nan=False) + "\n").encode())
    write_atomic(path, page)
    return twin


def json_path(path: Path) -> Path:
    """The path of the JSON twin of a page.

    Args:
        path: Where the page is written.

    Returns:
        The same path with the suffix `.json`.

    Raises:
        ConfigError: `path` does not end in `.html` or `.htm`.
    """
    if path.suffix.lower() not in {".html", ".htm"}:
        raise ConfigError(f"a report is an HTML page, not {path.name}", hint="Let --out end in .html")
    return path.with_suffix(".json")


def render(
    runs: Sequence[Mapping[str, Any]],
    *,
    title: str,
    plan: Mapping[str, Any] | None = None,
    edition: Edition = "internal",
    settings: Sequence[Mapping[str, Any]] = (),
    about: About = About(),  # noqa: B008 - frozen
) -> str:
    """The page as text.

    Args:
        runs: As in `write_report`.
        title: The heading of the page.
        plan: What the plans of the runs have in common; it may show declared settings, never cells.
        edition: As in `write_report`.
        settings: As in `write_report`.
        about: As in `write_report`.

    Returns:
        The HTML of one file that loads nothing from the network; untrusted names are escaped.

    Raises:
        ConfigError: There is no run.
        IntegrityError: A run lacks a key, or a key is malformed.
    """
    kept = [edited(run, edition) for run in runs]
    named, repeats = named_by_setting(settings, kept)
    checked = _uniquely_named([check_run(run, where="a run given to the report") for run in named])
    if not checked:
        raise ConfigError("there is no run to report", hint="Carry out a plan first: kohort run PLAN.toml --out DIR")
    finished = [run for run in checked if not run.error]
    shared = words.printable(edited_plan(plan, edition))
    points = points_of(settings, kept)
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            title=words.printable(title),
            edition=edition,
            points=points,
            axes=_axes(finished),
            trade_off=_trade_off(points, finished),
            lead=_lead(finished, shared),
            facts=facts_of(finished, about) if finished else [],
            verdicts=[
                (verdict_on(run), _flow(run, alone=len(finished) == 1)) for run in finished if run.label not in repeats
            ],
            recommended=recommendation(finished),
            attacked=any(run.attacked for run in finished),
            assessed=any(run.risk for run in finished),
            sections=sections_of(finished),
            finished=finished,
            failed=[run for run in checked if run.error],
            absent={run.label: _absent_sites(run) for run in finished},
            remarks={run.label: _remarks(run) for run in finished},
            summaries=_summaries(),
            kinds=words.kinds_in_order({item.shown.name for run in finished for item in run.disclosed}),
            bytes_chart=made_chart(
                charts.bytes_by_kind(finished),
                alt="Bar chart: megabytes that left the sites in each run, by kind of guarantee.",
                caption="Bytes of all releases that passed a site's door, as the ledgers list them.",
            ),
            seconds_chart=made_chart(
                charts.seconds_by_part(finished),
                alt="Bar chart: seconds of the slowest site, the hub and the transfer in each run.",
                caption="Estimated duration with every site on a machine of its own.",
            ),
            curves={run.label: _curves(run) for run in finished if run.curves},
            plan=shown_plan(shared),
            versions=_versions(),
            **_script(),
        )
    )


@cache
def _script() -> dict[str, Any]:
    """The script that sorts tables, and its hash for the Content-Security-Policy."""
    from markupsafe import Markup

    text = files("kohort.report").joinpath("templates/sort.js").read_text()
    digest = b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return {"script": Markup(text), "script_hash": f"sha256-{digest}"}  # noqa: S704 - our own file


def _flow(run: Run, *, alone: bool) -> Chart | None:
    """The picture of releases; only for a page of one run."""
    said = ", ".join(f"{item.shown.label} to {item.recipient}" for item in run.disclosed)
    drawn = flow_picture(run) if alone else None
    caption = "What left the sites, by recipient and kind of guarantee; wider arrows carried more bytes (logarithmic)."
    return made_chart(drawn, alt=f"Flow from the sites: {said}.", caption=caption)


def _trade_off(points: Sequence[Point], runs: Sequence[Run]) -> Chart | None:
    """Settings of a comparison on one chart."""
    if not points:
        return None
    whole, axes = _audited_whole(runs), _axes(runs)
    score = axes["score"]
    best = ", ".join(one.label for one in points if one.on_front)
    return made_chart(
        trade_off_chart(points, **axes),
        alt=f"Dot plot: {score} of {len(points)} settings beside what an attacker gains and what can be read. On the "
        f"front: {best}.",
        caption="One dot per setting, with the 95 % interval of its score; rings and numbers mark the Pareto front. "
        "Left: how far the best attack is above its guess. Right: bytes that a recipient can read (logarithmic)."
        if whole
        else "One dot per setting, with the 95 % interval of its score; rings and numbers mark the Pareto front.",
    )


def _axes(runs: Sequence[Run]) -> dict[str, str]:
    """What the score of a setting, and the attack on it, are called."""
    attack = "best attack above a guess" if _audited_whole(runs) else "membership attack (a guess: 0.5)"
    return {"score": "accuracy" if not runs or runs[0].is_classifier else "R²", "attack": attack}


def _audited_whole(runs: Sequence[Run]) -> bool:
    return any(len(run.attacked) > 1 for run in runs)


def _curves(run: Run) -> dict[str, Any]:
    """What a model says column by column: importances, and the curves as markup of our own."""
    from markupsafe import Markup

    found = run.curves or {}
    columns = found["columns"]
    drawn = [Markup(curves_html({name: columns[name]}, found["outputs"])) for name in columns]  # noqa: S704 - escaped
    largest = max((float(curve["importance"]) for curve in columns.values()), default=0.0) or 1.0
    shares = [
        (name, float(curve["importance"]), float(curve["importance"]) / largest) for name, curve in columns.items()
    ]
    return {"lead": found["lead"], "importances": shares, "first": drawn[:CURVES_SHOWN], "others": drawn[CURVES_SHOWN:]}


def _absent_sites(run: Run) -> list[AbsentSites]:
    found: dict[tuple[str, str], list[str]] = {}
    for what, sites in (("refused under their policy", run.refused), ("dropped", run.dropped)):
        for site, reason in sites.items():
            found.setdefault((what, reason), []).append(site)
    return [
        AbsentSites(what=what, reason=reason, count=len(names), names=tuple(names[:NAMES_PER_REASON]))
        for (what, reason), names in found.items()
    ]


def _remarks(run: Run) -> list[str]:
    """Warnings, what was left out, and notes; what a warning says already is not said again."""
    left = [
        f"Left out: {one.get('what')}{_counted(one.get('count'))}: {one.get('why')}"
        for one in run.left_out
        if not any(str(one.get("why")) in warning for warning in run.warnings)
    ]
    notes = [note for note in run.notes if note not in run.warnings]
    return [*(f"Warning: {warning}" for warning in run.warnings), *left, *notes]


def _counted(count: object) -> str:
    return f" ({words.count(count)})" if isinstance(count, int | float) else ""


def _lead(runs: Sequence[Run], plan: Mapping[str, Any] | None) -> str:
    """How many sites with how many rows took part, and what the page shows."""
    if not runs:
        return "No run finished."
    table = (plan or {}).get("data", {}).get("table")
    origin = f" of {table}" if isinstance(table, str) else ""
    sites = sorted({run.sites for run in runs})
    many = words.count(sites[0]) if len(sites) == 1 else f"{words.count(sites[0])} to {words.count(sites[-1])}"
    rows = max(run.rows for run in runs)
    held = f"held {words.count(rows)} training rows{origin}" if rows else "took part"
    noun, subject = "site" if sites == [1] else "sites", "each run" if len(runs) > 1 else "the run"
    return f"{many} {noun} {held}. This page shows what {subject} learned, what it cost and what it disclosed."


def _uniquely_named(runs: Sequence[Run]) -> list[Run]:
    """The runs, with a number added to labels that occur more than once."""
    seen: Counter[str] = Counter()
    named = []
    for run in runs:
        seen[run.label] += 1
        again = seen[run.label]
        named.append(run if again == 1 else replace(run, name=f"{run.label} ({again})"))
    return named


def _summaries() -> dict[str, str]:
    """The one-line summary of each registered method."""
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


def _finite(value: Any) -> Any:
    """`value` with null in place of NaN and infinity, which JSON cannot express."""
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
        "share": words.share,
        "size": words.size,
        "seconds": words.seconds,
        "kind": words.kind_named,
        "ended": words.ended,
        "baseline": words.baseline,
        "signer": words.signer,
    }
    return made
