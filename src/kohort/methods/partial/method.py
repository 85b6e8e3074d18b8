"""Partially-federated learning (Fisichella, Lax, Russo: Partially-federated learning: A new approach to achieving
privacy and effectiveness, Information Sciences 614, 2022).

A gate at each site selects the rows whose quasi-identifiers are shared by at least k rows. These rows are sent to the
hub; sites train on the others. The hub trains on the rows it received, as one more participant, and all weights are
averaged by rows. k = 1 is exactly central learning, and k above the largest group is exactly federated averaging.

Threat model: the hub is honest but curious. It sees the shared rows and each site's weights. With `count = "secure"` it
sees capped totals of opaque keys; the hub and one colluding site see the totals of keys that this site can name.

Guarantee: KAnonymous(release_k, release_l) or Raw for the shared rows, Aggregate for the weights trained on the others.

Sharp edges: the paper sends rows as they are, and most of them are unique on the columns sent, though their
quasi-identifiers are not. The default, `released = "generalised"`, generalises every column but the target until each
batch is k-anonymous by itself, verified by the checker. A Byzantine site can force approvals in a count across sites,
so raw rows then need a policy that trusts such counts.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import polars as pl
from annotated_types import Ge, Gt, Le
from numpy.typing import NDArray

from kohort.anonymity.gate.gate import apply_gate, count_groups, count_keys, count_unit, person_codes
from kohort.crypto.counting import fingerprints
from kohort.crypto.sums.scheme import find_scheme
from kohort.errors import RefusedError
from kohort.methods.partial.release import generalise_batch
from kohort.methods.registry import Method
from kohort.models.rows import encode_rows
from kohort.privacy.contract import Contract, Step
from kohort.privacy.guarantee import Aggregate, Guarantee, KAnonymous, Public, Raw
from kohort.protocol.hub import Ask, Expect, Hub, ProtocolGenerator, Replies, Result, RoundEnd
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.plan.phases import SecureSumSection
from kohort.protocol.plan.reads import ARRIVALS, FEDERATED_ROUNDS, NETWORK, Reads
from kohort.protocol.site import Site
from kohort.protocol.state import TaskState
from kohort.protocol.table_payload import pack_table, unpack_table
from kohort.protocol.task import Release, Request, Task
from kohort.protocol.wire import Payload
from kohort.rounds.counting import Approved, KeyCounts, SecureCount, is_approved
from kohort.rounds.hub_training import HubTrainer
from kohort.rounds.loop import TrainingGroup, federated_rounds
from kohort.rounds.training import training_step

__all__ = ["METHOD", "Gate", "Partial"]

SENDER, BATCH = "sender", "batch"
_ROW_COUNTS = Public(what="row counts")
OPEN_SECRET = b"everybody knows this secret".ljust(32, b".")


@dataclass(frozen=True, kw_only=True)
class Gate:
    """`[method.gate]`: which rows are sent to the hub, how they are counted, and in which form they are sent."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field

    rule: str = "k-anonymity"
    k: Annotated[int, Ge(1)] = 100
    """Fewest rows per key. Not used by paper-l, which has l instead."""
    l: Annotated[int, Ge(1)] | None = None  # noqa: E741 - the literature's own letter
    t: Annotated[float, Gt(0), Le(1)] | None = None
    strict: bool = False
    """Demand more than k, as the paper's text says, instead of at least k."""
    overlap: Annotated[int, Ge(1)] = 1
    """At how many sites one person may occur: a count across sites then demands this many times k."""
    key: str = "exact"
    count: Literal["secure", "local", "global"] = "secure"
    """secure: over all sites in a secure sum | local: over the site's own rows | global: over all sites in clear
    (simulation only)"""
    released: Literal["generalised", "raw"] = "generalised"
    release_k: Annotated[int, Ge(2)] = 10
    release_l: Annotated[int, Ge(1)] = 2
    keep_days: Annotated[int, Ge(1)] = 365
    """Days the hub may keep the rows it receives. Sites approve it with the plan."""


