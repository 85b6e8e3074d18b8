"""Run a plan from beginning to end: rows, sites, approval, enrolment, method, evaluation, files.

`run` is what the command line, the Python API and the studies all call. Guarantee: nothing is written before the plan
and the data are found good, every file is whole or absent, and `run.json` comes last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import polars as pl

from kohort.crypto.sums.scheme import KEY_HOLDER, MIN_SITES
from kohort.evaluate.intervals import RESAMPLES
from kohort.evaluate.utility import evaluate_model
from kohort.files import remove_unfinished, write_atomic
from kohort.methods.registry import Method, find_method
from kohort.models.base import Model, Remarks
from kohort.models.rows import encode_rows
from kohort.privacy.ledger.results import bind_results
from kohort.privacy.ledger.signing import Signer
from kohort.protocol.checkpoint import Checkpoint
from kohort.protocol.engine import Engine, drive
from kohort.protocol.enrolment import PREPARE, Enrolled, encoder_for, enrol
from kohort.protocol.hub import Ask, Coordinator, Hub
from kohort.protocol.key_holder import needs_key_holder
from kohort.rng import Streams
from kohort.rounds.domains.learning import check_learning, learn_hidden
from kohort.runs.agreed import approved_plan_for, claims_at
from kohort.runs.backend import Backend, RunContext, Simulation
from kohort.runs.config import Plan
from kohort.runs.folder import RunFolder
from kohort.runs.gain import ColumnsGain, reference_plans
from kohort.runs.ledgers import open_ledger, seal_ledger, signers_of
from kohort.runs.plan_faults import plan_faults, require_training
from kohort.runs.results.judged import judge
from kohort.runs.results.observer import Progress, RoundObserver, require_finite
from kohort.runs.results.outcome import Outcome, outcome_of, write_model, write_site_models
from kohort.runs.results.site_models import judged_model, models_of_sites
from kohort.runs.results.site_rows import left_out_at_sites, uncounted_notes
from kohort.runs.retention import RECEIVED, note_last_day
from kohort.runs.secure_default import too_few_for_sum
from kohort.runs.simulation import Population, with_balanced_classes
from kohort.tables.domain import Domain, declared_domain
from kohort.tables.frames import write_table

__all__ = ["Outcome", "Progress", "run"]

INTERVAL_ROWS, INTERVAL_SITES = 200_000, 40
"""Beyond so many test rows, or sites, a run leaves out the intervals, or those of the sites; `evaluate` never does."""


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
    baselines: bool = False,
) -> Outcome:
    """Run `plan` from beginning to end.

    Args:
        plan: What everybody approved.
        out: A folder for model, ledger and `run.json`; without it nothing is written.
        seed: The same seed gives the same bytes; 0 when none is given.
        secure_random: Draw from the operating system instead, so that nobody can repeat the run.
        resume: Go on with an interrupted run in `out`, to the same bytes as if it had never stopped; begin it when
            nothing was begun there.
        force: Overwrite what is in `out`.
        tables: By name, instead of the files that the plan names.
        watch: Called after every round. If it raises, the run stops with everything in place to resume it.
        many: False asks sites one by one.
        backend: Where the sites are; by default in this process.
        baselines: Also fit, in a simulation, a regression to each site's rows and to all of them, to compare with.

    Returns:
        The model, its measures on test rows, and everything that was disclosed.

    Raises:
        KohortError: The plan, the data or a site is at fault, or training diverged.
    """
    folder = None if out is None else RunFolder(out)
    try:
        if folder is not None:
            folder.take()
        return _run(
            plan,
            folder,
            seed=seed,
            secure_random=secure_random,
            resume=resume,
            force=force,
            watch=watch,
            place=backend or Simulation(tables=tables, many=many),
            baselines=baselines,
        )
    finally:
        if folder is not None:
            folder.release()


def _run(
    plan: Plan,
    folder: RunFolder | None,
    *,
    seed: int | None,
    secure_random: bool,
    resume: bool,
    force: bool,
    watch: Callable[[Progress], None],
    place: Backend,
    baselines: bool,
) -> Outcome:
    """The run itself, in a folder that is this process's alone."""
    began, cpu_began = perf_counter(), process_time()
    require_training(plan)
    method = find_method(plan.method)
    plan.require_read(place.name)
    plan.model.check()
    place.check(plan)
    goes_on = resume and folder is not None and folder.can_resume
    streams = (
        folder.streams(seed, secure=secure_random) if goes_on and folder else Streams.choose(seed, secure=secure_random)
    )
    if folder is not None and not goes_on:
        folder.require_free(force=force or (resume and not (folder.path / "run.json").exists()))
    population = place.populate(plan, streams)
    plan, weighed = with_balanced_classes(plan, population)
    if folder is not None:
        _open_folder(folder, plan, population, streams, goes_on=goes_on, force=force or resume)
    signers = signers_of(place, streams, folder)
    ledger, receipts = open_ledger(folder, signers, run=streams.bytes("run", length=8).hex(), goes_on=goes_on)
    checkpoint: Checkpoint | None = None
    notes: tuple[str, ...] = (*weighed, *signers.notes)
    if folder is not None and goes_on:
        checkpoint, more = folder.checkpoints.latest(ledger_lines=ledger.length)
        notes += more
    context = RunContext(
        plan=plan,
        population=population,
        approved=approved_plan_for(plan, schema=population.schema, run=ledger.run, sites=population.names),
        streams=streams,
        ledger=ledger,
        receipts=receipts,
    )
    try:
        engine = place.engine(context)
        hub, compared = _enrolled_hub(method, context, engine, checkpoint)
        # A method with rows of its own may read rows in another way, which knows the values of its rows alone.
        strict = context.approved.own_rows
        usable = (hub.encoder.within if strict else hub.encoder.predictable)(population.test)
        test = population.test.filter(pl.Series(usable))
        observer = RoundObserver(hub, engine, test, watch, began, folder, checkpoint, ledger)
        with plan_faults(plan):
            result = drive(method.protocol(plan.config, hub), engine, observe=observer)
    finally:
        seal_ledger(ledger, receipts)
    model, site_models = result.model, models_of_sites(engine, result)
    for made in (model, *site_models.values()):
        require_finite(made, round=result.rounds, lr=plan.train.lr)
    wall, cpu = perf_counter() - began, process_time() - cpu_began
    measured, judged_rows, more = judged_model(result, site_models, population, usable)
    test, notes = population.test.filter(pl.Series(judged_rows)), (*notes, *more)
    metrics = {} if measured is None else _evaluate(measured, population, judged_rows)
    remarks = _with_gain((measured or model).remarks(test), metrics, plan, streams, place)
    outcome = outcome_of(
        plan=plan,
        backend=place.name,
        seed=streams.seed,
        model=model,
        site_models=site_models,
        metrics=metrics,
        history=observer.history,
        result=result,
        hub=hub,
        engine=engine,
        ledger=ledger,
        notes=[
            *plan.notes,
            *population.notes,
            *notes,
            *compared,
            *_domain_notes(hub),
            *uncounted_notes(hub, population),
            *hub.network.notes,
            *result.notes,
        ],
        remarks=remarks,
        judged=judge(
            hub.encoder,
            population,
            test,
            metrics,
            excluded=engine.excluded,
            outside=engine.rows_outside,
            unlearned=result.unlearned,
            unused=left_out_at_sites(hub, population),
            unjudged=int((~usable).sum()),
            min_cell=plan.policy.min_cell,
            has_budget=context.approved.has_budget,
            train=baselines,
        ),
        task=population.task,
        wall=wall,
        cpu=cpu,
        folder=folder,
    )
    if folder is not None:
        _write(outcome, folder, signer=signers.sealer, run=ledger.run)
    return outcome


