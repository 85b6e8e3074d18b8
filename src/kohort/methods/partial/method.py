"""Partially-federated learning (Fisichella, Lax, Russo: Partially-federated learning: A new approach to achieving
privacy and effectiveness, Information Sciences 614, 2022).

A gate at each site selects the rows whose quasi-identifiers are shared by at least k rows, or k persons where an
identifier is declared. These rows are sent to the hub; sites train on the others. The hub trains on the rows it
received, as one more participant, and all weights are averaged by rows. k = 1 is exactly central learning, and k above
the largest group is exactly federated averaging.

Threat model: the hub is honest but curious. It sees the shared rows and each site's weights. With `count = "secure"` it
sees capped totals of opaque keys; the hub and one colluding site see the totals of keys that this site can name.

Guarantee: KAnonymous(release_k, release_l) or Raw for the shared rows, Aggregate for the weights trained on the others.
k and l count persons where an identifier is declared, l is about the target and every sensitive column, and no person
is sent in two batches. A site's release account refuses classes that cross those of an earlier release.

With `model.kind = "additive"` or `"trees"` such a model is learned over secure sums (`kohort.methods.learners`). A site
then adds what it sent, in the form it was sent in, along with what it kept: the model is that of all rows as they stand
after the gate. The hub can subtract the rows it has from every total, so totals are claimed as not cell-safe.

With `kept = "sum"` sites add their updates on kept rows up in a secure sum, by masks or a key-holder, so that no site's
own weights are seen and sites with few kept rows take part, too. The hub trains beside them on what it was sent and
tells all sites the result, which they average in. Nobody can check that part: a hub that lies chooses the weights that
sites train from, and a sum at chosen weights can show rows. `method.dp` is for that: noise in shares on the sum of
clipped gradients, for everybody whose row is kept. It holds because a kept row that is removed changes nothing for any
other row under the rules in `MONOTONE`; what the count shows, capped totals of opaque keys, has no noise.

Sharp edges: the paper sends rows as they are, and most of them are unique on the columns sent, though their
quasi-identifiers are not. The default, `released = "generalised"`, generalises every column that is not sensitive
until each batch is k-anonymous by itself, verified by the checker. A Byzantine site can force approvals in a count
across sites, so raw rows then need a policy that trusts such counts.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.crypto.sums.scheme import find_scheme
from kohort.errors import ConfigError, RefusedError
from kohort.methods.learners import LearnerKeys, learner_of, with_model
from kohort.methods.partial.config import (
    Gate,
    Partial,
    claim_at,
    release_claim,
    rules_at,
    threshold_of,
    unread_keys,
    with_key_version,
)
from kohort.methods.partial.contract import LEARN, contract
from kohort.methods.partial.release import sensitive_of
from kohort.methods.partial.tasks import COUNT, NEWS, SHARE, TELL_COUNTS
from kohort.methods.registry import Method
from kohort.methods.strengths import Strength
from kohort.privacy.guarantee import Aggregate, Guarantee, Raw
from kohort.protocol.hub import Ask, Expect, Hub, ProtocolGenerator, Replies, Result, RoundEnd
from kohort.protocol.plan.approved import ModelSection, TrainSection
from kohort.protocol.plan.phases import SecureSumSection, TrainingPhase
from kohort.protocol.plan.reads import (
    AGGREGATION,
    ARRIVALS,
    AVERAGED,
    CORRECTION,
    EARLY_STOPPING,
    FEDERATED_ROUNDS,
    LOCAL_TRAINING,
    NETWORK,
    ROUNDS,
    SELECTION,
    Reads,
)
from kohort.protocol.table_payload import unpack_table
from kohort.protocol.wire import Payload
from kohort.rounds.counting import Approved
from kohort.rounds.dp_accounts import planned_claims, reserve, spends
from kohort.rounds.group_secrets import agree_on_secret
from kohort.rounds.hub_training import HubTrainer
from kohort.rounds.loop import TrainingGroup, federated_rounds
from kohort.rounds.totals.summed import require_enough, summed_rounds

__all__ = ["METHOD", "Gate", "Partial", "require_released"]

SENDER, BATCH = "sender", "batch"


def _ask_news(hub: Hub, round_number: int) -> Ask:
    """How many rows are new; where sites read their tables again, also how many there are now."""
    arrival = hub.approved.arrival
    again = arrival is not None and arrival.appended
    expect = Expect(metrics=("new", "rows") if again else ("new",))
    return Ask(task=NEWS, to=hub.sites, round=round_number, expect=expect, redeclares=again)


def _count(config: Partial, hub: Hub, round_number: int) -> Generator[Ask | RoundEnd, Any, Approved | None]:
    """The approved keys; None when sites count by themselves, or when too few new rows arrived for a new count."""
    gate = config.gate
    news: Replies = yield _ask_news(hub, round_number)
    if gate.count == "local":
        return None
    new = news.metric("new")
    if round_number and ((new > 0).sum() < max(3, config.secure.colluders + 2) or new.sum() < threshold_of(gate)):
        return None  # two counts that differ by a few rows would disclose the keys of those rows
    if gate.count == "secure":
        if len(hub.sites) < 3:
            raise RefusedError(
                f"a secure count needs three sites, {len(hub.sites)} take part: two would see each other's counts",
                hint='Add sites, or set method.gate.count = "local"',
            )
        found = yield from COUNT.run(hub, threshold=threshold_of(gate), stage=round_number)
        return found
    replies: Replies = yield Ask(
        task=TELL_COUNTS,
        to=hub.sites,
        round=round_number,
        expect=Expect(arrays={"f": ("<u8", (None,)), "h": ("<u8", (None,)), "counts": ("<i8", (None,))}),
    )
    return _add_counts(replies, threshold_of(gate))


def _add_counts(replies: Replies, threshold: int) -> Approved:
    totals: dict[tuple[int, int], int] = {}
    for payload in replies.payloads():
        parts = (payload.arrays[name].tolist() for name in ("f", "h", "counts"))
        for f, h, count in zip(*parts, strict=True):
            totals[f, h] = totals.get((f, h), 0) + count
    good = [(*key, total) for key, total in totals.items() if total >= threshold]
    f, h, counts = (np.asarray([key[part] for key in good], dtype=np.uint64) for part in range(3))
    return Approved(f, h, len(totals), 0, counts)


def _announced_counts(known: Approved, *, in_clear: bool) -> dict[str, NDArray[np.uint64]]:
    """What sites are told of a count: checked totals; with a count in clear, keys and their totals."""
    return {"f": known.f, "h": known.h, "counts": known.totals} if in_clear else {"totals": known.totals}


class _Stages:
    """The gate's stages, before the first round and whenever rows arrive: count, share, and choose who trains."""

    def __init__(self, config: Partial, hub: Hub) -> None:
        self.received: pl.DataFrame | None = None
        self.group = TrainingGroup(sites=hub.sites)
        self.learning: tuple[str, ...] = ()
        """Sites with rows that a learner can use, kept or sent."""
        self.withheld_cells = 0
        self.approved_keys = 0
        """Keys that the sites' count approved, in all stages."""
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
            payload=Payload(arrays=_announced_counts(known, in_clear=in_clear)),
            round=round_number,
            expect=Expect(metrics=("shared", "kept"), blobs=("table",)),
        )
        self.withheld_cells += known.withheld_cells
        self.approved_keys += len(known.f)
        self._collect(answers)
        return self.group

    def _collect(self, answers: Replies) -> None:
        self._batches += 1
        tables = [] if self.received is None else [self.received]
        trainers = []
        self.learning = tuple(
            site
            for site, payload in zip(answers.sites, answers.payloads(), strict=True)
            if payload.metrics["kept"] or payload.metrics["shared"]
        )
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
        RefusedError: A secure count has fewer than three sites, or the rows that passed the gate cannot be released.
    """
    _check_release(config.gate, hub)
    stages = _Stages(config, hub)
    if config.kept == "sum":
        return (yield from _over_sums(config, hub, stages))
    if learner_of(config) is not None:
        yield from stages.before(0)
        _require_released(config, stages)
        learned = yield from LEARN.fit(config, replace(hub, sites=stages.learning))
        notes = (*_notes(config, hub, stages), *learned.notes)
        return replace(
            learned,
            received=stages.received,
            keep_days=config.gate.keep_days,
            notes=notes,
            warnings=(*_warnings(config, stages), *learned.warnings),
            unlearned=_unlearned(hub, stages),
        )
    weights = hub.network.start(hub.streams.generator("start"))
    ended = yield from federated_rounds(hub, weights, before=stages.before)
    _require_released(config, stages)
    return Result(
        model=hub.model_of(ended.weights),
        rounds=ended.rounds,
        stopped_by=ended.stopped_by,
        received=stages.received,
        keep_days=config.gate.keep_days,
        notes=_notes(config, hub, stages),
        warnings=_warnings(config, stages),
        unlearned=_unlearned(hub, stages),
    )


def _over_sums(config: Partial, hub: Hub, stages: _Stages) -> ProtocolGenerator:
    """Rounds in which sites add their updates on kept rows up, and the hub trains beside them on what it was sent."""
    phase = hub.approved.phase(0)
    require_enough(hub)
    yield from stages.before(0)
    _require_released(config, stages)
    if spends(phase, config.secure) is not None:  # a site knows only now which rows it keeps
        reserved: Replies = yield reserve(hub.sites)
        hub = replace(hub, sites=reserved.sites)
    if hub.approved.sums_securely:
        hub = replace(hub, sites=(yield from agree_on_secret(hub)))
    rounds = phase.train.rounds
    participant = stages.group.participant
    ended = yield from summed_rounds(hub, rounds=range(rounds), last_round=rounds, participant=participant)
    return Result(
        model=hub.model_of(ended.model.weights),
        rounds=rounds,
        stopped_by="rounds",
        received=stages.received,
        keep_days=config.gate.keep_days,
        notes=_notes(config, hub, stages),
        warnings=_warnings(config, stages),
        unlearned=_unlearned(hub, stages),
    )


def _require_released(config: Partial, stages: _Stages) -> None:
    require_released(config.gate, 0 if stages.received is None else stages.received.height, stages.approved_keys)


def require_released(gate: Gate, rows: int, approved_keys: int) -> None:
    """Say that nothing was released although keys passed the gate: the plan asks for what no site has.

    Args:
        gate: `[method.gate]`.
        rows: How many rows were released.
        approved_keys: How many keys the sites' count approved.

    Raises:
        RefusedError: Keys passed, and no row was released.
    """
    if not rows and approved_keys and gate.released == "generalised":
        raise RefusedError(
            f"keys passed the gate, and no site released a row with k = {gate.release_k} and l = {gate.release_l}",
            hint="Lower method.gate.release_k or release_l, or the sites' own min_k and min_l, or use fedavg, which "
            "shares no rows",
        )


def _check_release(gate: Gate, hub: Hub) -> None:
    """Refuse a plan whose batches can never be released, before anything is asked for.

    Raises:
        RefusedError: A sensitive column has fewer values than release_l.
    """
    if gate.released == "raw":
        return
    for rules in (gate, *(rules_at(gate, site) for site in gate.per_site)):
        for name in sensitive_of(hub.approved.schema):
            known = hub.encoder.domain.columns[name].categories
            if known is not None and len(known) < rules.release_l:
                raise RefusedError(
                    f"column {name!r} has {len(known)} values, so no batch can have release_l = {rules.release_l}",
                    hint=f"Set method.gate.release_l to {len(known)} at most",
                )


def _unlearned(hub: Hub, stages: _Stages) -> int:
    """Rows of sites that kept too few to train on, less those that they sent: nobody learned from them."""
    sent = {} if stages.received is None else dict(stages.received.group_by(SENDER).len().iter_rows())
    return sum(hub.rows.get(site, 0) - sent.get(site, 0) for site in hub.sites if site not in stages.group.sites)


def _warnings(config: Partial, stages: _Stages) -> tuple[str, ...]:
    """What is to be seen where the gate decided nothing."""
    if stages.received is not None:
        return ()
    what = "the run was federated averaging" if learner_of(config) is None else "sites learned from all of their rows"
    return (f"no row passed the gate: {what}. See how many rows would pass: kohort gate PLAN --forecast",)


def _notes(config: Partial, hub: Hub, stages: _Stages) -> tuple[str, ...]:
    rows, received, trainers = sum(hub.rows.values()), stages.received, stages.group.sites
    if received is None:
        return ()
    notes = [f"{received.height:,} of {rows:,} rows were shared, {config.gate.released}", *_stricter_sites(config.gate)]
    if config.gate.released == "raw":
        alone = received.drop(SENDER, BATCH).is_unique().sum()
        share = f"{alone / received.height:.1%}"
        notes.append(f"{alone:,} of {received.height:,} shipped rows ({share}) are unique on the shipped columns")
    if len(trainers) < len(hub.sites):
        notes.append(f"{len(hub.sites) - len(trainers)} sites kept too few rows to train on, or none")
    if stages.withheld_cells:
        notes.append(f"{stages.withheld_cells} cells of the count could not be read; their keys were withheld")
    return tuple(notes)


def _stricter_sites(gate: Gate) -> list[str]:
    """Which sites had rules of their own, and which."""
    own = [
        f"{site} ({', '.join(f'{key} = {value}' for key, value in rules.given().items())})"
        for site, rules in sorted(gate.per_site.items())
    ]
    return [f"stricter rules than the plan's held at {', '.join(own)}"] if own else []


def claims(config: Partial, rows: int) -> Sequence[Guarantee]:
    """What a site with `rows` rows discloses: rows that pass its gate, weights trained on the others, and counts."""
    gate = config.gate
    made: list[Guarantee] = [*(LEARN.claims(config, rows) or _kept_claims(config, rows))]
    made.append(release_claim(gate, rows=rows))
    if gate.count == "global":
        made.append(Raw(rows=rows))
    if gate.count == "secure":
        made.append(find_scheme(config.secure.sum).claim(3, rows))
    return tuple(made)


def _kept_claims(config: Partial, rows: int) -> tuple[Guarantee, ...]:
    """What a network learns from the kept rows by: weights of the site's own, or a share of a sum."""
    if config.kept == "weights":
        return (Aggregate(rows=rows),)
    own = phases(config, TrainSection())
    return (*planned_claims(own, config.secure), find_scheme(config.secure.sum).claim(3, rows))


