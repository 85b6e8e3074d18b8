"""`kohort compare`: run one plan with several settings and compare the results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from kohort.cli.common import ForceOption, JsonOption, emit, say, stdout

if TYPE_CHECKING:
    from rich.table import Table

    from kohort.runs.compare import Rows
    from kohort.runs.sweeps import Variant

__all__ = ["register"]

ASK_ABOVE: Final = 1_000


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("compare")(compare)


def compare(
    plan: Annotated[Path, typer.Argument(metavar="PLAN.toml", help="The plan to vary.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the runs and compare.json.")],
    sweep: Annotated[
        list[str] | None,
        typer.Option("--sweep", metavar="a.b=v1,v2", help="A key of the plan and its values; may be repeated."),
    ] = None,
    strengths: Annotated[
        str | None,
        typer.Option(metavar="all|METHOD,...", help="Three strengths of protection of each of these methods instead."),
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="a.b=v", help="Change a key of the plan.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs per setting, with seeds 0, 1, ...")] = 1,
    choose: Annotated[
        str | None, typer.Option(metavar='"accuracy>=0.81"', help="Name the cheapest setting that meets these bounds.")
    ] = None,
    rows: Annotated[
        str,
        typer.Option(
            metavar="all|low-risk", help="low-risk: tune on low-risk rows only, at no privacy cost to the others."
        ),
    ] = "all",
    private: Annotated[
        float | None,
        typer.Option(
            metavar="TRIES", help="Choose privately: the best of a random number of tries, so many on average."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of a private choice.")] = 0,
    attack: Annotated[
        bool, typer.Option("--attack", help="Add membership inference as a figure and a Pareto axis.")
    ] = False,
    shadows: Annotated[
        int, typer.Option(min=0, help="Audit every run whole, with so many shadow models; 0 for membership alone.")
    ] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time, each in a process of its own.")] = 1,
    dask: Annotated[
        str, typer.Option(metavar="ADDRESS", help="A Dask scheduler; its workers need kohort, the tables and DIR.")
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", help=f"Do not ask before more than {ASK_ABOVE:,} runs.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted comparison in DIR.")] = False,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Run a plan with several values of some keys, and show which settings are on the Pareto front.

    Under differential privacy, the reported cost is that of all runs together. With --private only the best of a
    random number of runs is kept, and the cost is that of telling it.

    Example: kohort compare examples/fedavg.toml --sweep train.lr=0.001,0.01 --seeds 3 --out out/rates
    """
    from kohort.errors import ConfigError
    from kohort.runs.compare import Options
    from kohort.runs.compare import compare as compare_settings

    settings = _settings(plan, sweep or [], strengths, set_ or [])
    if private is not None:
        _require_alone(
            attack=attack or shadows > 0, seeds=seeds != 1, choose=choose is not None, rows=rows != "all",
            resume=resume, jobs=jobs != 1, dask=bool(dask), strengths=strengths is not None,
        )  # fmt: skip
        _choose_privately(settings, out=out, tries=private, seed=seed, force=force, json=json)
        return
    if seed:
        raise ConfigError("--seed belongs to --private", hint="Use --seeds, or add --private")
    _ask_first(len(settings) * seeds, yes=yes)
    result = _resumable(
        compare_settings,
        settings,
        out=out,
        choose=choose,
        say=lambda line: None if json else say(line),
        options=Options(
            seeds=seeds,
            rows=cast("Rows", rows),
            attack=attack,
            shadows=shadows,
            jobs=jobs,
            dask=dask,
            keep_going=strengths is not None,
            resume=resume,
            force=force,
        ),
    )
    if json:
        emit(result)
        return
    stdout().print(_table(result))
    for line in _conclusions(result, choose):
        stdout().print(line, markup=False)
    stdout().print(f"Written to {out}. kohort report {out} shows the runs side by side.", markup=False)


def _resumable(made: Callable[..., dict[str, Any]], *args: Any, **options: Any) -> dict[str, Any]:
    """What a comparison gives; an interrupt says how to go on."""
    try:
        return made(*args, **options)
    except KeyboardInterrupt:
        say("runs that are finished are kept; continue with --resume")
        raise


def _settings(plan: Path, sweep: list[str], strengths: str | None, overrides: list[str]) -> list[Variant]:
    from kohort.errors import ConfigError
    from kohort.runs.sweeps import Sweep, strong_variants, variants_of

    if bool(sweep) == (strengths is not None):
        raise ConfigError("compare needs settings", hint="Give --sweep a.b=v1,v2, or --strengths all")
    if strengths is not None:
        return strong_variants(plan, strengths, overrides=overrides)
    found = variants_of(plan, [Sweep.parse(text) for text in sweep], overrides=overrides)
    for line in dict.fromkeys(
        f"note: {one.plan.method} does not read {', '.join(one.unread)}: run once for all values"
        for one in found
        if one.unread
    ):
        say(line)
    return found


