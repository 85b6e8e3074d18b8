"""What a hub and its sites make of a plan alike, each for itself: what was approved, and which rows count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from kohort.methods.registry import find_method
from kohort.privacy.contract import Contract
from kohort.privacy.guarantee import Guarantee
from kohort.protocol.enrolment import enrolment_contract
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.plan.arrival import parse_arrival
from kohort.protocol.site import Site
from kohort.rounds.domains.learning import learning_steps
from kohort.rounds.plan_account import with_total_claim
from kohort.runs.config import Plan
from kohort.tables.answers import settle_target
from kohort.tables.consent import consenting_rows
from kohort.tables.frames import handle_missing
from kohort.tables.schema import Schema

__all__ = ["approved_plan_for", "claims_at", "complete_rows", "usable_rows"]


def approved_plan_for(plan: Plan, *, schema: Schema, run: str, sites: tuple[str, ...] = ()) -> ApprovedPlan:
    """What every participant of `run` agrees on; hub and sites make it from the same plan.

    Args:
        plan: The plan; the hooks of its method are asked here, once, for its phases, sums, judging and clusters.
        schema: The agreed columns.
        run: The identity of the run.
        sites: The sites of the run, in the hub's order.

    Returns:
        The approved plan.

    Raises:
        ConfigError: `sites.arrive` cannot be read, a value of `[train]` does not make a phase, or the plan asks for a
            pre-flight that its sums or its budget do not allow.
    """
    method = find_method(plan.method)
    approved = ApprovedPlan(
        run=run,
        plan_hash=plan.digest(),
        method=method.name,
        config=plan.config,
        schema=schema,
        encoding=plan.data.encoding,
        missing="drop" if plan.data.missing == "drop" else "category",
        impute=plan.data.missing == "impute",
        unseen=plan.data.unseen,
        model=plan.model,
        train=plan.train,
        own_rows=method.own_rows,
        arrival=parse_arrival(plan.sites.arrive),
        phases=method.phases(plan.config, plan.train),
        secure=method.secure(plan.config),
        judge=method.judge(plan.config),
        clusters=method.clusters(plan.config),
        sites=sites,
        preflight=plan.data.preflight,
        min_cell=plan.policy.min_cell,
    )
    first = _preflight_contract(approved)
    if approved.preflight == "only":
        return replace(approved, contract=first)
    rest = enrolment_contract(approved, learning_steps(approved)) + method.contract(approved)
    return replace(approved, contract=first + rest)


def claims_at(approved: ApprovedPlan, site: Site) -> list[Guarantee]:
    """What an approved plan claims at one site, which the site's policy judges before anything leaves.

    Args:
        approved: The approved plan.
        site: The site, with its policy.

    Returns:
        The claims of the method as this site keeps them, and the budget of the whole plan.
    """
    planned = find_method(approved.method).planned(approved, site.count, site=site.name, policy=site.policy)
    return with_total_claim(approved, planned)


def _preflight_contract(approved: ApprovedPlan) -> Contract:
    if approved.preflight == "none":
        return Contract()
    from kohort.rounds.domains.preflight import check_preflight, preflight_steps

    check_preflight(approved)
    return Contract.of(preflight_steps(approved))


def usable_rows(frame: pl.DataFrame, schema: Schema, plan: Plan, *, also: Sequence[str] = ()) -> pl.DataFrame:
    """The rows of a table that a plan uses: those with consent and a target, and without missing values if it says so.

    A target of two numbers, or of few whole ones, gets a type that says that it holds classes. With `missing = "drop"`,
    rows with a missing value in any column of `schema` are left out. A plan that only runs the pre-flight check keeps
    all rows with consent.

    Args:
        frame: A site's table.
        schema: What its columns are.
        plan: The approved plan.
        also: Further columns to keep; rows with missing values in them stay.

    Returns:
        The rows, with the columns of `schema` and `also` alone.

    Raises:
        DataError: The column with consents holds a word that is neither a consent nor a refusal.
    """
    if plan.data.preflight == "only":
        return consenting_rows(frame.select(*schema.columns, *also), schema.consent)
    complete = complete_rows(frame, schema, plan, also=also)
    return complete if schema.target is None else settle_target(complete, schema.target, schema.columns[schema.target])


def complete_rows(frame: pl.DataFrame, schema: Schema, plan: Plan, *, also: Sequence[str] = ()) -> pl.DataFrame:
    """The rows that `usable_rows` gives, but with the target as it stands in the table.

    Args:
        frame: A site's table.
        schema: What its columns are.
        plan: The approved plan.
        also: Further columns to keep; rows with missing values in them stay.

    Returns:
        The rows, with the columns of `schema` and `also` alone.
    """
    frame = consenting_rows(frame.select(*schema.columns, *also), schema.consent)
    if plan.data.missing == "drop":
        return handle_missing(frame, list(schema.columns), "drop")
    return frame if schema.target is None else handle_missing(frame, [schema.target], "drop")