@dataclass(frozen=True, kw_only=True)
class Partial:
    """`[method]` of partially-federated learning."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field

    gate: Gate = field(default_factory=Gate)
    secure: SecureSumSection = field(default_factory=SecureSumSection)
    """How the counts are summed; by masks unless it says otherwise."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "secure", self.secure.or_scheme("masks"))


def _config(approved: ApprovedPlan) -> Partial:
    config = approved.config
    if not isinstance(config, Partial):
        raise RefusedError("the approved plan is not a partial federation")
    return config


def _threshold(gate: Gate) -> int:
    """The total a key must reach: k or, for the paper's second algorithm, l; plus 1 if strict; times the overlap."""
    least = gate.l if count_unit(gate.rule) == "key+sensitive" and gate.l is not None else gate.k
    return (least + gate.strict) * gate.overlap


@dataclass(frozen=True, eq=False)
class _OwnKeys:
    """The rows that have arrived, with the key of each row, and the keys with their counts."""

    round: int
    present: NDArray[np.bool_]
    """Which of the site's rows have arrived."""
    frame: pl.DataFrame
    codes: NDArray[np.int64]
    counts: KeyCounts


@dataclass
class GateState(TaskState):
    """What the gate of a site remembers between the stages of a run."""

    keys: _OwnKeys | None = None
    """The rows and keys of the latest stage."""
    shipped: NDArray[np.bool_] | None = None
    """Which rows were sent to the hub: no row is sent twice."""
    granted: set[bytes] = field(default_factory=set)
    """Keys that were approved in any stage; an approval is never withdrawn."""


def _open_stage(site: Site, round_number: int) -> _OwnKeys:
    """Count the keys of the rows that have arrived; once per stage."""
    known = site.state(GateState).keys
    if known is not None and known.round == round_number:
        return known
    gate, schema, arrival = _config(site.plan).gate, site.schema, site.plan.arrival
    present = np.ones(site.count, dtype=bool)
    if arrival is not None:
        present = arrival.present(site.count, round_number, site.streams)
    frame = site.table.rows().filter(pl.Series(present))
    identifier = schema.identifiers[0] if schema.identifiers else None
    keys = count_keys(frame, quasi=schema.quasi, sensitive=schema.target, rule=gate.rule, key=gate.key)
    counts = count_groups(keys, None if identifier is None else person_codes(frame, identifier))
    made = _OwnKeys(
        round=round_number,
        present=present,
        frame=frame,
        codes=keys.codes,
        counts=KeyCounts(keys=list(keys.texts), counts=counts, rows=frame.height, cap=_threshold(gate)),
    )
    site.state(GateState).keys = made
    return made


def _own_keys(site: Site) -> _OwnKeys:
    """The keys of the latest stage."""
    known = site.state(GateState).keys
    return _open_stage(site, 0) if known is None else known


COUNT = SecureCount(
    "partial.count",
    counts_of=lambda site: _own_keys(site).counts,
    scheme=lambda approved: _config(approved).secure.sum,
    again=True,
)


def _news(site: Site, request: Request) -> Release:
    """Begin a stage at this site, and say how many rows have arrived since its last count."""
    _open_stage(site, request.round)
    return Release(payload=Payload(metrics={"new": COUNT.new_rows(site)}), guarantee=_ROW_COUNTS, rows=0)


NEWS = Task(name="partial.news", one=_news)


def _tell_counts(site: Site, request: Request) -> Release:
    """`count = "global"`: the paper's count in clear. Its keys can be guessed, so it is claimed as raw."""
    del request
    own = _own_keys(site).counts
    prints = fingerprints(OPEN_SECRET, own.keys)
    arrays = {"f": prints.f, "h": prints.h, "counts": own.counts.astype(np.int64)}
    return Release(payload=Payload(arrays=arrays), guarantee=Raw(rows=own.rows), rows=own.rows)


TELL_COUNTS = Task(name="partial.counts", one=_tell_counts)