def phases(config: Partial, train: TrainSection) -> tuple[TrainingPhase, ...]:
    """One phase over the kept rows where they are summed; the learner's own; otherwise none."""
    if config.kept == "sum":
        return (TrainingPhase(train=train, dp=config.dp, hub_rows=True),)
    return LEARN.phases(config, train)


def with_kept(config: Partial, model: ModelSection) -> LearnerKeys:
    """`[method]` with the keys of the learner that `model.kind` names.

    Raises:
        ConfigError: Keys of another learner are given, or a learner and `kept = "sum"`.
    """
    made = with_model(config, model)
    if learner_of(made) is not None and config.kept == "sum":
        raise ConfigError(
            f'method.kept = "sum" is for networks, and model.kind = {model.kind!r} is learned over sums anyway',
            hint="Drop method.kept",
        )
    return made


_HIDDEN = dict.fromkeys(
    SELECTION | AGGREGATION | CORRECTION | EARLY_STOPPING, "a secure sum hides each site's own update and loss"
)


def reads(config: Partial) -> Reads:
    """What the shared loop of rounds reads, and how rows arrive; or what a learner, or a sum of updates, reads."""
    found = LEARN.reads(config) or Reads(FEDERATED_ROUNDS | NETWORK | ARRIVALS)
    if config.kept == "sum":
        trained = LOCAL_TRAINING if config.dp is None else LOCAL_TRAINING - {"train.l2", "train.state"}
        found = Reads(ROUNDS | trained | NETWORK, 'with method.kept = "sum"', because=_HIDDEN)
        if config.dp is not None and config.dp.average:
            found = replace(found, keys=found.keys - {"train.average"}, because={**_HIDDEN, **AVERAGED})
    counted = (
        {"method.secure.colluders"} if config.gate.count == "secure" else set[str]()
    )  # under a secret of the sites
    return replace(found, keys=found.keys | counted, unread=unread_keys(config))


