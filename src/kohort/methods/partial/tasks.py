"""What a site does in partially-federated learning: count its keys, pass rows through the gate, release them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.anonymity.gate.gate import apply_gate, count_groups, count_keys, count_unit, find_rule, person_codes
from kohort.anonymity.gate.keys import group_keys, group_rows
from kohort.crypto.counting import fingerprints
from kohort.errors import IntegrityError, RefusedError
from kohort.methods.learners import learner_of
from kohort.methods.partial.config import (
    Gate,
    config_of,
    count_cap,
    person_column,
    raised,
    release_claim,
    rules_at,
    threshold_of,
)
from kohort.methods.partial.release import generalise_batch, require_releasable, sets_as_text
from kohort.models.rows import Rows, encode_rows, person_of_rows
from kohort.privacy.guarantee import Guarantee, KAnonymous, Public, Raw
from kohort.privacy.releases import units_of
from kohort.protocol.enrolment import declared_rows, take_appended
from kohort.protocol.site import Site
from kohort.protocol.state import TaskState
from kohort.protocol.table_payload import pack_table
from kohort.protocol.task import Release, Request, Task
from kohort.protocol.wire import Payload
from kohort.rounds.counting import FrequentKeys, KeyCounts, SecureCount, is_approved
from kohort.tables.frames import in_value_order
from kohort.tables.schema import Schema

__all__ = ["COUNT", "NEWS", "ROW_COUNTS", "SHARE", "TELL_COUNTS", "rows_to_share"]

ROW_COUNTS = Public(what="row counts")
OPEN_SECRET = b"everybody knows this secret".ljust(32, b".")


@dataclass(frozen=True, eq=False)
class _OwnKeys:
    """The rows that have arrived and may be sent, with the key of each row, and the keys with their counts."""

    round: int
    arrived: NDArray[np.bool_]
    """Which of the site's rows have arrived."""
    present: NDArray[np.bool_]
    """Which of them may be sent. Others hide nobody: they stay, and are not counted."""
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


def _rules(site: Site) -> Gate:
    """The gate of this site: the plan's rules for it, and what its policy demands of released classes."""
    config = config_of(site.plan)
    return raised(config, rules_at(config.gate, site.name), site.policy)


def _open_stage(site: Site, round_number: int, *, request: str = "") -> _OwnKeys:
    """Count the keys of the rows that have arrived; once per stage."""
    known = site.state(GateState).keys
    if known is not None and known.round == round_number:
        return known
    gate, schema, arrival = config_of(site.plan).gate, site.schema, site.plan.arrival
    if arrival is not None and arrival.appended and round_number:
        take_appended(site, round_number, request=request)
    arrived = np.ones(site.count, dtype=bool)
    if arrival is not None:
        arrived = arrival.present(site.count, round_number, site.streams)
    allowed = site.may_leave()
    present = arrived if allowed is None else arrived & allowed
    frame = site.table.rows().filter(pl.Series(present))
    identifier = person_column(schema)
    _require_own_keys(frame, gate, schema)
    keys = count_keys(frame, quasi=schema.quasi, sensitive=schema.target, rule=gate.rule, key=gate.key)
    counts = count_groups(keys, None if identifier is None else person_codes(frame, identifier))
    made = _OwnKeys(
        round=round_number,
        arrived=arrived,
        present=present,
        frame=frame,
        codes=keys.codes,
        counts=KeyCounts(
            keys=list(keys.texts),
            counts=counts,
            rows=frame.height,
            cap=count_cap(gate),
            threshold=threshold_of(gate),
        ),
    )
    site.state(GateState).keys = made
    return made


