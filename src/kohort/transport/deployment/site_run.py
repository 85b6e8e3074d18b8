"""What a site brings into every run, and how it turns a hub's plan into a run of its own.

The plan comes from the hub; everything that protects the site does not: rows, roles, policy, roster, approvals and
limits are the site's, and win. A plan can tighten the policy, never loosen it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import polars as pl

from kohort.crypto.identity.keys import public_from_text
from kohort.crypto.identity.roster import Roster
from kohort.crypto.sealed import Identity, PublicIdentity
from kohort.crypto.sums.key_book import KeyBook
from kohort.crypto.sums.scheme import KEY_HOLDER, MIN_SITES
from kohort.errors import ConfigError, DataError, IntegrityError, KohortError, RefusedError
from kohort.methods.registry import find_method
from kohort.models.base import Model
from kohort.models.files import save_model
from kohort.privacy.ledger.ledger import Chain, canonical
from kohort.privacy.openings import OpeningBook
from kohort.privacy.policy import Policy
from kohort.privacy.releases import ReleaseAccount
from kohort.protocol.enrolment import DESCRIBE
from kohort.protocol.key_holder import KEYS, OPEN, KeyHolderState, key_holder_contract
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.site import Site, SiteTable, UnusedRows
from kohort.rng import Streams
from kohort.rounds.clusters import join_cluster
from kohort.rounds.sealed_messages import planned_mates
from kohort.runs.agreed import approved_plan_for, claims_at, usable_rows
from kohort.runs.config import Plan, load_plan
from kohort.tables.consent import consenting_rows
from kohort.tables.item_sets import set_names
from kohort.tables.schema import Schema
from kohort.transport.deployment.appended import AppendedRows
from kohort.transport.deployment.domains import schema_differences
from kohort.transport.deployment.settings import SCHEMA_KEYS
from kohort.transport.messages import RequestMessage
from kohort.transport.site_ledger import SiteLedger
from kohort.transport.site_server import OpenedRun
from kohort.transport.site_store import RunStore

__all__ = ["SCHEMA_KEYS", "SiteResources", "check_table", "hub_schema", "open_chain", "require_mapping", "run_opener"]

_LARGEST_PLAN = 1 << 20
_MOST_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class SiteResources:
    """What is the site's own in every run."""

    identity: Identity
    frame: pl.DataFrame = field(repr=False)
    schema: Schema
    policy: Policy
    read_again: Callable[[], pl.DataFrame] | None = field(default=None, repr=False)
    """Reads the site's table as it is now, in its own order; None where it cannot be read again."""
    roster: Callable[[], Roster]
    """Whom it trusts now: read anew at every request, so that a revocation ends open runs."""
    hub: PublicIdentity | None = None
    """Whose requests it answers."""
    streams: Callable[[RunStore], Streams]
    """The run's randomness: from the operating system, or, in tests, from a seed."""
    approve: Callable[[str], None] = lambda _: None
    """Raises a RefusedError for a plan hash the operator did not approve."""
    limit: Callable[[Sequence[str], bool], None] = lambda *_: None
    """Raises a RefusedError when the operator's limits are reached: on these tasks, and, if a run begins, on runs."""
    low: int | None = None
    """How many rows of `frame`, the first ones, the operator called low-risk; None when no row was."""
    low_by_row: bool = False
    """Whether each row tells that by itself."""
    is_read: bool = False
    """Whether `site.toml` says how its table is read."""
    is_mapped: bool = False
    """Whether the site applied a mapping to its table."""
    cluster: str = ""
    """The cluster of peers the operator named; empty for none."""
    openings: OpeningBook = field(default_factory=OpeningBook)
    """The totals it took part in, over all runs."""
    releases: ReleaseAccount = field(default_factory=ReleaseAccount)
    """Whom it released in which classes, over all runs."""
    book: KeyBook = field(default_factory=KeyBook)
    """What a key-holder offered and opened, over all runs."""


def require_mapping(resources: SiteResources, plan: Plan) -> None:
    """Refuse a plan for mapped tables at a site that applies no mapping: its values would mean something else.

    A plan's mapping is never applied here; the site's own is, and its operator may have corrected it. The same holds
    for what a plan says of missing values and sets in `data.reading`.

    Args:
        resources: What the site brings into the run.
        plan: The hub's plan.

    Raises:
        RefusedError: The plan has a mapping or a reading, and `site.toml` names none.
    """
    reading = plan.data.reading
    if (
        reading is not None
        and (reading.null_values or reading.separator or reading.sets or reading.long)
        and not resources.is_read
    ):
        raise RefusedError(
            "the plan says how missing values and sets are written, and site.toml does not",
            hint="Set reading = {...} under [data] for your own table; reading = {} says that it needs none",
        )
    if plan.data.mapping is not None and not resources.is_mapped:
        raise RefusedError(
            "the plan is for tables with a mapping, and site.toml names none",
            hint='Set mapping = "mapping.toml" under [site]; an empty file says that the table agrees as it is',
        )