def _approved_keys(site: Site, request: Request, own: _OwnKeys, gate: Gate) -> NDArray[np.bool_]:
    """Which of the site's keys this request approves: those proven to be frequent or, in clear, what the hub says."""
    arrays = request.payload.arrays
    if gate.count == "global":
        return is_approved(fingerprints(OPEN_SECRET, own.counts.keys), arrays["f"], arrays["h"])
    proven = COUNT.proven(site, request.round, arrays["totals"])
    if proven is None:
        return np.zeros(len(own.counts.keys), dtype=bool)
    return is_approved(COUNT.prints(site), proven.f, proven.h)


def _shared_rows(site: Site, request: Request) -> NDArray[np.bool_]:
    """The gate's decision for every row of this site."""
    gate, schema = _config(site.plan).gate, site.schema
    own = _own_keys(site)
    counts = None
    if gate.count != "local":
        approved = _approved_keys(site, request, own, gate)
        granted = site.state(GateState).granted
        granted.update(
            key for key, good in zip(own.counts.keys, approved, strict=True) if good
        )  # an approval is never withdrawn
        counts = np.asarray([2 * _threshold(gate) if key in granted else 0 for key in own.counts.keys], dtype=np.int64)
    # Sizes were counted over all sites; diversity is judged on the site's own rows.
    mask = apply_gate(
        own.frame,
        quasi=schema.quasi,
        sensitive=schema.target,
        identifier=schema.identifiers[0] if schema.identifiers else None,
        rule=gate.rule,
        k=None if gate.rule == "paper-l" else gate.k,
        l=gate.l,
        t=gate.t,
        strict=gate.strict,
        key=gate.key,
        counts=counts,
    ).mask
    # The site's policy can demand a minimum among its own rows as well.
    decided: NDArray[np.bool_] = mask & (own.counts.counts[own.codes] >= site.policy.min_gate_k)
    return decided


def _share(site: Site, request: Request) -> Release:
    """Send the rows that pass the gate, and keep the others for training at this site."""
    approved = site.plan
    gate, schema, encoder = _config(approved).gate, site.schema, site.encoder
    own = _own_keys(site)
    frame = own.frame
    state = site.state(GateState)
    if state.shipped is None:
        state.shipped = np.zeros(site.count, dtype=bool)
    shipped = state.shipped
    mask = _shared_rows(site, request) & ~shipped[own.present]  # no row is sent twice
    shared, guarantee = _releasable(site, frame.filter(pl.Series(mask)), gate)
    if shared is None:  # too few for a batch: they stay until more rows arrive
        mask = np.zeros(frame.height, dtype=bool)
    shipped[np.flatnonzero(own.present)[mask]] = True
    kept = frame.filter(pl.Series(~shipped[own.present]))
    trains = kept.height >= site.policy.min_rows
    site.training_rows = encode_rows(encoder, kept) if trains else None
    columns = (*schema.inputs, str(schema.target))
    table = pack_table((frame.head(0) if shared is None else shared).select(columns))
    payload = Payload(metrics={"shared": int(mask.sum()), "kept": kept.height if trains else 0}, blobs={"table": table})
    return Release(payload=payload, guarantee=guarantee, rows=int(mask.sum()))


def _releasable(site: Site, frame: pl.DataFrame, gate: Gate) -> tuple[pl.DataFrame | None, Guarantee]:
    """The rows in the form in which they are sent, with the claim; None when nothing is sent."""
    if frame.height == 0:
        return None, _ROW_COUNTS
    if gate.released == "raw":
        return frame, Raw(rows=frame.height, counted_by="" if gate.count == "local" else "other sites")
    k, l = max(gate.release_k, site.policy.min_k), max(gate.release_l, site.policy.min_l)  # noqa: E741
    domain = site.encoder.domain
    try:
        batch = generalise_batch(frame, schema=site.schema, domain=domain, k=k, l=l)
    except RefusedError:
        return None, _ROW_COUNTS
    return batch, KAnonymous(k=k, l=l, rows=batch.height, verified=True)


SHARE = Task(name="partial.share", one=_share)