def _require_own_keys(frame: pl.DataFrame, gate: Gate, schema: Schema) -> None:
    """Refuse a key function from elsewhere that gives rows another key beside other rows: sites count rows apart.

    Raises:
        RefusedError: It does.
    """
    half = frame.height // 2
    if not gate.key_version or not half:
        return
    whole, part = (group_keys(rows, schema.quasi, key=gate.key).values for rows in (frame, frame.head(half)))
    if not whole.head(half).equals(part):
        raise RefusedError(
            f"the key function {gate.key!r} gives a row another key beside other rows",
            hint="Let it look at each row alone",
        )


def _own_keys(site: Site) -> _OwnKeys:
    """The keys of the latest stage."""
    known = site.state(GateState).keys
    return _open_stage(site, 0) if known is None else known


COUNT = SecureCount(
    "partial.count",
    counts_of=lambda site: _own_keys(site).counts,
    scheme=lambda approved: config_of(approved).secure.sum,
    again=True,
)


def _news(site: Site, request: Request) -> Release:
    """Begin a stage at this site, and say how many rows have arrived since its last count.

    Where rows are appended to tables, this is when the site reads its table again. It then says how many rows it has.
    """
    _open_stage(site, request.round, request=request.digest)
    arrival, metrics = site.plan.arrival, {"new": COUNT.new_rows(site)}
    if arrival is not None and arrival.appended:
        metrics["rows"] = declared_rows(site)
    return Release(payload=Payload(metrics=metrics), guarantee=ROW_COUNTS, rows=0)


NEWS = Task(name="partial.news", one=_news)


def _tell_counts(site: Site, request: Request) -> Release:
    """`count = "global"`: the paper's count in clear. Its keys can be guessed, so it is claimed as raw."""
    del request
    own = _own_keys(site).counts
    prints = fingerprints(OPEN_SECRET, own.keys)
    arrays = {"f": prints.f, "h": prints.h, "counts": own.counts.astype(np.int64)}
    return Release(payload=Payload(arrays=arrays), guarantee=Raw(rows=own.rows), rows=own.rows)


TELL_COUNTS = Task(name="partial.counts", one=_tell_counts)


def _approved_keys(site: Site, request: Request, own: _OwnKeys, rules: Gate) -> NDArray[np.bool_]:
    """Which of the site's keys this request approves: those proven to be frequent or, in clear, what the hub says."""
    arrays = request.payload.arrays
    if rules.count == "global":
        frequent = FrequentKeys(*(arrays[name] for name in ("f", "h", "counts")))
        if not len(frequent.f) == len(frequent.h) == len(frequent.totals):
            raise IntegrityError("the counts of keys cannot be read")
        prints, found = fingerprints(OPEN_SECRET, own.counts.keys), frequent
    else:
        proven = COUNT.proven(site, request.round, arrays["totals"])
        if proven is None:
            return np.zeros(len(own.counts.keys), dtype=bool)
        prints, found = COUNT.prints(site), proven
    found = found.reaching(threshold_of(rules))  # a stricter site demands more of the same totals
    return is_approved(prints, found.f, found.h)


def _frequent_keys(site: Site, request: Request, own: _OwnKeys, rules: Gate) -> NDArray[np.bool_]:
    """Which of the site's keys are frequent enough, in this stage or in an earlier one."""
    if rules.count == "local":
        frequent: NDArray[np.bool_] = own.counts.counts >= threshold_of(rules)
        return frequent
    approved = _approved_keys(site, request, own, rules)
    granted = site.state(GateState).granted
    granted.update(key for key, good in zip(own.counts.keys, approved, strict=True) if good)  # never withdrawn
    return np.asarray([key in granted for key in own.counts.keys], dtype=bool)