def open_chain(resources: SiteResources, ledger: SiteLedger, secret: bytes) -> Chain:
    """The site's chain, bound to its schema and policy as every site's is.

    Args:
        resources: What the site brings into every run.
        ledger: The ledger that the chain is a part of.
        secret: The site's secret key of the chain.

    Returns:
        The chain, after all that was written before.
    """
    policy = resources.policy
    binding = {
        "schema": resources.schema.fingerprint(),
        "policy": policy.to_mapping(),
        "rows_public": "rows" in policy.public,
    }
    return ledger.open_chain(resources.identity.name, secret=secret, binding=binding)


def run_opener(resources: SiteResources, ledger: SiteLedger) -> Callable[[RequestMessage, bytes, RunStore], OpenedRun]:
    """How this site opens a run: the checks of `site_server`, then a site with the plan's approved.

    Args:
        resources: What the site brings into every run.
        ledger: Where it writes what leaves.

    Returns:
        A function of the request, the plan as bytes and the stored run. It raises a RefusedError for a plan that the
        operator did not approve, that this kohort cannot read or reads differently, or that does not fit the site's
        schema, mapping or limits.
    """

    def open_run(incoming: RequestMessage, plan: bytes, store: RunStore) -> OpenedRun:
        raw = _checked_plan(plan, incoming.plan_hash)
        resources.approve(incoming.plan_hash)
        is_site = resources.identity.name != KEY_HOLDER
        read = _read_plan(raw, incoming.plan_hash)
        schema = _agreed_schema(resources.schema, incoming, read) if is_site else resources.schema
        if not is_site:
            return _open_for_key_holder(resources, ledger, read, incoming, store)
        require_mapping(resources, read)
        peers = store.peers or incoming.peers
        approved = approved_plan_for(read, schema=schema, run=incoming.run, sites=_sites_in(peers))
        method = find_method(read.method)
        streams, frame, arriving = resources.streams(store), resources.frame, None
        if approved.arrival is not None and approved.arrival.appended:
            arriving = _arriving(resources, schema, read, store, streams)
            frame, table = arriving.whole, SiteTable(arriving.rows, 0, arriving.rows.height)
        else:
            table = _table(resources, schema, read)
        if not table.low and _asks_for_low_rows(approved):
            raise RefusedError("the plan trains on low-risk rows, and no usable row here was called so in site.toml")
        site = Site(
            name=resources.identity.name,
            table=table,
            schema=schema,
            policy=resources.policy,
            streams=streams,
            ledger=ledger,
        )
        site.read_appended = None if arriving is None else arriving.since
        site.policy = resources.policy.tightened(read.policy)
        site.approved = approved
        site.identity, site.deployed = resources.identity, True
        trusted = _trusted(resources.roster(), peers)
        mates = None if approved.secure is not None else planned_mates(approved, site.name)
        # Where the operators approved who trains with whom, a hub cannot put anybody else among them.
        site.find_peer = (trusted if mates is None else {name: trusted[name] for name in mates & {*trusted}}).get
        join_cluster(site, resources.cluster)
        site.write_model = _keep_model_of(site, store)
        site.openings = resources.openings
        site.releases = resources.releases
        site.unused = _unused(frame, schema, read)
        site.before = _before(resources, schema) if arriving is None else None
        tasks = tuple(dict.fromkeys(step.task for step in approved.contract if step.task != DESCRIBE.name))
        resources.limit(tasks, not store.plan)
        pinned = _pinned_roster(resources, peers, store)

        def check() -> None:
            resources.approve(incoming.plan_hash)
            resources.limit(tasks, False)
            _check_roster(resources, peers, pinned)

        return OpenedRun(
            site=site,
            check=check,
            plan_task=f"{method.name}.plan",
            claims=claims_at(approved, site),
            judged=tasks,
            store=store,
        )

    return open_run


def _keep_model_of(site: Site, store: RunStore) -> Callable[[Model], None]:
    """Writes the model that the site has with its peers beside the run's other files; the last one stays."""

    def keep(model: Model) -> None:
        if store.folder is not None:
            about = {"method": site.plan.method, "run": site.plan.run, "site": site.name}
            save_model(model, store.folder / "model", about=about, private=True)

    return keep


