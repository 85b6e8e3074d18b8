"""What a run gives back, and its JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import polars as pl
from numpy.typing import NDArray

from kohort.errors import ConfigError, nearest
from kohort.evaluate.tables import evaluate_table
from kohort.files import require_new
from kohort.models.base import Model, Remarks
from kohort.models.cluster_names import NoCommonModel, find_cluster
from kohort.models.files import save_cluster_models, save_model, save_site_models
from kohort.privacy.claim_words import number_of
from kohort.privacy.dp.budget import dp_facts
from kohort.privacy.ledger.ledger import Disclosure, Ledger
from kohort.privacy.ledger.summary import figures_of_ledger
from kohort.protocol.engine import Engine
from kohort.protocol.hub import Hub, Result
from kohort.report.card import model_card
from kohort.report.curves import curves_of_model
from kohort.report.page import json_path, render, write_report
from kohort.runs.config import Plan
from kohort.runs.folder import RunFolder
from kohort.runs.left_out import LeftOut
from kohort.runs.plan.mapping import agreed_table
from kohort.runs.python_words import speaks_python
from kohort.runs.results.judged import Judged
from kohort.runs.retention import RECEIVED
from kohort.runs.secure_default import in_clear
from kohort.tables.answers import TargetTask
from kohort.tables.frames import from_native
from kohort.tables.reading import with_dates

__all__ = ["Outcome", "outcome_of", "write_model", "write_site_models"]

HubFiles = Mapping[str, bytes]


@dataclass(frozen=True, kw_only=True, repr=False)
class Outcome:
    """What a run gives back: the model, its measures on test rows, and everything that was disclosed.

    `history` has one entry per round: `accuracy` (R2 for a number) and `loss` (log loss, or the mean squared error) on
    test rows where the hub knows the model of the round, and what the method reports itself.
    """

    plan: Plan
    engine: str = "local"
    seed: int | None
    model: Model
    metrics: dict[str, Any]
    history: list[dict[str, float]]
    rounds: int
    stopped_by: str
    sites: tuple[str, ...]
    site_rows: dict[str, int]
    disclosed: list[Disclosure]
    refused: dict[str, str]
    dropped: dict[str, str]
    seconds: dict[str, float]
    bytes: dict[str, int]
    watt_hours: float
    notes: tuple[str, ...]
    ledger_head: str
    epsilon: float | None = None
    delta: float | None = None
    unit: str | None = None
    dp: dict[str, Any] | None = None
    """What the budget speaks of and what other accounts say; none without differential privacy."""
    received: pl.DataFrame | None = field(default=None, repr=False)
    keep_days: int | None = None
    received_path: str | None = None
    files: HubFiles = field(default_factory=dict, repr=False)
    """What the hub keeps of the run, by name."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What else the method tells about the run."""
    task: Mapping[str, str] = field(default_factory=dict)
    """What was learned and by which part of the rule that was decided."""
    baselines: Mapping[str, Any] = field(default_factory=dict)
    """What the measures stand beside: the majority class, the best single site, all rows pooled."""
    left_out: tuple[LeftOut, ...] = ()
    """What was left out, clipped or changed, counted by reason."""
    warnings: tuple[str, ...] = ()
    """What a reader of the measures must know."""
    clusters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By cluster, the sites that have its model, after a phase among peers."""
    site_models: Mapping[str, Model] = field(default_factory=dict, repr=False)
    """The models that simulated sites have with their peers, by site; real sites keep theirs."""

    @property
    def accuracy(self) -> float:
        """Share of right classes on the test rows (R2 for a number)."""
        if not self.metrics:
            raise ConfigError("nothing was measured: the plan keeps no test rows", hint="Set data.test above 0")
        return float(self.metrics["accuracy"] if "accuracy" in self.metrics else self.metrics["r2"])

    def __repr__(self) -> str:
        """The run in one line."""
        figures = ", ".join(f"{name} {value:.3f}" for name, value in self._figures().items())
        budget = "" if self.epsilon is None else f", epsilon {self.epsilon:g}"
        warned = number_of(len(self.warnings), "warning")
        said = f", {warned}: see outcome.warnings" if self.warnings else ""
        size = f"{number_of(len(self.sites), 'site')}, {number_of(self.rounds, 'round')}"
        return f"Outcome({self.plan.method}, {size}{budget}: {figures}{said})"

    def _repr_html_(self) -> str:
        """The same as a small table, with baselines, warnings and what left the sites."""
        beside = {name: values for name, values in self.baselines.items() if isinstance(values, Mapping)}
        names = list(self._figures())
        head = "".join(f"<th>{escape(name)}</th>" for name in names)
        lines = [("this model", self.metrics), *beside.items()]
        body = "".join(
            f"<tr><th>{escape(str(name))}</th>{''.join(f'<td>{_shown(values.get(key))}</td>' for key in names)}</tr>"
            for name, values in lines
        )
        out = "".join(
            f"<li>{escape(f'{item.recipient}: {item.what}, {item.guarantee}')}</li>" for item in self.disclosed
        )
        warned = "".join(f"<li><b>warning:</b> {escape(text)}</li>" for text in self.warnings)
        return (
            f"<p>{escape(repr(self))}</p><table><tr><th></th>{head}</tr>{body}</table>"
            f"<p>What left the sites:</p><ul>{out}</ul><ul>{warned}</ul>"
        )

    def cluster_model(self, cluster: str) -> Model:
        """The model that the sites of a cluster ended a phase among peers with, as the first of them has it.

        Args:
            cluster: Its name; `clusters` has them all.

        Raises:
            ConfigError: There is no such cluster, or its model is at real sites.
        """
        found = {name: sites for name, sites in self.clusters.items() if all(one in self.site_models for one in sites)}
        return self.site_models[self.clusters[find_cluster(found, cluster)][0]]

    def predict(self, frame: Any, *, site: str | None = None, cluster: str | None = None) -> Any:
        """The predicted classes or numbers of a table's rows, in the target's own type.

        Args:
            frame: A polars, pandas or Arrow table.
            site: Whose table it is, where the plan's mapping says what a site writes in its own way; and whose model
                predicts, where sites have classes that the hub has not.
            cluster: Predict by the model of this cluster instead of the common one.

        Returns:
            A column of the caller's kind of frame; of pandas with its index.

        Raises:
            ConfigError: There is no such cluster, or no common model and no cluster is given.
            DataError: Columns are missing, or cells hold what the model does not know.
        """
        with speaks_python():
            model = self._model_of(site) if cluster is None else self.cluster_model(cluster)
            return model.predict(agreed_table(self.plan.data.table_mapping, frame, site))

    def _model_of(self, site: str | None) -> Model:
        """A site's model where sites have what the hub has not, else the common one."""
        if site is None or not self.site_models or self.clusters:
            return self.model
        if site not in self.site_models:
            raise ConfigError(f"no model of a site {site!r} is here", hint=nearest(site, self.site_models))
        return self.site_models[site]

    def predict_proba(self, frame: Any, *, site: str | None = None) -> NDArray[Any]:
        """Class probabilities [rows, classes] of a table's rows, in the order of `model.classes`.

        Args:
            frame: As in `predict`.
            site: As in `predict`.

        Raises:
            ConfigError: The model has none.
        """
        with speaks_python():
            return self._model_of(site).predict_proba(agreed_table(self.plan.data.table_mapping, frame, site))

    def evaluate(self, frame: Any, *, by: str | None = None, site: str | None = None) -> dict[str, Any]:
        """All measures on a table that holds the target.

        Args:
            frame: As in `predict`. Rows that lack the target, or a value that the model needs, are left out.
            by: A column to group by.
            site: As in `predict`.

        Returns:
            The measures, `rows`, `skipped`, and with `by` the measures of each group in `groups`.
        """
        with speaks_python():
            agreed = agreed_table(self.plan.data.table_mapping, frame, site)
            table = agreed if isinstance(agreed, pl.DataFrame) else from_native(agreed)[0]
            found = evaluate_table(self._model_of(site), with_dates(table), by=by, missing="skip")
        groups = {} if by is None else {"groups": found.groups}
        return {**found.metrics, "rows": found.rows, "skipped": found.skipped, **groups}

    def report(self, path: str | Path | None = None, *, title: str = "", force: bool = False) -> str:
        """One self-contained HTML page about the run.

        Args:
            path: Where it goes, with its JSON twin beside it; None gives the page back instead.
            title: The title of the page.
            force: Replace a page that is there.

        Returns:
            The path, or the page itself.

        Raises:
            ConfigError: The file exists.
        """
        heading, plan = title or f"A run of {self.plan.method}", self.plan.in_effect(self.engine)
        with speaks_python():
            mapping = {**self.to_mapping(), "curves": curves_of_model(self.model)}
            if path is None:
                return render([mapping], title=heading, plan=plan)
            for place in (Path(path), json_path(Path(path))):
                require_new(place, force=force)
            write_report(Path(path), [mapping], title=heading, plan=plan)
        return str(path)

    def save(self, folder: str | Path, *, force: bool = False) -> Path:
        """Write the model and its card into a folder; `kohort.load_model` reads it again.

        Args:
            folder: The folder; it is made if it does not exist.
            force: Replace a model that is there.

        Returns:
            The folder.

        Raises:
            ConfigError: The folder holds files.
        """
        place = Path(folder)
        with speaks_python():
            require_new(place, force=force)
            write_model(self, place)
        return place

    def _figures(self) -> dict[str, float]:
        """The few measures that are shown first."""
        names = ("accuracy", "f1", "auc", "rmse", "r2")
        return {name: self.metrics[name] for name in names if isinstance(self.metrics.get(name), int | float)}

    def to_mapping(self) -> dict[str, Any]:
        """The JSON object of `kohort run`."""
        return {
            "method": self.plan.method,
            "engine": self.engine,
            "seed": self.seed,
            "sites": len(self.sites),
            "site_rows": self.site_rows,
            "rounds": self.rounds,
            "stopped_by": self.stopped_by,
            "metrics": self.metrics,
            "task": dict(self.task),
            "baselines": dict(self.baselines),
            "left_out": [entry.to_mapping() for entry in self.left_out],
            "warnings": list(self.warnings),
            "history": self.history,
            "seconds": self.seconds,
            "bytes": self.bytes,
            "watt_hours": self.watt_hours,
            "disclosed": [item.to_mapping() for item in self.disclosed],
            "epsilon": self.epsilon,
            "delta": self.delta,
            "unit": self.unit,
            **({} if self.dp is None else {"dp": self.dp}),
            **({"facts": dict(self.facts)} if self.facts else {}),
            "refused": self.refused,
            "dropped": self.dropped,
            **({"clusters": {name: list(sites) for name, sites in self.clusters.items()}} if self.clusters else {}),
            "received": self.received_path,
            "notes": list(self.notes),
            "ledger_head": self.ledger_head,
        }