def _shared_rows(site: Site, request: Request) -> NDArray[np.bool_]:
    """The gate's decision for every row of this site."""
    rules, schema = _rules(site), site.schema
    own = _own_keys(site)
    frequent = _frequent_keys(site, request, own, rules)
    counts = None if rules.count == "local" else np.where(frequent, 2 * threshold_of(rules), 0)
    # The site's policy can demand a minimum among its own rows as well.
    decided: NDArray[np.bool_] = (frequent & (own.counts.counts >= site.policy.min_gate_k))[own.codes]
    # Sizes were counted over all sites; diversity is judged on the site's own rows, column by column.
    for sensitive in _judged_columns(rules, schema):
        decided &= apply_gate(
            own.frame,
            quasi=schema.quasi,
            sensitive=sensitive,
            identifier=person_column(schema),
            rule=rules.rule,
            k=None if rules.rule == "paper-l" else rules.k,
            l=rules.l,
            t=rules.t,
            strict=rules.strict,
            key=rules.key,
            counts=counts,
        ).mask
    return decided


def _judged_columns(gate: Gate, schema: Schema) -> tuple[str, ...]:
    """The columns a rule about sensitive values looks at: all of them. The paper's own rule counts by target alone."""
    target = str(schema.target)
    if count_unit(gate.rule) == "key+sensitive" or not find_rule(gate.rule).needs_sensitive:
        return (target,)
    others = (name for name in schema.sensitive if name != target and name not in schema.quasi)
    return (target, *others)


