"""A pre-flight over messages: sites that a hub reaches compare their tables, and the hub proposes a mapping.

The steps are those of `kohort.rounds.domains.preflight`; what is compared is what they told
(`kohort.tables.harmonise.compare`).
"""

from __future__ import annotations

from dataclasses import dataclass

from kohort.crypto.sums.scheme import KEY_HOLDER, MIN_SITES
from kohort.errors import ConfigError, DataError
from kohort.protocol.engine import Engine, drive
from kohort.protocol.hub import Coordinator
from kohort.protocol.key_holder import needs_key_holder
from kohort.rng import Streams
from kohort.rounds.domains.preflight import Preflight, preflight
from kohort.runs.agreed import approved_plan_for, claims_at
from kohort.runs.backend import Backend, RunContext
from kohort.runs.config import Plan
from kohort.runs.ledgers import open_ledger, seal_ledger, signers_of
from kohort.runs.left_out import LeftOut, rows_of_sites
from kohort.runs.secure_default import too_few_for_sum
from kohort.tables.harmonise.compare import ProfileComparison, compare_profiles

__all__ = ["SitesCompared", "compare_sites", "notes_of", "require_preflight", "run_preflight"]


@dataclass(frozen=True, kw_only=True)
class SitesCompared:
    """What a pre-flight told, and what follows from it."""

    answers: Preflight
    comparison: ProfileComparison
    target: str | None = None
    excluded: tuple[str, ...] = ()
    """Sites that refused or failed."""

    def left_out(self, target: str | None, *, missing: str, min_cell: int) -> list[LeftOut]:
        """Rows of all sites that a plan would leave out, by reason.

        Args:
            target: The column to predict.
            missing: `data.missing` of the plan.
            min_cell: Fewest persons behind a total that is told.

        Returns:
            Totals; a text such as "<10" where fewer persons are behind one, perhaps none.
        """
        return rows_of_sites(self.answers.unused, target, drops=missing == "drop", min_cell=min_cell)

    def balanced_weights(self) -> dict[str, float]:
        """What `train.class_weights` would be for classes that count alike; empty where classes were not counted.

        Classes are counted as the proposed mapping spells them.
        """
        spelt = self.comparison.mapping.general.values.get(str(self.target), {})
        agreed = {text: name for name, others in spelt.items() for text in others}
        rows: dict[str, int] = {}
        for text, count in self.answers.classes.items():
            rows[agreed.get(text, text)] = rows.get(agreed.get(text, text), 0) + count
        if len(rows) < 2:
            return {}
        return {text: round(sum(rows.values()) / (len(rows) * count), 4) for text, count in sorted(rows.items())}


def require_preflight(plan: Plan) -> None:
    """Refuse to compare sites by a plan that does not say so.

    Args:
        plan: The plan.

    Raises:
        ConfigError: It has no pre-flight.
    """
    if plan.data.preflight == "none":
        raise ConfigError(
            "the plan has no pre-flight, so no site has approved one",
            hint='Set data.preflight = "only", and let the sites approve the plan: kohort site approve',
        )


def run_preflight(
    plan: Plan, *, backend: Backend, seed: int | None = None, secure_random: bool = False
) -> SitesCompared:
    """Compare the tables of sites that a backend reaches.

    Args:
        plan: The plan, with `data.preflight`.
        backend: Where the sites are.
        seed: For tests; 0 when none is given.
        secure_random: Draw from the operating system instead.

    Returns:
        What was told, and the comparison.

    Raises:
        ConfigError: The plan has no pre-flight.
        KohortError: Sites refuse or fail.
    """
    require_preflight(plan)
    streams = Streams.choose(seed, secure=secure_random)
    population = backend.populate(plan, streams)
    names = population.names
    if len(names) < MIN_SITES:
        raise too_few_for_sum(len(names))
    signers = signers_of(backend, streams, None)
    ledger, receipts = open_ledger(None, signers, run=streams.bytes("run", length=8).hex(), goes_on=False)
    approved = approved_plan_for(plan, schema=population.schema, run=ledger.run, sites=names)
    context = RunContext(
        plan=plan, population=population, approved=approved, streams=streams, ledger=ledger, receipts=receipts
    )
    try:
        engine = backend.engine(context)
        tasks = list(dict.fromkeys(step.task for step in approved.contract))
        agreed = engine.approve(lambda site: claims_at(approved, site), tasks=tasks)
        coordinator = Coordinator(
            sites=agreed,
            approved=approved,
            key_holder=KEY_HOLDER if needs_key_holder(approved) else None,
            inputs=engine.inputs,
        )
        return compare_sites(coordinator, engine)
    finally:
        seal_ledger(ledger, receipts)


def compare_sites(hub: Coordinator, engine: Engine) -> SitesCompared:
    """Ask the sites, and compare what they tell.

    Args:
        hub: The coordinator of sites that approved the plan.
        engine: What reaches them.

    Returns:
        What was told, and the comparison.

    Raises:
        KohortError: Sites refuse or fail.
    """
    answers = drive(preflight(hub), engine)
    schema = hub.approved.schema
    columns = [*schema.inputs, *([] if schema.target is None else [schema.target])]
    comparison = compare_profiles(answers.profiles, columns=columns, target=schema.target, counted=answers.counted)
    return SitesCompared(
        answers=answers,
        comparison=comparison,
        target=schema.target,
        excluded=tuple(one.site for one in engine.excluded),
    )


def notes_of(found: SitesCompared) -> tuple[str, ...]:
    """What a run says about disagreements that it can go on with.

    Args:
        found: The comparison.

    Returns:
        Notes that name no value.

    Raises:
        DataError: Types do not fit together; the error names everything that sites disagree about.
    """
    disagreements, how = found.comparison.disagreements, "kohort harmonise PLAN.toml --hub HUB --out mapping.toml"
    if any(one.kind == "type" for one in disagreements):
        raise DataError(
            f"sites disagree about: {', '.join(one.brief for one in disagreements)}",
            hint=f"{how} proposes what mends it: each site checks it and names it in its site.toml",
        )
    notes = [f"sites disagree: {one.brief}" for one in disagreements]
    return (*notes, f"{how} proposes what mends it") if any(one.mended for one in disagreements) else tuple(notes)