def _task_facts(model: Model, task: TargetTask | None) -> dict[str, Any]:
    """What was learned, why that, and of two classes the one that F1, precision and recall are about."""
    described: dict[str, Any] = {"kind": model.task}
    if task is not None and task.task == model.task:
        described["why"] = task.why
    if model.task == "classification" and len(model.classes or ()) == 2:
        described["positive"] = (model.classes or ())[-1]
    return described


def outcome_of(
    *,
    plan: Plan,
    backend: str,
    seed: int | None,
    model: Model,
    site_models: Mapping[str, Model],
    metrics: dict[str, Any],
    history: list[dict[str, float]],
    result: Result,
    hub: Hub,
    engine: Engine,
    ledger: Ledger,
    notes: list[str],
    remarks: Remarks,
    judged: Judged,
    task: TargetTask | None,
    wall: float,
    cpu: float,
    folder: RunFolder | None,
) -> Outcome:
    """The outcome of a run, from what its parts know.

    Args:
        plan: The plan that was carried out.
        backend: The name of the engine, "local" for a simulation.
        seed: The seed; None where the operating system gave the randomness.
        model: The final model.
        site_models: Models of single sites, where the method makes them.
        metrics: Measures on test rows; empty where nothing was measured.
        history: One entry per round.
        result: What the method's protocol returned.
        hub: The hub, which knows the sites that took part and their numbers of rows.
        engine: The engine that carried the messages; knows their costs, and sites that were left out.
        ledger: The ledger of what left the sites.
        notes: What a reader should know, before notes of the model.
        remarks: What the model says about itself.
        judged: Baselines, counts of what was left out, and warnings.
        task: What kind of target was learned, and why; None where the table was not looked at.
        wall: Seconds that passed.
        cpu: Seconds of processor time.
        folder: Where the run is written; None where nothing is.

    Returns:
        The outcome. Its epsilon and delta are those of the ledger or, where only the hub added noise, the method's
        claim.
    """
    costs = engine.costs
    ended = "the run ended among peers: the clusters' models stay with their sites, the hub has none"
    ending = (ended,) if isinstance(model, NoCommonModel) else ()
    warnings = (*judged.warnings, *in_clear(plan, len(hub.sites)), *result.warnings, *ending)
    refused = {item.site: item.reason for item in engine.excluded if item.kind == "refused"}
    dropped = {item.site: item.reason for item in engine.excluded if item.kind != "refused"}
    figures = figures_of_ledger(ledger)
    own = result.claim  # noise the hub added itself stands in no site's ledger
    if own is not None and "epsilon" not in figures:
        figures |= {"epsilon": own.epsilon, "delta": own.delta, "unit": own.unit, "dp": dp_facts([own])}
    return Outcome(
        plan=plan,
        engine=backend,
        seed=seed,
        model=model,
        clusters=result.clusters,
        site_models=site_models,
        metrics=metrics,
        history=history,
        rounds=result.rounds,
        stopped_by=result.stopped_by,
        sites=hub.sites,
        site_rows=dict(hub.rows),
        disclosed=ledger.disclosures(),
        refused=refused,
        dropped=dropped,
        seconds={
            "slowest_site": costs.slowest_site,
            "hub": costs.hub,
            "transfer": costs.most_bytes_a_site / plan.costs.bytes_per_second,
            "longest_exchange": costs.longest_exchange,
            "cpu_total": cpu,
            "wall": wall,
        },
        bytes={"up": costs.bytes_up, "down": costs.bytes_down},
        watt_hours=cpu * plan.costs.watts / 3600,
        notes=(*notes, *remarks.notes, *warnings),
        task=_task_facts(model, task),
        baselines=judged.baselines,
        left_out=judged.left_out,
        warnings=warnings,
        ledger_head=ledger.fingerprint(),
        epsilon=figures.get("epsilon"),
        delta=figures.get("delta"),
        unit=figures.get("unit"),
        dp=figures.get("dp"),
        received=result.received,
        keep_days=result.keep_days,
        files=result.files,
        facts={**result.facts, **remarks.facts},
        received_path=None if folder is None or result.received is None else str(folder.path / RECEIVED),
    )