def _with_gain(remarks: Remarks, metrics: Mapping[str, Any], plan: Plan, streams: Streams, place: Backend) -> Remarks:
    """What the anonymised columns keep of their own gain, where the plan asks for it and the sites are simulated."""
    if not find_method(plan.method).gain(plan.config) or not isinstance(place, Simulation) or streams.seed is None:
        return remarks
    plain, deleted = (run(one, seed=streams.seed, backend=place).metrics for one in reference_plans(plan))
    found = ColumnsGain.of(metrics, plain, deleted)
    return remarks if found is None else found.added_to(remarks)


def _open_folder(
    folder: RunFolder, plan: Plan, population: Population, streams: Streams, *, goes_on: bool, force: bool
) -> None:
    """Make sure an interrupted run is this one, or make a fresh folder that says which run is under way in it."""
    table = population.fingerprint()
    if goes_on:
        folder.check_same(plan, table)
        remove_unfinished(folder.path)
    else:
        folder.begin(force=force)
        folder.identify(plan, streams, table)


def _enrolled_hub(
    method: Method, context: RunContext, engine: Engine, checkpoint: Checkpoint | None
) -> tuple[Hub, tuple[str, ...]]:
    """The hub as the protocol sees it, once the sites have approved the plan and agreed on a domain; and notes."""
    plan, approved = context.plan, context.approved
    declared = declared_domain(approved.schema, missing=approved.missing)
    hidden = declared is None and approved.hides_domains
    if approved.sums_securely and len(context.population.names) < MIN_SITES:
        raise too_few_for_sum(len(context.population.names))
    if hidden:
        check_learning(approved, len(context.population.names))
    tasks = [PREPARE.name, *dict.fromkeys(step.task for step in approved.contract)]
    agreed = engine.approve(lambda site: claims_at(approved, site), tasks=tasks)
    coordinator = Coordinator(
        sites=agreed,
        approved=approved,
        key_holder=KEY_HOLDER if needs_key_holder(approved) else None,
        inputs=engine.inputs,
    )
    compared = _compared(coordinator, engine)
    enrolment = enrol(
        agreed,
        declared=declared,
        columns=(*approved.schema.inputs, str(approved.schema.target)),
        settle=partial(_opening, method, coordinator),
        learn=learn_hidden(coordinator) if hidden else None,
    )
    enrolled = drive(enrolment, engine)
    engine.declared = enrolled.rows
    engine.inject_faults(plan.sites.faults)
    hub = _hub(coordinator, context.streams, enrolled, context.population, checkpoint)
    if checkpoint is not None:
        engine.restore(checkpoint.sites)
    return hub, compared