def _ask_first(runs: int, *, yes: bool) -> None:
    """Thousands of runs take hours: somebody must want them."""
    from kohort.errors import ConfigError

    if runs <= ASK_ABOVE or yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(f"the sweep is {runs:,} runs", hint="Add --yes to begin it, or sweep fewer values or seeds")
    typer.confirm(f"The sweep is {runs:,} runs. Begin?", abort=True)


def _require_alone(**given: bool) -> None:
    """A private choice tells one run alone, so nothing may be asked of the others."""
    from kohort.errors import ConfigError

    named = [f"--{name}" for name, present in given.items() if present]
    if named:
        raise ConfigError(f"--private cannot be used with {', '.join(named)}", hint="Drop one of them")


def _choose_privately(settings: list[Variant], *, out: Path, tries: float, seed: int, force: bool, json: bool) -> None:
    from kohort.runs.compare import choose_privately

    result = choose_privately(settings, out=out, tries=tries, seed=seed, force=force)
    if json:
        emit(result)
        return
    cost = result["tuning"]
    chosen = next(line["set"] for line in result["settings"] if line["runs"])
    for line in (
        f"Chosen: {', '.join(f'{key} = {value}' for key, value in chosen.items())}",
        f"Telling the best of {cost['runs']:g} tries on average costs epsilon {cost['epsilon']:.4g}, delta "
        f"{cost['delta']:.3g} for each {cost['unit']} ({cost['scope']}), for those who see nothing of the other tries.",
        f"Written to {out}.",
    ):
        stdout().print(line, markup=False)


def _table(result: Mapping[str, Any]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    lines = result["settings"]
    known = set.intersection(*(set(line["figures"]) for line in lines))
    columns = [name for name in _COLUMNS if name in known]
    table = Table(*lines[0]["set"], *(_COLUMNS[name] for name in columns), "front")
    for line in lines:
        cells = [_cell(name, line) for name in columns]
        on_front = "yes" if line["runs"][0] in result["pareto"] else ""
        table.add_row(*(escape(value) for value in line["set"].values()), *cells, on_front)
    return table


_COLUMNS: Final = {
    "accuracy": "accuracy",
    "f1": "F1",
    "auc": "AUC",
    "r2": "R2",
    "rmse": "RMSE",
    "mae": "MAE",
    "epsilon": "epsilon",
    "membership": "membership",
    "advantage": "best attack above a guess",
    "rows_released": "rows released",
    "bytes_readable": "bytes readable",
}


def _cell(name: str, line: Mapping[str, Any]) -> str:
    """A figure as a table shows it, with its interval where it has one."""
    from kohort.report.words import size

    value, ends = line["figures"][name], line.get("intervals", {}).get(name)
    if value is None:
        return "-"
    if name in ("epsilon", "rows_released", "bytes_readable"):
        return {"epsilon": f"{value:.3g}", "rows_released": f"{value:,.0f}"}.get(name, size(value))
    half = f" ±{(ends[1] - ends[0]) / 2:.3f}" if ends is not None and name in ("accuracy", "r2", "f1", "auc") else ""
    return f"{value:.3f}{half}"


def _conclusions(result: Mapping[str, Any], choose: str | None) -> list[str]:
    lines = [f"Left out: {one['what']}: {one['why']}" for one in result.get("left_out", ())]
    if choose is not None:
        chosen = result["chosen"]
        found = next((line for line in result["settings"] if chosen in line["runs"]), None)
        words = "none of the settings" if found is None else ", ".join(f"{k} = {v}" for k, v in found["set"].items())
        lines.append(f"Cheapest with {choose}: {words}")
    cost = result["tuning"]
    if cost is not None:
        whose = "low-risk rows only; no cost to the others" if cost["rows"] == "low-risk" else cost["scope"]
        lines.append(
            f"Choosing among these {cost['runs']} runs costs epsilon {cost['epsilon']:.4g}, delta {cost['delta']:.3g} "
            f"for each {cost['unit']} ({whose}), not what one run costs."
        )
    elif choose is not None:
        lines.append(
            "The choice was made on the test rows of these runs: report its score on rows that no run has seen, and "
            "where rows are private, choose with --private or --rows low-risk."
        )
    return lines