def _count(config: Partial, hub: Hub, round_number: int) -> Generator[Ask | RoundEnd, Any, Approved | None]:
    """The approved keys; None when sites count by themselves, or when too few new rows arrived for a new count."""
    gate = config.gate
    news: Replies = yield Ask(task=NEWS, to=hub.sites, round=round_number, expect=Expect(metrics=("new",)))
    if gate.count == "local":
        return None
    new = news.metric("new")
    if round_number and ((new > 0).sum() < max(3, config.secure.colluders + 2) or new.sum() < _threshold(gate)):
        return None  # two counts that differ by a few rows would disclose the keys of those rows
    if gate.count == "secure":
        if len(hub.sites) < 3:
            raise RefusedError(
                f"a secure count needs three sites, {len(hub.sites)} take part: two would see each other's counts",
                hint='Add sites, or set method.gate.count = "local"',
            )
        found = yield from COUNT.run(hub, threshold=_threshold(gate), stage=round_number)
        return found
    replies: Replies = yield Ask(
        task=TELL_COUNTS,
        to=hub.sites,
        round=round_number,
        expect=Expect(arrays={"f": ("<u8", (None,)), "h": ("<u8", (None,)), "counts": ("<i8", (None,))}),
    )
    return _add_counts(replies, _threshold(gate))


def _add_counts(replies: Replies, threshold: int) -> Approved:
    totals: dict[tuple[int, int], int] = {}
    for payload in replies.payloads():
        parts = (payload.arrays[name].tolist() for name in ("f", "h", "counts"))
        for f, h, count in zip(*parts, strict=True):
            totals[f, h] = totals.get((f, h), 0) + count
    good = [key for key, total in totals.items() if total >= threshold]
    f, h = (np.asarray([key[part] for key in good], dtype=np.uint64) for part in (0, 1))
    return Approved(f, h, len(totals), 0)


class _Stages:
    """The gate's stages, before the first round and whenever rows arrive: count, share, and choose who trains."""

    def __init__(self, config: Partial, hub: Hub) -> None:
        self.received: pl.DataFrame | None = None
        self.group = TrainingGroup(sites=hub.sites)
        self.withheld_cells = 0
        self._config = config
        self._hub = hub
        self._columns = (*hub.approved.schema.inputs, str(hub.approved.schema.target))
        self._batches = 0

    def before(self, round_number: int) -> Generator[Ask | RoundEnd, Any, TrainingGroup | None]:
        arrival = self._hub.approved.arrival
        if round_number and (arrival is None or not arrival.brings_rows(round_number)):
            return None
        approved = yield from _count(self._config, self._hub, round_number)
        nothing = np.empty(0, dtype=np.uint64)
        known = approved or Approved(nothing, nothing, 0, 0)
        in_clear = self._config.gate.count == "global"
        answers: Replies = yield Ask(
            task=SHARE,
            to=self._hub.sites,
            payload=Payload(arrays={"f": known.f, "h": known.h} if in_clear else {"totals": known.totals}),
            round=round_number,
            expect=Expect(metrics=("shared", "kept"), blobs=("table",)),
        )
        self.withheld_cells += known.withheld_cells
        self._collect(answers)
        return self.group

    def _collect(self, answers: Replies) -> None:
        self._batches += 1
        tables = [] if self.received is None else [self.received]
        trainers = []
        for site, payload in zip(answers.sites, answers.payloads(), strict=True):
            if payload.metrics["kept"]:
                trainers.append(site)
            if payload.metrics["shared"]:
                table = unpack_table(payload.blobs["table"], expect=self._columns)
                tables.append(table.with_columns(pl.lit(site).alias(SENDER), pl.lit(self._batches).alias(BATCH)))
        self.received = pl.concat(tables, how="vertical_relaxed") if tables else None
        hub_part = None
        if self.received is not None:
            generalised = self._config.gate.released == "generalised"
            hub_part = HubTrainer(self._hub, self.received, generalised=generalised)
        self.group = TrainingGroup(sites=tuple(trainers), participant=hub_part)