def _compared(coordinator: Coordinator, engine: Engine) -> tuple[str, ...]:
    """What sites disagree about, where the plan compares their tables first."""
    if coordinator.approved.preflight == "none":
        return ()
    from kohort.runs.preflight import compare_sites, notes_of

    return notes_of(compare_sites(coordinator, engine))


def _opening(method: Method, coordinator: Coordinator, domain: Domain, sites: tuple[str, ...]) -> Ask | None:
    """What the method asks along with the enrolment, once the agreed domain makes a model."""
    approved = coordinator.approved
    encoder = encoder_for(approved, domain)
    approved.model.network(encoder)
    if coordinator.sums:  # learning the domain has set the secure sums up, which happens once
        return None
    return method.opening(approved, encoder, sites)


def _hub(
    coordinator: Coordinator,
    streams: Streams,
    enrolled: Enrolled,
    population: Population,
    checkpoint: Checkpoint | None,
) -> Hub:
    rows, approved = enrolled.rows, coordinator.approved
    encoder = encoder_for(approved, enrolled.domain)
    own = population.validation
    return Hub(
        sites=tuple(rows),
        rows=rows,
        encoder=encoder,
        network=approved.model.network(encoder),
        approved=approved,
        streams=Streams(streams.bytes("hub"), streams.seed),
        validation=None if own is None else encode_rows(encoder, own.filter(pl.Series(encoder.within(own)))),
        resume=None if checkpoint is None else checkpoint.resume,
        clusters=_clusters(population, rows),
        key_holder=coordinator.key_holder,
        inputs=coordinator.inputs,
        sums=coordinator.sums,
        unused=coordinator.unused,
        opened=enrolled.opened,
    )


def _domain_notes(hub: Hub) -> list[str]:
    """What became of values that too few persons share."""
    columns, target = hub.encoder.domain.columns, hub.encoder.schema.target
    counted = [name for name, column in columns.items() if column.counted]
    if not counted:
        said = "rows that lie outside the declared categories and took no part are not counted: the plan has a budget"
        return [said] if hub.approved.has_budget else []
    least = hub.approved.min_cell
    if hub.approved.has_budget:
        names = ", ".join(counted)
        return [
            f"the domains of {names} were learned by noisy counts, for a share of the budget: categories that too few "
            'persons share for that are "other" (of the target: took no part), and numbers outside the cells are '
            "clipped"
        ]
    notes = [
        f"the domains of {', '.join(counted)} were learned by a secure count: categories that fewer than {least} "
        'persons share are "other", and numbers outside the cells that so many fall into are clipped'
    ]
    if target in counted and hub.encoder.classes is not None:
        notes.append(f"rows with a class of {target} that fewer than {least} persons share took no part")
    return notes


def _clusters(population: Population, sites: Iterable[str]) -> dict[str, str] | None:
    if population.clusters is None:
        return None
    clusters = dict(zip(population.names, population.clusters.tolist(), strict=True))
    return {site: f"cluster-{clusters[site] + 1:02d}" for site in sites}


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


def _write(outcome: Outcome, folder: RunFolder, *, signer: Signer, run: str) -> None:
    mapping = outcome.to_mapping()
    write_model(outcome, folder.path / "model")
    write_site_models(outcome, folder.path)
    if outcome.received is not None:
        write_table(outcome.received, folder.path / RECEIVED, force=True, private=True)
        if outcome.keep_days is not None:
            note_last_day(folder.path, days=outcome.keep_days, today=datetime.now(UTC).date())
    for name, content in outcome.files.items():
        write_atomic(folder.path / "hub" / name, content, private=True)
    folder.finish(outcome.plan, mapping, bind=partial(bind_results, signer=signer, run=run))