def write_model(outcome: Outcome, folder: Path) -> None:
    """Write a run's model and its card.

    Args:
        outcome: The run.
        folder: Where they go.
    """
    mapping = outcome.to_mapping()
    page = model_card(outcome.model, run=mapping, plan=outcome.plan.in_effect(outcome.engine))
    save_model(outcome.model, folder, about=_about(outcome, mapping), page=page)


def write_site_models(outcome: Outcome, folder: Path) -> None:
    """Write the models that simulated sites have and the hub has not, outside the hub's part of the folder.

    Args:
        outcome: The run.
        folder: The run folder.
    """
    if not outcome.site_models:
        return
    about = {key: value for key, value in _about(outcome, outcome.to_mapping()).items() if key != "disclosed"}
    if outcome.clusters:
        save_cluster_models(outcome.site_models, folder, clusters=outcome.clusters, about=about)
    else:
        save_site_models(outcome.site_models, folder, about=about)


def _about(outcome: Outcome, mapping: Mapping[str, Any]) -> dict[str, Any]:
    """What `model.json` says of the run."""
    names = ("method", "seed", "rounds", "disclosed", "epsilon", "delta", "ledger_head")
    own = {"mapping": dict(outcome.plan.data.mapping)} if outcome.plan.data.mapping else {}
    return {**{key: mapping[key] for key in names}, **own}


def _shown(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, int | float) else ""