def protocol(config: Partial, hub: Hub) -> ProtocolGenerator:
    """Count, share, then train: sites on the rows they kept, the hub on the rows it received.

    Counting and sharing are repeated whenever rows arrive.

    Raises:
        RefusedError: A secure count has fewer than three sites.
    """
    stages = _Stages(config, hub)
    weights = hub.network.start(hub.streams.generator("start"))
    ended = yield from federated_rounds(hub, weights, before=stages.before)
    return Result(
        model=hub.model_of(ended.weights),
        rounds=ended.rounds,
        stopped_by=ended.stopped_by,
        received=stages.received,
        keep_days=config.gate.keep_days,
        notes=_notes(config, hub, stages),
    )


def _notes(config: Partial, hub: Hub, stages: _Stages) -> tuple[str, ...]:
    rows, received, trainers = sum(hub.rows.values()), stages.received, stages.group.sites
    if received is None:
        return ("no row passed the gate: the run was federated averaging",)
    notes = [f"{received.height:,} of {rows:,} rows were shared, {config.gate.released}"]
    if config.gate.released == "raw":
        alone = received.drop(SENDER, BATCH).is_unique().sum()
        share = f"{alone / received.height:.1%}"
        notes.append(f"{alone:,} of {received.height:,} shipped rows ({share}) are unique on the shipped columns")
    if len(trainers) < len(hub.sites):
        notes.append(f"{len(hub.sites) - len(trainers)} sites kept too few rows to train on, or none")
    if stages.withheld_cells:
        notes.append(f"{stages.withheld_cells} cells of the count could not be read; their keys were withheld")
    return tuple(notes)


def claims(config: Partial, rows: int) -> Sequence[Guarantee]:
    """What a site with `rows` rows discloses: rows that pass its gate, weights trained on the others, and counts."""
    gate = config.gate
    made: list[Guarantee] = [Aggregate(rows=rows)]
    if gate.released == "raw":
        made.append(Raw(rows=rows, counted_by="" if gate.count == "local" else "other sites"))
    else:
        made.append(KAnonymous(k=gate.release_k, l=gate.release_l, rows=rows, verified=True))
    if gate.count == "global":
        made.append(Raw(rows=rows))
    if gate.count == "secure":
        made.append(find_scheme(config.secure.sum).claim(3, rows))
    return tuple(made)


def contract(approved: ApprovedPlan) -> Contract:
    """Before the first round and whenever rows arrive: news, a count, rows. Then weights once per round."""
    gate, train = _config(approved).gate, training_step(approved)
    arrival = approved.arrival
    stages = [0] if arrival is None else [number for number in train.rounds if arrival.brings_rows(number)]
    news = Step(task=NEWS.name, says="how many rows arrived", claims=(_ROW_COUNTS,), rounds=stages)
    says = "rows that pass the gate, generalised"
    claims: tuple[Guarantee, ...] = (_classes(gate), _ROW_COUNTS)
    if gate.released == "raw":
        claims = (Raw(rows=0, counted_by="" if gate.count == "local" else "other sites"), _ROW_COUNTS)
        says = "rows that pass the gate, as they are"
    share = Step(task=SHARE.name, says=says, claims=claims, rounds=stages, rows=True)
    count: list[Step] = []
    if gate.count == "secure":
        count = COUNT.steps(approved, says="how often each key of quasi-identifiers occurs", stages=stages)
    elif gate.count == "global":
        clear = "your keys of quasi-identifiers and how often each occurs, in clear"
        count = [Step(task=TELL_COUNTS.name, says=clear, claims=(Raw(rows=0),), rounds=stages)]
    return Contract.of([news, *count, share, train])


def _classes(gate: Gate) -> Guarantee:
    return KAnonymous(k=gate.release_k, l=gate.release_l, verified=True)


def reads(config: Partial) -> Reads:
    """What the shared loop of rounds reads, and how rows arrive."""
    del config
    return Reads(FEDERATED_ROUNDS | NETWORK | ARRIVALS)


METHOD = Method(
    name="partial",
    summary="Rows that hide in a crowd go to the hub, the rest is learned where it lies.",
    config=Partial,
    protocol=protocol,
    claims=claims,
    contract=contract,
    cites="Fisichella, Lax, Russo 2022",
    own_rows=True,
    reads=reads,
    secure=lambda config: config.secure if config.gate.count == "secure" else None,
    example="[method.gate]\nk = 5\nrelease_k = 5",
)
