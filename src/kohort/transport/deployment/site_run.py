"""What a site brings into every run, and how it turns a hub's plan into a run of its own.

The plan comes from the hub; everything that protects the site does not: rows, roles, policy, roster, approvals and
limits are the site's, and win. A plan can tighten the policy, never loosen it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from kohort.runs.config import PlanFile, load_plan
from kohort.tables.schema import Schema
from kohort.errors import ConfigError, DataError, IntegrityError, RefusedError
from kohort.rounds.clusters import join_cluster, planned_mates
from kohort.transport.site_server import OpenedRun
from kohort.protocol.enrolment import DESCRIBE, PREPARE
from kohort.rounds.phases import HasJobs
from kohort.protocol.key_holder import KEYS, OPEN
from kohort.transport.messages import Question
from kohort.protocol.plan import Setting
from kohort.protocol.site import Holding, Site
from kohort.transport.site_ledger import SiteBook
from kohort.transport.site_store import RunStore
from kohort.methods.registry import find_method
from kohort.privacy.ledger.ledger import Chain, canonical
from kohort.privacy.policy import Policy
from kohort.rng import Streams
from kohort.crypto.identity.keys import public_from_text
from kohort.crypto.sums.key_holder import FEWEST, KEY_HOLDER
from kohort.crypto.identity.roster import Roster
from kohort.crypto.sealed import Identity, PublicIdentity
from kohort.runs.simulation import usable_rows
from kohort.runs.backend import setting_for

__all__ = ["SCHEMA_KEYS", "Premises", "check_table", "hub_schema", "open_chain", "run_opener"]

_LARGEST_PLAN = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Premises:
    """What is the site's own in every run."""

    identity: Identity
    frame: pl.DataFrame = field(repr=False)
    schema: Schema
    policy: Policy
    roster: Roster
    streams: Callable[[RunStore], Streams]
    """The run's randomness: from the operating system, or, in tests, from a seed."""
    approve: Callable[[str], None] = lambda _: None
    """Raises a RefusedError for a plan hash the operator did not approve."""
    limit: Callable[[PlanFile], None] = lambda _: None
    """Raises a RefusedError when the operator's limits are reached."""
    low: int | None = None
    """How many rows of `frame`, the first ones, the operator called low-risk; None when no row was."""
    low_by_row: bool = False
    """Whether each row tells that by itself."""
    cluster: str = ""
    """The cluster of peers the operator named; empty for none."""


def open_chain(premises: Premises, book: SiteBook, secret: bytes) -> Chain:
    """The site's chain, bound to its schema and policy as every site's is."""
    policy = premises.policy
    binding = {
        "schema": premises.schema.fingerprint(),
        "policy": policy.to_mapping(),
        "rows_public": "rows" in policy.public,
    }
    return book.open_chain(premises.identity.name, secret=secret, binding=binding)


def run_opener(premises: Premises, book: SiteBook) -> Callable[[Question, bytes, RunStore], OpenedRun]:
    """How this site opens a run: the checks of `desk`, then a site with the plan's setting."""

    def open_run(question: Question, plan: bytes, store: RunStore) -> OpenedRun:
        raw = _checked_plan(plan, question.plan_hash)
        premises.approve(question.plan_hash)
        is_site = premises.identity.name != KEY_HOLDER
        schema = _agreed_schema(premises.schema, question) if is_site else premises.schema
        read = _read_plan(raw, question.plan_hash)
        premises.limit(read)
        if not is_site:
            return _open_for_key_holder(premises, book, read, question, store)
        setting = setting_for(read, schema=schema, run=question.run)
        method = find_method(read.method)
        holding = _holding(premises, schema, read)
        if not holding.low and _asks_for_low_rows(setting):
            raise RefusedError("the plan trains on low-risk rows, and no usable row here was called so in site.toml")
        site = Site(
            name=premises.identity.name,
            holding=holding,
            schema=schema,
            policy=premises.policy,
            streams=premises.streams(store),
            book=book,
        )
        site.policy = premises.policy.tightened(read.policy)
        site.setting = setting
        site.identity = premises.identity
        trusted = _trusted(premises.roster, store.peers or question.peers)
        mates = planned_mates(setting, site.name)
        # Where the operators approved who trains with whom, a hub cannot put anybody else among them.
        site.find_peer = (trusted if mates is None else {name: trusted[name] for name in mates & {*trusted}}).get
        join_cluster(site, premises.cluster)
        tasks = tuple(task.name for task in method.tasks)
        return OpenedRun(
            site=site,
            plan_task=f"{method.name}.plan",
            claims=method.claims(read.config, site.count),
            tasks=(DESCRIBE.name, PREPARE.name, *tasks),
            judged=(PREPARE.name, *tasks),
            store=store,
        )

    return open_run