def _passing(site: Site, request: Request, shipped: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which of the rows that may be sent pass the gate now; nobody is sent twice."""
    return _shared_rows(site, request) & ~_sent_before(site, shipped)[_own_keys(site).present]


def rows_to_share(site: Site, request: Request) -> int:
    """How many rows the first stage of `SHARE` would send, found without generalising or sending any.

    Args:
        site: The site, which was asked for its news already.
        request: What `SHARE` would be asked.

    Returns:
        The rows that pass the gate; 0 where they cannot be released as a batch.
    """
    mask = _passing(site, request, np.zeros(site.count, dtype=bool))
    frame, gate = _own_keys(site).frame.filter(pl.Series(mask)), _rules(site)
    if frame.height == 0 or gate.released == "raw":
        return frame.height
    person = person_column(site.schema)
    try:
        require_releasable(
            frame,
            schema=site.schema,
            domain=site.encoder.domain,
            k=gate.release_k,
            l=gate.release_l,
            persons=None if person is None else person_codes(frame, person),
        )
    except RefusedError:
        return 0
    return frame.height


def _share(site: Site, request: Request) -> Release:
    """Send the rows that pass the gate, and keep the others for training at this site."""
    approved = site.plan
    gate, schema, encoder = _rules(site), site.schema, site.encoder
    own = _own_keys(site)
    frame = own.frame
    state = site.state(GateState)
    shipped = np.zeros(site.count, dtype=bool)
    if state.shipped is not None:
        shipped[: len(state.shipped)] = state.shipped  # rows that were appended are behind the others
    state.shipped = shipped
    mask = _passing(site, request, shipped)
    shared, guarantee, leaving = _releasable(site, request, np.flatnonzero(own.present)[mask], gate)
    mask[mask] = leaving  # the others are too few for a batch: they stay until more rows arrive
    shipped[np.flatnonzero(own.present)[mask]] = True
    kept = site.table.rows().filter(pl.Series(own.arrived & ~shipped))
    # If this site alone keeps rows, the sum is its own update: without noise it needs as many rows as plain weights do.
    trains = config_of(approved).dp is not None or kept.height >= site.policy.min_rows
    kept = kept if trains else kept.head(0)
    site.training_rows = encode_rows(encoder, kept) if trains or config_of(approved).kept == "sum" else None
    if learner_of(config_of(approved)) is not None and shared is not None:
        # What the hub was sent is learned from in that form, by the site that sent it: a total that only sites add to
        # is one that sites can check.
        sent = encode_rows(encoder, shared, generalised=gate.released == "generalised")
        whole = pl.concat([kept, frame.filter(pl.Series(mask))], how="vertical_relaxed")
        site.training_rows = _joined(site.training_rows, sent, person_of_rows(schema, whole))
    columns = (*schema.inputs, str(schema.target))
    sent_rows = (frame.head(0) if shared is None else shared).select(columns)
    # In the order of the site's table, rows of one person would stand together.
    table = pack_table(in_value_order(sent_rows) if gate.released == "generalised" else sent_rows)
    payload = Payload(metrics={"shared": int(mask.sum()), "kept": kept.height}, blobs={"table": table})
    leaves = np.zeros(site.count, dtype=bool)
    leaves[np.flatnonzero(own.present)[mask]] = True
    return Release(payload=payload, guarantee=guarantee, rows=int(mask.sum()), sent=leaves)


def _joined(kept: Rows | None, sent: Rows, person: pl.Series | None) -> Rows:
    """The rows that a learner reads: those that were kept, and those that were sent."""
    if kept is None:
        return replace(sent, person=person)
    weight = None if kept.weight is None or sent.weight is None else np.concatenate([kept.weight, sent.weight])
    return Rows(np.concatenate([kept.x, sent.x]), np.concatenate([kept.y, sent.y]), weight, person=person)


def _sent_before(site: Site, shipped: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The rows of persons who were sent in an earlier batch; without persons, the rows that were."""
    person = person_column(site.schema)
    if person is None or not shipped.any():
        return shipped
    codes = person_codes(site.table.rows(), person)
    return np.isin(codes, codes[shipped])


def _releasable(
    site: Site, request: Request, places: NDArray[np.int64], gate: Gate
) -> tuple[pl.DataFrame | None, Guarantee, NDArray[np.bool_]]:
    """The rows at these places of the table in the form in which they are sent, with the claim, and which of them they
    are; None for nothing.

    Rows that an earlier run released and rows that were added since are batches of their own: who has the earlier
    release would else see the added ones by themselves. New rows of persons who were released before stay.
    """
    frame = site.table.rows()[places]
    nothing = np.zeros(frame.height, np.bool_)
    if frame.height == 0:
        return None, ROW_COUNTS, nothing
    claim = release_claim(gate, site.schema, rows=frame.height)
    if isinstance(claim, Raw):
        return frame, claim, ~nothing
    schema, person = site.schema, person_column(site.schema)
    all_units = units_of(site.table.rows(), person)
    units = [all_units[place] for place in places.tolist()]
    name = f"{site.plan.run}:{site.plan.plan_hash}:{request.round}"
    before, of_known = site.releases.released(units, apart_from=name)
    batches = [np.flatnonzero(before), np.flatnonzero(~before & ~of_known)]
    if site.policy.overlapping_releases:
        batches = [np.arange(frame.height)]
    made = [(rows, _batch(site, frame[rows], claim)) for rows in batches]
    known = [(rows, batch) for rows, batch in made if batch is not None]
    if not known:
        return None, ROW_COUNTS, nothing
    chosen = np.concatenate([rows for rows, _ in known])
    order = np.argsort(chosen)
    batch = pl.concat([part for _, part in known])[order]
    chosen = chosen[order]
    shown = batch.select(name for name in schema.inputs if name not in schema.sensitive)
    site.releases.admit(
        name,
        [units[place] for place in chosen.tolist()],
        group_rows(sets_as_text(shown)).codes,
        meets=lambda rows: _batch(site, frame[chosen[rows]], claim) is not None,
        overlap=site.policy.overlapping_releases,
    )
    leaving = nothing.copy()
    leaving[chosen] = True
    return batch, replace(claim, rows=batch.height), leaving


def _batch(site: Site, frame: pl.DataFrame, claim: KAnonymous) -> pl.DataFrame | None:
    """Generalised rows, or None where they are too few, or too alike in a sensitive column."""
    person = person_column(site.schema)
    persons = None if person is None or not frame.height else person_codes(frame, person)
    try:
        return generalise_batch(
            frame, schema=site.schema, domain=site.encoder.domain, k=claim.k, l=claim.l, persons=persons
        )
    except RefusedError:
        return None


SHARE = Task(name="partial.share", one=_share)