def secure(config: Partial) -> SecureSumSection | None:
    """How keys are counted, and how totals are added up."""
    sums = config.gate.count == "secure" or learner_of(config) is not None or config.kept == "sum"
    return config.secure if sums else None


def _gate_keys(k: int, diversity: int) -> tuple[str, ...]:
    return f"method.gate.k={k}", f"method.gate.release_k={k}", f"method.gate.release_l={diversity}"


METHOD = Method(
    name="partial",
    summary="Rows with frequent quasi-identifiers go to the hub in k-anonymous classes; sites train on the others.",
    config=Partial,
    protocol=protocol,
    claims=claims,
    claim_at=claim_at,
    contract=contract,
    cites="Fisichella, Lax, Russo 2022",
    own_rows=True,
    needs=lambda _: frozenset({"data.quasi"}),
    keep_days=lambda config: config.gate.keep_days,
    reads=reads,
    with_model=with_kept,
    fill=with_key_version,
    phases=phases,
    secure=secure,
    example="[method.gate]\nk = 2\nrelease_k = 5",
    totals=LEARN.chosen,
    strengths=(
        Strength("k = 5", "k", _gate_keys(5, 1)),
        Strength("k = 5, l = 2", "l", _gate_keys(5, 2)),
        Strength("k = 50, l = 2", "l", _gate_keys(50, 2)),
    ),
)