def _holding(premises: Premises, schema: Schema, plan: PlanFile) -> Holding:
    """The rows the plan can use, low-risk ones first; where none were called so, every row carries a high risk."""
    frame = premises.frame.select(list(schema.columns))
    rows = usable_rows(frame, schema, plan)
    asked_of = frame.columns if plan.data.missing == "drop" else [str(schema.target)]
    low = frame.head(premises.low or 0).drop_nulls(asked_of).height
    return Holding(rows, 0, rows.height, low=low, low_by_row=premises.low_by_row)


def _asks_for_low_rows(setting: Setting) -> bool:
    config = setting.config
    return isinstance(config, HasJobs) and any(job.rows == "low" for job in config.jobs(setting.train))


def _open_for_key_holder(
    premises: Premises, book: SiteBook, plan: PlanFile, question: Question, store: RunStore
) -> OpenedRun:
    """A run as the key-holder takes part in it: without rows, for two tasks, never over fewer sites than allowed."""
    least = max(FEWEST, premises.policy.min_sum_sites, plan.policy.min_sum_sites)
    tasks = (KEYS.name, OPEN.name)
    site = Site(
        name=KEY_HOLDER,
        holding=Holding(pl.DataFrame(), 0, 0),
        schema=premises.schema,
        policy=Policy(tasks=tasks, min_sum_sites=least),
        streams=premises.streams(store),
        book=book,
    )
    site.setting = setting_for(plan, schema=premises.schema, run=question.run)
    site.identity = premises.identity
    site.find_peer = _trusted(premises.roster, store.peers or question.peers).get
    return OpenedRun(site=site, plan_task=f"{plan.method}.plan", claims=(), tasks=tasks, judged=tasks, store=store)


def hub_schema(plan: PlanFile, columns: list[str] | None) -> Schema:
    """The schema a hub means: for the columns of its test table or, without one, for those the plan names."""
    section = plan.data
    declared = Schema.of(**{key: getattr(section, key) for key in SCHEMA_KEYS})
    if columns is None:
        if section.features == "rest":
            raise ConfigError(
                'a hub without rows cannot know what features = "rest" are',
                hint="List data.features, or set data.test to a table with the same columns",
            )
        columns = [name for name in declared.columns if name not in declared.dropped]
    resolved = declared.resolve([name for name in columns if name not in declared.dropped] + list(declared.dropped))
    return Schema(columns=resolved.columns)


SCHEMA_KEYS = (
    "target", "quasi", "sensitive", "identifiers", "items", "features", "drop",
    "kinds", "bins", "bounds", "categories", "other", "nullable",
)  # fmt: skip


def _checked_plan(plan: bytes, wanted: str) -> Any:
    """The plan as plain values, if it hashes to `wanted`; cheap, for whatever comes in is hashed first."""
    if len(plan) > _LARGEST_PLAN:
        raise RefusedError("the plan is too large")
    try:
        raw = json.loads(plan)
        found = hashlib.blake2b(canonical(raw).encode(), digest_size=32).hexdigest()
    except (ValueError, RecursionError) as error:
        raise IntegrityError("the plan is not JSON") from error
    if found != wanted:
        raise IntegrityError("the plan does not hash to what the letter says")
    return raw


def _read_plan(raw: Any, wanted: str) -> PlanFile:
    try:
        read = load_plan(raw)
    except (ConfigError, AttributeError, TypeError) as error:
        reason = error.message if isinstance(error, ConfigError) else "its parts are of the wrong kind"
        raise RefusedError(f"the plan cannot be read by the kohort installed here: {reason}") from error
    if read.digest() != wanted:  # a default that hub and site do not share
        raise RefusedError("the kohort installed here reads the plan differently; install the same version")
    return read


def _agreed_schema(own: Schema, question: Question) -> Schema:
    """The site's own schema in the hub's column order, if that is the schema the hub means."""
    try:
        order: Any = json.loads(question.columns)
    except ValueError as error:
        raise IntegrityError("a letter's columns are malformed") from error
    if isinstance(order, list) and sorted(map(str, order)) == sorted(own.columns):
        agreed = Schema(columns={str(name): own.columns[str(name)] for name in order})
        if agreed.fingerprint() == question.schema:
            return agreed
    raise RefusedError("the plan is about another schema than this site's: its columns, roles, kinds or bounds differ")


def _trusted(roster: Roster, lines: bytes) -> Mapping[str, PublicIdentity]:
    """The peers among `lines` that the site's own roster knows."""
    found = [public_from_text(line) for line in lines.splitlines()]
    return {identity.name: identity for identity in found if roster.knows(identity.name, identity)}


def check_table(frame: pl.DataFrame, schema: Schema, name: str) -> pl.DataFrame:
    """The columns of `schema`, if the table has them all."""
    lacking = [column for column in schema.columns if column not in frame.columns]
    if lacking:
        raise DataError(f"the table of site {name!r} lacks columns: {', '.join(lacking)}", hint="Add them")
    return frame.select(list(schema.columns))
