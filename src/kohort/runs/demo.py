"""The whole story on the embedded table: every registered method over ten sites, one age interval each.

Methods are discovered, so a new one is in the demo as soon as it is registered. One that fails is told with its
reason, and the others still run; the demo fails only when no method finishes.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from multiprocessing import active_children
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import numpy as np

from kohort.errors import KohortError, ResourceError
from kohort.files import write_atomic
from kohort.methods.registry import Method, find_method, methods
from kohort.models.dense.network import Network
from kohort.models.options import Training
from kohort.models.rows import Rows, stack
from kohort.report.about import About
from kohort.report.audits import AUDIT_FILE, with_audits, write_audits
from kohort.report.charts import get_ready
from kohort.report.curves import read_runs_with_curves
from kohort.report.page import write_report
from kohort.report.runs import FAILED_FILE, read_shared_plan
from kohort.runs.config import Plan, load_plan, only_read
from kohort.runs.demo_start import HelperProcesses
from kohort.runs.run import Progress, run
from kohort.runs.secure_default import with_secure_sum

__all__ = ["ROUNDS", "TITLE", "Watch", "demo_plan", "run_demo"]

ROUNDS = 60
TITLE = "Ten sites, one income model"
PURPOSE = "Demonstration on a public table (Adult)"

_LONG = frozenset({"partial", "syntactic", "trees"})
"""Runs that other processes begin with: they take longest, and none should begin when all else is done."""

_PLAN = """
[data]
table = "adult:train"
target = "income"
quasi = ["age", "race", "sex"]
sensitive = ["income"]
drop = ["fnlwgt", "education"]

[data.bins]
hours_per_week = [25, 40, 60]
capital_gain = [0, 7298]
capital_loss = [0, 1887]

[sites]
count = 10
split = "interval:age"

[model]
kind = "mlp"
hidden = [12]

[train]
batch = 64
optimizer = "adam"
lr = 0.001
state = "restart"