def _arriving(resources: SiteResources, schema: Schema, plan: Plan, store: RunStore, streams: Streams) -> AppendedRows:
    """The table as it grows over the run, where the plan takes rows that are appended.

    Raises:
        RefusedError: The table cannot be read again, or what the run began with was changed since.
    """
    if resources.read_again is None:
        raise RefusedError("the plan takes rows that are appended, and this site's table cannot be read again")
    return AppendedRows(
        resources.read_again,
        usable=lambda frame: usable_rows(frame, schema, plan),
        store=store,
        key=streams.bytes("appended rows"),
    )


def _table(resources: SiteResources, schema: Schema, plan: Plan) -> SiteTable:
    """The rows the plan can use, low-risk ones first; where none were called so, every row carries a high risk."""
    frame = resources.frame.select(list(schema.columns))
    rows = usable_rows(frame, schema, plan)
    asked_of = frame.columns if plan.data.missing == "drop" else [str(schema.target)]
    low = consenting_rows(frame.head(resources.low or 0), schema.consent).drop_nulls(asked_of).height
    return SiteTable(rows, 0, rows.height, low=low, low_by_row=resources.low_by_row)


def _before(resources: SiteResources, schema: Schema) -> SiteTable:
    """The rows with consent, before those without a target or another value are left out."""
    frame = resources.frame.select(list(schema.columns))
    rows, low = consenting_rows(frame, schema.consent), consenting_rows(frame.head(resources.low or 0), schema.consent)
    return SiteTable(rows, 0, rows.height, low=low.height, low_by_row=resources.low_by_row)


def _unused(frame: pl.DataFrame, schema: Schema, plan: Plan) -> dict[str, UnusedRows]:
    """The rows of the table that take no part, by reason, and the persons they are about; of rows with consent."""
    frame = consenting_rows(frame, schema.consent)
    answered = pl.lit(value=True) if schema.target is None else pl.col(schema.target).is_not_null()
    found = {"target": ~answered}
    if plan.data.missing == "drop":
        found["drop"] = answered & pl.any_horizontal(pl.col(list(schema.columns)).is_null())
    person = schema.identifiers[0] if schema.identifiers else None
    unused = {}
    for reason, rows in found.items():
        left_out = frame.filter(rows)
        persons = left_out.height if person is None else left_out[person].n_unique()
        unused[reason] = UnusedRows(left_out.height, persons)
    return unused


def _asks_for_low_rows(approved: ApprovedPlan) -> bool:
    return any(phase.rows == "low" for phase in approved.phases)


def _open_for_key_holder(
    resources: SiteResources, ledger: SiteLedger, plan: Plan, incoming: RequestMessage, store: RunStore
) -> OpenedRun:
    """A run as the key-holder takes part in it: without rows, for two tasks, never over fewer sites than allowed."""
    least = max(MIN_SITES, resources.policy.min_sum_sites, plan.policy.min_sum_sites)
    tasks = (KEYS.name, OPEN.name)
    resources.limit(tasks, not store.plan)
    site = Site(
        name=KEY_HOLDER,
        table=SiteTable(pl.DataFrame(), 0, 0),
        schema=resources.schema,
        policy=Policy(tasks=tasks, min_sum_sites=least),
        streams=resources.streams(store),
        ledger=ledger,
    )
    peers = store.peers or incoming.peers
    site.approved = approved_plan_for(plan, schema=resources.schema, run=incoming.run, sites=_sites_in(peers))
    site.identity, site.deployed = resources.identity, True
    site.find_peer = _trusted(resources.roster(), peers).get
    site.state(KeyHolderState).book = resources.book
    site.openings = resources.openings
    site.contract_of = key_holder_contract
    pinned = _pinned_roster(resources, peers, store)

    def check() -> None:
        resources.approve(incoming.plan_hash)
        resources.limit(tasks, False)
        _check_roster(resources, peers, pinned)

    return OpenedRun(site=site, check=check, plan_task=f"{plan.method}.plan", claims=(), judged=tasks, store=store)


def hub_schema(plan: Plan, columns: list[str] | None) -> Schema:
    """The schema that a hub means.

    Args:
        plan: The plan.
        columns: Those of its test table; None without one: those the plan names.

    Returns:
        The schema.

    Raises:
        ConfigError: Features are "rest", and there is no table that says what they are.
    """
    section = plan.data
    roles = {key: getattr(section, key) for key in SCHEMA_KEYS}
    declared = Schema.of(**{**roles, "items": set_names(section.items, section.reading)})
    if columns is None:
        if section.features == "rest":
            raise ConfigError(
                'a hub without rows cannot know what features = "rest" are',
                hint="List data.features, or set data.test to a table with the same columns",
            )
        columns = [name for name in declared.columns if name not in declared.dropped]
    resolved = declared.resolve([name for name in columns if name not in declared.dropped] + list(declared.dropped))
    return Schema(columns=resolved.columns, person=resolved.person)


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
        raise IntegrityError("the plan does not hash to what the message says")
    return raw


