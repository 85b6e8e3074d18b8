"""Run a plan from beginning to end: rows, sites, approval, enrolment, method, evaluation, files.

`run` is what the command line, the Python face and the studies all call. It keeps its word about files: nothing is
written before the plan and the data are found good, every file is whole or absent, and `run.json` comes last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import polars as pl

from kohort.crypto.sums.key_holder import KEY_HOLDER
from kohort.errors import ConfigError
from kohort.evaluate.intervals import RESAMPLES
from kohort.evaluate.utility import accuracy_of, evaluate_model
from kohort.files import require_new, write_atomic
from kohort.methods.registry import Method, find_method
from kohort.methods.syntactic.mapped_encoder import MappedEncoder
from kohort.models.files import save_model
from kohort.models.model import Model, encode_rows
from kohort.models.rows import Rows
from kohort.privacy.dp.budget import dp_facts
from kohort.privacy.guarantee import DP
from kohort.privacy.ledger.ledger import LEDGER_FILE, Disclosure, Ledger
from kohort.privacy.ledger.receipts import Receipts
from kohort.privacy.ledger.reopen import drop_cut_lines, reopen
from kohort.privacy.ledger.signing import Signer
from kohort.protocol.checkpoint import Checkpoint
from kohort.protocol.engine import Costs, drive
from kohort.protocol.enrolment import PREPARE, Enrolled, encoder_for, enrol
from kohort.protocol.hub import Ask, Excluded, Hub, Result, RoundEnd
from kohort.protocol.key_holder import needs_key_holder
from kohort.protocol.plan import ApprovedPlan
from kohort.report.card import model_card
from kohort.rng import Streams
from kohort.runs.backend import Backend, RunContext, RunEngine, Simulation, approved_plan_for
from kohort.runs.config import Plan
from kohort.runs.folder import RunFolder
from kohort.runs.retention import RECEIVED, note_last_day
from kohort.runs.simulation import Population, set_aside_unseen
from kohort.tables.domain import Domain, declared_domain
from kohort.tables.encoder import Encoder
from kohort.tables.frames import write_table

__all__ = ["Outcome", "Progress", "run"]

HISTORY_ROWS = 50_000
"""While a run is under way, accuracy is measured on at most this many test rows; the final measures use all."""
HubFiles = Mapping[str, bytes]
INTERVAL_ROWS, INTERVAL_SITES = 200_000, 40
"""Beyond so many test rows, or sites, a run leaves out the intervals, or those of the sites; `evaluate` never does."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What a watcher is told after every round."""

    round: int
    rounds: int
    accuracy: float | None
    """On test rows, R2 for a number; none when the plan keeps no test rows."""
    measure: str = "accuracy"
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run gives back."""

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

    @property
    def accuracy(self) -> float:
        """Share of right classes on the test rows (R2 for a number)."""
        if not self.metrics:
            raise ConfigError("nothing was measured: the plan keeps no test rows", hint="Set data.test above 0")
        return float(self.metrics["accuracy"] if "accuracy" in self.metrics else self.metrics["r2"])

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
            "received": self.received_path,
            "notes": list(self.notes),
            "ledger_head": self.ledger_head,
        }


def run(
    plan: Plan,
    *,
    out: Path | None = None,
    seed: int | None = None,
    secure_random: bool = False,
    resume: bool = False,
    force: bool = False,
    tables: dict[str, pl.DataFrame] | None = None,
    watch: Callable[[Progress], None] = lambda _: None,
    many: bool = True,
    backend: Backend | None = None,
) -> Outcome:
    """Run `plan` at `backend`, by default in this process. With `out`, writes model, ledger and `run.json` there.

    `resume` goes on with an interrupted run in `out`, to the same bytes as if it had never stopped (or begins it, when
    nothing was begun there). `many=False` asks sites one by one. A `watch` that raises stops the run after a round,
    with everything in place to resume it.
    """
    began, cpu_began = perf_counter(), process_time()
    place = backend or Simulation(tables=tables, many=many)
    method = find_method(plan.method)
    plan.require_read(place.name)
    plan.model.check()
    folder = None if out is None else RunFolder(out)
    goes_on = resume and folder is not None and folder.can_resume
    streams = (
        folder.streams(seed, secure=secure_random) if goes_on and folder else Streams.choose(seed, secure=secure_random)
    )
    if folder is not None and not goes_on:
        require_new(folder.path, force=force or (resume and not (folder.path / "run.json").exists()))
    population = place.populate(plan, streams)
    if folder is not None:
        _open_folder(folder, plan, population, streams, goes_on=goes_on, force=force or resume)
    ledger, receipts = _open_ledger(folder, streams, goes_on=goes_on)
    checkpoint: Checkpoint | None = None
    notes: tuple[str, ...] = ()
    if folder is not None and goes_on:
        checkpoint, notes = folder.checkpoints.latest(ledger_lines=ledger.length)
    approved = approved_plan_for(plan, schema=population.schema, run=ledger.run)
    try:
        ready = RunContext(
            plan=plan, population=population, approved=approved, streams=streams, ledger=ledger, receipts=receipts
        )
        engine = place.engine(ready)
        tasks = [PREPARE.name, *(task.name for task in method.tasks)]
        agreed = engine.approve(lambda rows: method.claims(plan.config, rows), tasks=tasks)
        enrolment = enrol(
            agreed,
            declared=declared_domain(approved.schema, missing=approved.missing),
            columns=(*approved.schema.inputs, str(approved.schema.target)),
            settle=partial(_opening, method, approved),
        )
        enrolled = drive(enrolment, engine)
        engine.declared = enrolled.rows
        engine.inject_faults(plan.sites.faults)
        hub = _hub(approved, streams, enrolled, population, checkpoint)
        if checkpoint is not None:
            engine.put_back(checkpoint.sites)
        usable = set_aside_unseen(hub.encoder, population.test)
        test = population.test.filter(pl.Series(usable))
        observer = _Observer(hub, engine, test, watch, began, folder, checkpoint, ledger)
        result = drive(method.protocol(plan.config, hub), engine, observe=observer)
    finally:
        try:
            ledger.seal(receipts=(receipts.length, receipts.head), hub_key=receipts.public)
        finally:
            ledger.close()
            receipts.close()
    if not np.isfinite(result.weights).all():
        raise ConfigError("the training diverged: the weights are not finite", hint="Lower train.lr")
    model = Model(result.network or hub.network, result.weights, result.encoder or hub.encoder)
    outcome = _outcome(
        plan=plan,
        backend=place.name,
        seed=streams.seed,
        model=model,
        metrics=_evaluate(model, population, usable),
        history=observer.history,
        result=result,
        hub=hub,
        engine=engine,
        ledger=ledger,
        notes=[*plan.notes, *population.notes, *notes, *hub.network.notes, *result.notes],
        told=_placed(model, test),
        aside=int((~usable).sum()),
        wall=perf_counter() - began,
        cpu=process_time() - cpu_began,
        folder=folder,
    )
    if folder is not None:
        _write(outcome, folder)
    return outcome


def _open_folder(
    folder: RunFolder, plan: Plan, population: Population, streams: Streams, *, goes_on: bool, force: bool
) -> None:
    """Make sure an interrupted run is this one, or make a fresh folder that says which run is under way in it."""
    table = population.fingerprint()
    if goes_on:
        folder.check_same(plan, table)
    else:
        folder.begin(force=force)
        folder.identify(plan, streams, table)


def _open_ledger(folder: RunFolder | None, streams: Streams, *, goes_on: bool) -> tuple[Ledger, Receipts]:
    place = None if folder is None else folder.ledger
    has_ledger = goes_on and place is not None and (place / LEDGER_FILE).is_file()
    if has_ledger and place is not None:
        drop_cut_lines(place)
    ledger = Ledger(
        signer=Signer.from_secret(streams.bytes("signer", "sites")),
        folder=place,
        run=streams.bytes("run", length=8).hex(),
    )
    receipts = Receipts(signer=Signer.from_secret(streams.bytes("signer", "hub")), folder=place)
    if has_ledger and place is not None:
        reopen(place, ledger, receipts)
    return ledger, receipts


def _opening(method: Method, approved: ApprovedPlan, domain: Domain, sites: tuple[str, ...]) -> Ask | None:
    """What the method asks along with the enrolment, once the agreed domain makes a model."""
    encoder = encoder_for(approved, domain)
    approved.model.network(encoder)
    return method.opening(approved, encoder, sites)


def _hub(
    approved: ApprovedPlan,
    streams: Streams,
    enrolled: Enrolled,
    population: Population,
    checkpoint: Checkpoint | None,
) -> Hub:
    rows = enrolled.rows
    encoder = encoder_for(approved, enrolled.domain)
    own = population.validation
    return Hub(
        sites=tuple(rows),
        rows=rows,
        encoder=encoder,
        network=approved.model.network(encoder),
        approved=approved,
        streams=Streams(streams.bytes("hub"), streams.seed),
        validation=None if own is None else encode_rows(encoder, own.filter(pl.Series(set_aside_unseen(encoder, own)))),
        resume=None if checkpoint is None else checkpoint.resume,
        clusters=_clusters(population, rows),
        key_holder=KEY_HOLDER if needs_key_holder(approved) else None,
        opened=enrolled.opened,
    )


def _clusters(population: Population, sites: Iterable[str]) -> dict[str, str] | None:
    if population.clusters is None:
        return None
    clusters = dict(zip(population.names, population.clusters.tolist(), strict=True))
    return {site: f"cluster-{clusters[site] + 1:02d}" for site in sites}


def _spread(test: pl.DataFrame) -> pl.DataFrame:
    """At most `HISTORY_ROWS` test rows, from all over the table: its first ones may all be of one kind."""
    return test.gather_every(max(1, -(-test.height // HISTORY_ROWS)))


class _Observer:
    """Measures every round on test rows, keeps the history and the checkpoints, tells the watcher."""

    def __init__(
        self,
        hub: Hub,
        engine: RunEngine,
        test: pl.DataFrame,
        watch: Callable[[Progress], None],
        began: float,
        folder: RunFolder | None,
        checkpoint: Checkpoint | None,
        ledger: Ledger,
    ) -> None:
        self._ledger = ledger
        self.history: list[dict[str, float]] = []
        self._hub = hub
        self._engine = engine
        self._test = _spread(test)
        self._encoder = hub.encoder
        self._rows: Rows | None = None
        if self._test.height and not hub.approved.own_rows:
            self._encoded(hub.encoder)  # rows the model could not read are found before any budget is spent
        self._watch = watch
        self._began = began
        self._folder = folder
        self._checkpoint = checkpoint

    def __call__(self, mark: RoundEnd) -> None:
        if mark.resumed and self._checkpoint is not None:
            facts = self._checkpoint.facts
            self.history = list(facts["history"])
            self._engine.costs = Costs(**facts["costs"])
            self._engine.excluded = [Excluded(**item) for item in facts["excluded"]]
            return
        accuracy = None
        if self._test.height and not mark.hidden:
            network, encoder = mark.network or self._hub.network, mark.encoder or self._hub.encoder
            accuracy = accuracy_of(Model(network, mark.weights, encoder), self._encoded(encoder))
        measured = {} if accuracy is None else {"accuracy": accuracy}
        self.history.append({"round": mark.round + 1, **measured, **mark.metrics})
        if self._folder is not None:
            self._save(mark, self._folder)
        seconds = perf_counter() - self._began
        measure = "accuracy" if self._hub.encoder.task == "classification" else "R2"
        self._watch(
            Progress(round=mark.round + 1, rounds=mark.rounds, accuracy=accuracy, measure=measure, seconds=seconds)
        )

    def _encoded(self, encoder: Encoder) -> Rows:
        """The test rows as the model reads them; the same until the encoder changes."""
        if self._rows is None or self._encoder is not encoder:
            self._rows, self._encoder = encode_rows(encoder, self._test), encoder
        return self._rows

    def _save(self, mark: RoundEnd, folder: RunFolder) -> None:
        facts = {
            "history": self.history,
            "costs": vars(self._engine.costs),
            "excluded": [vars(item) for item in self._engine.excluded],
        }
        folder.checkpoints.save(
            Checkpoint(
                round=mark.round,
                weights=mark.weights,
                state=mark.state,
                sites=self._engine.kept(),
                ledger_lines=self._ledger.length,
                facts=facts,
            )
        )


@dataclass(frozen=True)
class _Told:
    """What is to be said about test rows that a model reads under published classes."""

    notes: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


def _placed(model: Model, test: pl.DataFrame) -> _Told:
    if not isinstance(model.encoder, MappedEncoder) or not test.height:
        return _Told()
    flagged = model.encoder.place(test).flagged_count
    note = f"no class is legitimate for {flagged:,} of {test.height:,} test rows; they got the nearest one"
    return _Told((note,), {"test_rows": test.height, "test_rows_without_class": flagged})


def _evaluate(model: Model, population: Population, usable: Any) -> dict[str, Any]:
    if population.test.height == 0:
        return {}
    groups = None
    if population.test_sites is not None:
        groups = [site for site, good in zip(population.test_sites, usable, strict=True) if good]
    resamples = RESAMPLES if population.test.height <= INTERVAL_ROWS else 0
    few_sites = groups is not None and len(set(groups)) <= INTERVAL_SITES
    metrics = evaluate_model(
        model,
        population.test.filter(pl.Series(usable)),
        groups=groups,
        resamples=resamples,
        group_resamples=resamples if few_sites else 0,
    )
    by_site = metrics.pop("by_group", None)
    return metrics if by_site is None else {**metrics, "by_site": by_site}


def _outcome(
    *,
    plan: Plan,
    backend: str,
    seed: int | None,
    model: Model,
    metrics: dict[str, Any],
    history: list[dict[str, float]],
    result: Result,
    hub: Hub,
    engine: RunEngine,
    ledger: Ledger,
    notes: list[str],
    told: _Told,
    aside: int,
    wall: float,
    cpu: float,
    folder: RunFolder | None,
) -> Outcome:
    costs = engine.costs
    if aside:
        notes.append(f"{aside} test rows hold categories that occur at no site and were set aside")
    refused = {item.site: item.reason for item in engine.excluded if item.kind == "refused"}
    dropped = {item.site: item.reason for item in engine.excluded if item.kind != "refused"}
    claims = [guarantee for guarantee in ledger.claims() if isinstance(guarantee, DP)]
    spent = [(chain.budget.epsilon, chain.budget.delta) for chain in ledger.chains.values()]
    if result.claim is not None and not claims:  # noise the hub added itself stands in no site's ledger
        claims, spent = [result.claim], [(result.claim.epsilon, result.claim.delta)]
    return Outcome(
        plan=plan,
        engine=backend,
        seed=seed,
        model=model,
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
        notes=(*notes, *told.notes),
        ledger_head=ledger.fingerprint(),
        epsilon=max((epsilon for epsilon, _ in spent), default=0.0) if claims else None,
        delta=max((delta for _, delta in spent), default=0.0) if claims else None,
        unit=claims[0].unit if claims else None,
        dp=dp_facts(claims) if claims else None,
        received=result.received,
        keep_days=result.keep_days,
        files=result.files,
        facts={**result.facts, **told.facts},
        received_path=None if folder is None or result.received is None else str(folder.path / RECEIVED),
    )


def _write(outcome: Outcome, folder: RunFolder) -> None:
    mapping = outcome.to_mapping()
    summary = {
        key: mapping[key] for key in ("method", "seed", "rounds", "disclosed", "epsilon", "delta", "ledger_head")
    }
    page = model_card(outcome.model, run=mapping, plan=outcome.plan.in_effect(outcome.engine))
    save_model(outcome.model, folder.path / "model", about=summary, page=page)
    if outcome.received is not None:
        write_table(outcome.received, folder.path / RECEIVED, force=True)
        if outcome.keep_days is not None:
            note_last_day(folder.path, days=outcome.keep_days, today=datetime.now(UTC).date())
    for name, content in outcome.files.items():
        write_atomic(folder.path / "hub" / name, content)
    folder.finish(outcome.plan, mapping)