[policy]
raw = true
"""

Watch = Callable[[Progress], None]


def demo_plan(method: Method, *, rounds: int = ROUNDS) -> Plan:
    """The demo's plan for one method: the shared keys that it reads, and those it gives as an example itself.

    Updates are summed securely where the method can do that.

    Args:
        method: A registered method.
        rounds: Rounds of training, for methods that have any.

    Returns:
        The plan, over ten sites of the embedded table.
    """
    raw: dict[str, Any] = tomllib.loads(_PLAN)
    raw["train"]["rounds"] = rounds
    whole = _merged(raw, method.demo_keys())
    return load_plan(only_read(with_secure_sum(whole, sites=whole["sites"]["count"])))


class _Job(NamedTuple):
    """One run of the demo."""

    method: str
    rounds: int
    seed: int
    place: Path


class _Made(NamedTuple):
    """What a run of the demo gave."""

    run: dict[str, Any]
    """As the report shows it, its ledger verified."""
    audit: dict[str, Any]


def run_demo(
    folder: Path,
    *,
    rounds: int = ROUNDS,
    seed: int = 0,
    date: str = "",
    others: HelperProcesses | None = None,
    watching: Callable[[Method], AbstractContextManager[Watch]] = lambda _: nullcontext(lambda _: None),
) -> list[dict[str, Any]]:
    """Run every method into `folder`, attack every model, verify every ledger, and write the report.

    Args:
        folder: Where the runs go, one folder per method.
        rounds: Rounds of iterative methods.
        seed: Of all runs.
        date: Of the report.
        others: Processes that make runs beside this one. The runs are the same, told in the same order.
        watching: Opens a watcher for each method in turn.

    Returns:
        The runs as the report shows them, failed ones too.

    Raises:
        KohortError: Every method failed; it is the first one's error.
    """
    errors: list[KohortError] = []
    runs: list[dict[str, Any]] = []
    audits: list[dict[str, Any]] = []
    chosen = methods().values()
    wanted = [_Job(method.name, rounds, seed, folder / method.name) for method in chosen]
    with _meanwhile(get_ready), _begun(wanted, others) as calls:
        for method, call in zip(chosen, calls, strict=True):
            try:
                with watching(method) as watch:
                    made = call(watch)
                audits.append(made.audit)
                runs.append(made.run)
            except ResourceError:
                raise
            except KohortError as error:
                errors.append(error)
                failed = {"method": method.name, "error": str(error)}
                write_atomic(folder / method.name / FAILED_FILE, (json.dumps(failed, indent=1) + "\n").encode())
                runs.append(_read(folder / method.name))
    if audits:
        write_audits(folder / AUDIT_FILE, audits)
        runs = with_audits(runs, folder / AUDIT_FILE)
    write_report(folder / "report.html", runs, title=TITLE, plan=read_shared_plan(folder), about=About(PURPOSE, date))
    if len(errors) == len(runs):
        raise errors[0]
    return runs


@contextmanager
def _meanwhile(what: Callable[[], None]) -> Iterator[None]:
    """Do something beside what happens inside; it is done at the end. If it fails, what needs it fails, too."""

    def attempt() -> None:
        with suppress(KohortError):
            what()

    thread = Thread(target=attempt)
    thread.start()
    try:
        yield
    finally:
        thread.join()


@contextmanager
def _begun(wanted: Sequence[_Job], others: HelperProcesses | None) -> Iterator[list[Callable[[Watch], _Made]]]:
    """For each run, a call that gives what it made: it is made then, or has begun in another process.

    This process makes runs from the beginning of the list on, the others the long ones first, and then from its end on.
    After the last one the others are told to end, which nobody waits for.
    """
    _compile_kernel()
    if others is None or len(wanted) < 2:
        yield [partial(_make, job) for job in wanted]
        return
    with ThreadPoolExecutor(min(others.size, len(wanted) - 1)) as threads:
        try:
            # A thread asks a process for one run at a time, so the runs after it are still to be had.
            order = sorted(wanted, key=lambda job: job.method in _LONG)[::-1]
            begun = {job: threads.submit(_elsewhere, others.pool, job) for job in order}
            yield [partial(_here_or_there, job, begun[job]) for job in wanted]
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            for process in active_children():
                process.terminate()
            raise
    others.pool.shutdown(wait=False)


def _elsewhere(pool: ProcessPoolExecutor, job: _Job) -> tuple[_Made, list[Progress]]:
    return pool.submit(_make_unwatched, job).result()


def _here_or_there(job: _Job, begun: Future[tuple[_Made, list[Progress]]], watch: Watch) -> _Made:
    """Make a run, unless another process has begun it."""
    return _make(job, watch) if begun.cancel() else _waited(begun, watch)


def _make(job: _Job, watch: Watch) -> _Made:
    """Run a method, attack its model, and read the run back."""
    plan = demo_plan(find_method(job.method), rounds=job.rounds)
    audit = _run_and_attack(plan, job.place, job.seed, watch)
    return _Made(run=_read(job.place), audit=audit)


def _make_unwatched(job: _Job) -> tuple[_Made, list[Progress]]:
    """The same in another process, and what a watcher would have been told."""
    _compile_kernel()
    noted: list[Progress] = []
    return _make(job, noted.append), noted


def _waited(future: Future[tuple[_Made, list[Progress]]], watch: Watch) -> _Made:
    try:
        made, noted = future.result()
    except BrokenProcessPool as error:
        raise ResourceError(
            "a process of the demo was ended before its run was finished", hint="Free some memory, or add --jobs 1"
        ) from error
    for progress in noted:
        watch(progress)
    return made


def _read(place: Path) -> dict[str, Any]:
    """A run as the report of several shows it."""
    return {**read_runs_with_curves(place)[0], "name": place.name}


def _run_and_attack(plan: Plan, place: Path, seed: int, watch: Watch) -> dict[str, Any]:
    """Run a plan, and attack its model by the loss threshold: the attack that needs nothing but the model and rows."""
    # The attacks load every method's machinery; a plan of the demo needs its own alone.
    from kohort.runs.auditing.audit import Audit
    from kohort.runs.auditing.measured import measured
    from kohort.runs.auditing.on_model import loss_threshold_of
    from kohort.runs.auditing.replay import RecordingSimulation

    backend = RecordingSimulation(tasks=frozenset())
    outcome = run(plan, out=place, seed=seed, force=True, watch=watch, backend=backend)
    population = backend.populations[0]
    return Audit(
        audited=(place.name,),
        method=plan.method,
        findings=(loss_threshold_of(outcome.model, population, seed=seed),),
        ledger_heads=(outcome.ledger_head,),
        measured=measured(outcome, population),
    ).to_mapping()


def _compile_kernel() -> None:
    """Compile the training kernel, or read it from disk, so that no method's seconds hold that."""
    network = Network(inputs=1, outputs=2)  # kernels are compiled for types of numbers, whatever their count
    network.fit(
        np.zeros(network.parameter_count, dtype=np.float32),
        stack([Rows.of([[0.0]], [0.0])]),
        training=Training(),
        keys=np.zeros(1, dtype=np.uint64),
        round=0,
        keep_state=False,
    )


def _merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """`first` with what `second` says, section by section."""
    result = dict(first)
    for key, value in second.items():
        inner = result.get(key)
        result[key] = _merged(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return result