def _read_plan(raw: Any, wanted: str) -> Plan:
    try:
        read = load_plan(raw, complete=True)
    except (ConfigError, AttributeError, TypeError) as error:
        reason = error.message if isinstance(error, ConfigError) else "its parts are of the wrong kind"
        raise RefusedError(f"the plan cannot be read by the kohort installed here: {reason}", code="version") from error
    if read.digest() != wanted:  # a default that hub and site do not share
        raise RefusedError(
            "the kohort installed here reads the plan differently; install the same version", code="version"
        )
    return read


def _agreed_schema(own: Schema, incoming: RequestMessage, plan: Plan) -> Schema:
    """The site's own schema in the hub's column order, if that is the schema the hub means."""
    try:
        order: Any = json.loads(incoming.columns)
    except ValueError as error:
        raise IntegrityError("a message's columns are malformed") from error
    if isinstance(order, list) and sorted(map(str, order)) == sorted(own.columns):
        agreed = Schema(columns={str(name): own.columns[str(name)] for name in order}, person=own.person)
        if agreed.fingerprint() == incoming.schema:
            return agreed
    columns = [str(name) for name in order] if isinstance(order, list) else []
    raise RefusedError(
        "the plan is about another schema than this site's: its columns, roles, kinds or bounds differ"
        + _differences(own, plan, columns),
        code="schema",
    )


def _differences(own: Schema, plan: Plan, columns: list[str]) -> str:
    """Which columns differ, for the site's own ledger; empty when the plan itself does not tell."""
    try:
        found = schema_differences(own, hub_schema(plan, columns))
    except KohortError:
        return ""
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return f" ({'; '.join(found[:_MOST_NAMED])}{more})" if found else ""


def _pinned_roster(resources: SiteResources, peers: bytes, store: RunStore) -> str:
    """The roster hash a run began under, kept with the run; a run that began under another one has ended."""
    pinned = store.pin("roster", _roster_hash(resources, peers))
    _check_roster(resources, peers, pinned)
    return pinned


def _check_roster(resources: SiteResources, peers: bytes, pinned: str) -> None:
    if resources.hub is not None and resources.hub.fingerprint in resources.roster().revoked:
        raise RefusedError("the hub's fingerprint was revoked", code="roster")
    if _roster_hash(resources, peers) != pinned:
        raise RefusedError(
            "the roster changed since the run began: a key of its sites was revoked, rotated or newly trusted. The run "
            "has ended here, and a new one is needed",
            code="roster",
        )


def _roster_hash(resources: SiteResources, lines: bytes) -> str:
    """The hash of the run's sites as far as this site trusts them, itself included."""
    roster = resources.roster()
    known = {*_trusted(roster, lines), *({resources.identity.name} & set(roster.valid))}
    return roster.hash(known)


def _sites_in(lines: bytes) -> tuple[str, ...]:
    """The names of the run's sites, in the hub's order. Whom of them this site trusts is its roster's to say."""
    names = [_peer(line).name for line in lines.splitlines()]
    return tuple(name for name in names if name != KEY_HOLDER)


@lru_cache(maxsize=4096)
def _peer(line: bytes) -> PublicIdentity:
    """A site of the run as the hub names it. It is looked up at every request, and read once."""
    return public_from_text(line)


def _trusted(roster: Roster, lines: bytes) -> Mapping[str, PublicIdentity]:
    """The peers among `lines` that the site's own roster knows."""
    found = [_peer(line) for line in lines.splitlines()]
    return {identity.name: identity for identity in found if roster.knows(identity.name, identity)}


def check_table(frame: pl.DataFrame, schema: Schema, name: str) -> pl.DataFrame:
    """The columns of a schema, if the table has them all.

    Args:
        frame: The table.
        schema: The columns.
        name: The site, for the error.

    Returns:
        Those columns alone.

    Raises:
        DataError: Columns are lacking.
    """
    lacking = [column for column in schema.columns if column not in frame.columns]
    if lacking:
        raise DataError(f"the table of site {name!r} lacks columns: {', '.join(lacking)}", hint="Add them")
    return frame.select(list(schema.columns))
