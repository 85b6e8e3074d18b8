"""Syntactic federated learning (Choudhury, Gkoulalas-Divanis, Salonidis, Sylla, Park, Hsu, Das: Anonymizing Data for
Privacy-Preserving Federated Learning, ECAI 2020): every site makes its rows (k, k^m)-anonymous, publishes its classes,
and trains on the anonymised rows. A new row is mapped to the class that fits it best before the model predicts it.

Threat model: the hub and the other sites are honest but curious. They see every site's weights, row counts and classes.
An attacker who knows a person's quasi-identifiers and up to m of their items finds at least k matching rows, or none.
With `share = "peers"` the hub relays the classes encrypted and cannot read them; sites predict with them.

Guarantee: KKm of the classes, verified by the checker at the site; Aggregate of the rows for the weights. A site whose
policy demands a larger k than the plan uses that k; a site that cannot reach it takes no part.

With `model.kind = "additive"` or `"trees"` sites learn such a model from their anonymised rows over secure sums instead
(`kohort.methods.learners`). It reads new rows as they are, so no classes are published.

Published classes are written into the site's release account: a later run whose classes cross them is refused. The
classes hold quasi-identifiers and items alone, so there are no sensitive values in them to be judged.

Sharp edges: an attack on the weights can at best reconstruct what the classes say about quasi-identifiers and items,
but all other columns and the target are trained on as they are. Membership is not hidden, nor is anything that holds
for a whole class: use differential privacy for that.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import polars as pl

from kohort.anonymity.checker.added_rows import added_rows_meet
from kohort.crypto.sums.scheme import find_scheme
from kohort.errors import ConfigError
from kohort.methods.learners import LearnerKeys, Learners, learner_of, with_model
from kohort.methods.registry import Method
from kohort.methods.strengths import Strength
from kohort.methods.syntactic.anonymising import (
    CODES,
    AnonymiseSection,
    ImportanceSection,
    anonymise_rows,
    check_hierarchies,
    check_importance,
    item_members,
    mapping_weights,
    quasi_hierarchies,
)
from kohort.methods.syntactic.exchange import (
    PLACE,
    PUBLISH,
    SEAL,
    Placed,
    Published,
    keep_published,
    published_to_hub,
    sealed_to_peers,
)
from kohort.methods.syntactic.item_columns import apart, items_tree, joined, joint_items
from kohort.methods.syntactic.mapped_encoder import MappedEncoder, encode_released, labels_of
from kohort.methods.syntactic.mapped_model import MappedModel
from kohort.methods.syntactic.mapping.tables import column_ncp
from kohort.methods.syntactic.outcome_groups import adopt_groups, check_outcome, learn_groups, outcome_steps
from kohort.methods.syntactic.site_model import handed_to_sites, keep_step
from kohort.models.network_model import NetworkModel
from kohort.models.options import FloatArray
from kohort.models.rows import with_target
from kohort.models.soft import soft_columns
from kohort.privacy.contract import Contract, Step
from kohort.privacy.guarantee import Aggregate, Cells, Guarantee, KKm
from kohort.privacy.releases import units_of
from kohort.protocol.hub import Ask, Expect, Hub, ProtocolGenerator, Replies, Result, RoundEnd
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.plan.phases import SecureSumSection
from kohort.protocol.plan.reads import FEDERATED_ROUNDS, NETWORK, Reads
from kohort.protocol.site import Site
from kohort.protocol.task import Release, Request, Task
from kohort.protocol.wire import Payload
from kohort.rounds.loop import RoundsResult, federated_rounds
from kohort.rounds.sealed_messages import keys_step
from kohort.rounds.training import training_step
from kohort.tables.encoder import Encoder
from kohort.tables.schema import Schema

__all__ = ["METHOD", "AnonymiseSection", "ImportanceSection", "Syntactic", "anonymise_rows"]


@dataclass(frozen=True, kw_only=True)
class Syntactic(LearnerKeys):
    """How rows are anonymised and who gets the classes; rounds, epochs and class weights are `[train]`."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field

    anonymise: AnonymiseSection = field(default_factory=AnonymiseSection)
    share: Literal["hub", "peers"] = "hub"
    """hub: the hub gets every site's classes and hands them to all | peers: sites get them, sealed past the hub"""
    gain: bool = False
    """Also run, in a simulation, the same on rows as they are and without the anonymised columns, and say how much of
    what these columns add is kept."""


def _anonymise(site: Site, request: Request) -> Release:
    from kohort.methods.syntactic.mapping.build import mapping_of

    approved = site.plan
    config: Syntactic = approved.config
    if config.anonymise.outcome is not None:
        adopt_groups(site, request)  # all else is in the approved plan
    encoder = _encoder(site)
    schema, frame = encoder.schema, joined(site.table.rows(), encoder.schema)
    k = max(config.anonymise.k, site.policy.min_k)
    codes = pl.Series(CODES, encoder.target(frame))
    made = anonymise_rows(frame, schema, config.anonymise, k=k, codes=codes)
    mapping = mapping_of(
        made.released,
        site=site.name,
        schema=schema.fingerprint(),
        data_version=site.data_version,
        k=k,
        m=config.anonymise.m,
        quasi=schema.quasi,
        items=joint_items(schema),
        classes=made.result.cluster,
        members=item_members(made.result, schema, encoder.domain),
        hierarchies=quasi_hierarchies(schema, encoder.domain),
        domain=encoder.domain,
    )
    published = Published(
        mapping=mapping,
        class_of=made.result.cluster,
        items=made.result.loss.occurrences,
        suppressed=made.result.suppressed_items,
        lost=made.result.item_loss * made.result.loss.occurrences,
    )
    x = encode_released(encoder, made.released, mapping)
    rows = with_target(encoder, x, frame, bounded=True)
    if learner_of(config) is None:
        # Classes are published: with those of an earlier run they must not tell persons apart.
        site.releases.admit(
            f"{approved.run}:{approved.plan_hash}:classes",
            units_of(frame, next(iter(schema.identifiers), None)),
            made.result.cluster,
            meets=lambda places: added_rows_meet(made.released, places, k=k, **_judged_items(schema, config)),
            overlap=site.policy.overlapping_releases,
        )
        keep_published(site, published)
    else:
        taxonomies, released = labels_of(mapping, schema), apart(made.released, schema)
        rows = replace(rows, soft=soft_columns(encoder, released, x, taxonomies, tuple(taxonomies)))
    site.training_rows = rows
    return Release(
        payload=Payload(metrics={"rows": rows.count, "classes": mapping.count, "k": k}),
        guarantee=published.claim,
        rows=rows.count,
    )


def _judged_items(schema: Schema, config: Syntactic) -> dict[str, Any]:
    """The rule about items, and the persons, as the checker takes them."""
    items = joint_items(schema)
    rule = {} if items is None else {"items": items, "m": config.anonymise.m}
    return {**rule, "persons": next(iter(schema.identifiers), None)}


def _encoder(site: Site) -> Encoder:
    return site.encoder


ANONYMISE = Task(name="syntactic.anonymise", one=_anonymise)
LEARN = Learners("syntactic")


def protocol(config: Syntactic, hub: Hub) -> ProtocolGenerator:
    """Let every site anonymise its rows and publish its classes, then run federated averaging on the anonymised rows.

    Raises:
        ConfigError: The plan has nothing to anonymise, or roles that contradict each other.
    """
    _check(config, hub.approved.schema)
    check_outcome(config.anonymise.outcome, hub.approved.schema, hub.encoder)
    blobs = {}
    if config.anonymise.outcome is not None:
        hub, blobs["groups"] = yield from learn_groups(hub)
    replies: Replies = yield Ask(
        task=ANONYMISE,
        to=hub.sites,
        payload=Payload(blobs=blobs),
        expect=Expect(metrics=("rows", "classes", "k")),
    )
    left = dict(zip(replies.sites, replies.metric("rows").tolist(), strict=True))
    hub = replace(hub, sites=replies.sites, rows=left)
    if learner_of(config) is not None:
        learned = yield from LEARN.fit(config, hub)
        found = {"classes": int(replies.metric("classes").sum()), "k": int(replies.metric("k").min())}
        return replace(learned, facts={**learned.facts, **found, "m": config.anonymise.m})
    encoder = None
    if config.share == "hub":
        mappings, placed = yield from published_to_hub(hub, least_k=config.anonymise.k)
        encoder = MappedEncoder.over(hub.encoder, mappings, weights=mapping_weights(config.anonymise.importance))
    else:
        placed = yield from sealed_to_peers(hub)
    weights = hub.network.start(hub.streams.generator("start"))
    ended: RoundsResult = yield from _seen_through(hub, encoder, federated_rounds(hub, weights))
    kept_by = () if encoder is not None else (yield from handed_to_sites(hub, ended.weights))
    ks = replies.metric("k")
    facts = _facts(placed, classes=int(replies.metric("classes").sum()), k=int(ks.min()), m=config.anonymise.m)
    facts["ncp"] = _losses(hub.approved.schema, encoder, placed)
    return Result(
        model=_model(hub, encoder, ended.weights),
        rounds=ended.rounds,
        stopped_by=ended.stopped_by,
        notes=_notes(placed, facts, hidden=encoder is None, largest_k=int(ks.max())),
        facts=facts,
        kept_by=kept_by,
    )


def _model(hub: Hub, encoder: MappedEncoder | None, weights: FloatArray) -> NetworkModel:
    return hub.model_of(weights) if encoder is None else MappedModel(hub.network, weights, encoder)


def _seen_through(
    hub: Hub, encoder: MappedEncoder | None, rounds: Generator[Ask | RoundEnd, Any, RoundsResult]
) -> Generator[Ask | RoundEnd, Any, RoundsResult]:
    """The same rounds, with an encoder that maps rows to classes before the model is measured on them."""
    answer: Any = None
    while True:
        try:
            step = rounds.send(answer)
        except StopIteration as end:
            ended: RoundsResult = end.value
            return ended
        if isinstance(step, RoundEnd):
            step = step._replace(model=_model(hub, encoder, step.state["weights"]))
        answer = yield step


def _facts(placed: Placed, *, classes: int, k: int, m: int) -> dict[str, Any]:
    return {
        "classes": classes,
        "k": k,
        "m": m,
        "training_rows": placed.rows,
        "same_class_own": placed.own / placed.rows,
        "dearer_class": placed.dearer,
        "items": placed.items,
        "suppressed_items": placed.suppressed,
    }


def _losses(schema: Schema, encoder: MappedEncoder | None, placed: Placed) -> dict[str, float]:
    """NCP of each quasi-identifier whose classes the hub knows, and what the items lose by the same measure."""
    found = {} if encoder is None else column_ncp(encoder.classes_known)
    return found | ({", ".join(schema.items): placed.lost / placed.items} if placed.items else {})


def _notes(placed: Placed, facts: dict[str, Any], *, hidden: bool, largest_k: int) -> tuple[str, ...]:
    notes = [
        f"{facts['classes']:,} classes; of {placed.rows:,} training rows {facts['same_class_own']:.1%} get the class "
        f"they were trained in from their own site's classes; {placed.dearer:,} get one that costs more"
    ]
    if largest_k > facts["k"]:
        notes.append(f"k differs by site, from {facts['k']} to {largest_k}: policies raised it")
    if facts.get("ncp"):
        listed = ", ".join(f"{name} {value:.3f}" for name, value in facts["ncp"].items())
        notes.append(f"information loss by column (NCP, 0: as it is, 1: nothing is left): {listed}")
    if placed.suppressed:
        notes.append(f"{placed.suppressed:,} of {placed.items:,} items were suppressed and not trained on")
    if hidden:
        notes.append(
            "the hub has no classes: what it measured in each round is of test rows as they are. The sites have the "
            "model with the classes, and predict with it"
        )
    return tuple(notes)


def claims(config: Syntactic, rows: int) -> Sequence[Guarantee]:
    """What a site with `rows` rows discloses: weights trained on its anonymised rows, or shares of sums.

    The claim of its classes is not listed: a site raises the plan's k to that of its own policy, so there is nothing to
    refuse beforehand, and the door judges the k that was reached.
    """
    made = LEARN.claims(config, rows) or (Aggregate(rows=rows),)
    section, summed = config.anonymise.outcome, secure(config)
    if section is None or summed is None:
        return made
    return (*made, find_scheme(summed.sum).claim(3, rows), Cells(least=section.least))


def secure(config: Syntactic) -> SecureSumSection | None:
    """How sums are protected: those of a learner, or those behind groups of items by outcome; None without any."""
    found = LEARN.secure(config)
    if found is None and config.anonymise.outcome is not None:
        return (config.anonymise.outcome.secure or SecureSumSection()).or_scheme("masks")
    return found


def _check(config: Syntactic, schema: Schema) -> None:
    """Refuse, before any site is asked, a plan that every site would fail on."""
    outcome = config.anonymise.outcome
    if outcome is not None and outcome.secure is not None and learner_of(config) is not None:
        hint = "Drop it: all sums of the plan are those of its learner"
        raise ConfigError("method.anonymise.outcome.secure is not read with this model.kind", hint=hint)
    if learner_of(config) is not None and config.share == "peers":
        raise ConfigError("no classes are shared with this model.kind", hint="Drop method.share")
    if not schema.quasi and not schema.items:
        hint = "Name quasi-identifiers in data.quasi, or sets of items in data.items"
        raise ConfigError("syntactic has nothing to anonymise", hint=hint)
    if len(schema.items) > 1 and config.anonymise.item_hierarchy != "declared":
        names = ", ".join(schema.items)
        hint = "Declare one for each column, in data.hierarchies"
        raise ConfigError(f"one item hierarchy cannot stand above several columns: {names}", hint=hint)
    _ = items_tree(schema)  # refuses names of columns that cannot be told apart
    if schema.target in schema.quasi:
        raise ConfigError(
            f"the target {schema.target!r} is also a quasi-identifier",
            hint="What is generalised cannot be what is predicted: choose one of the two",
        )
    check_importance(config.anonymise.importance, schema)
    check_hierarchies(config.anonymise, schema)


def contract(approved: ApprovedPlan) -> Contract:
    """The counts after anonymisation, the classes to the hub or to the peers, then weights once per round; a site whose
    classes went to the peers then keeps the model."""
    config: Syntactic = approved.config
    classes = (KKm(k=config.anonymise.k, m=config.anonymise.m, verified=True),)
    counts = Step(
        task=ANONYMISE.name, says="how many rows and classes you have, and their k, after anonymisation", claims=classes
    )
    outcomes = outcome_steps(approved)
    if learner_of(config) is not None:
        return Contract.of(outcomes, [counts]) + LEARN.contract(approved)
    placed = Step(task=PLACE.name, says="how many of your rows fall into which classes", claims=(Aggregate(rows=0),))
    if config.share == "hub":
        shared = Step(task=PUBLISH.name, says="your rows, generalised in classes", claims=classes, rows=True)
        return Contract.of(outcomes, [counts], [shared], [placed], [training_step(approved)])
    sealed = Step(
        task=SEAL.name,
        says="your rows, generalised in classes, sealed to the other sites",
        claims=classes,
        to="peers",
        rows=True,
    )
    placed = replace(placed, rounds=range(1, 2))
    return Contract.of(outcomes, [counts], [keys_step()], [sealed], [placed], [training_step(approved)], [keep_step()])


def reads(config: Syntactic) -> Reads:
    """What the shared loop of rounds reads, all of `[train]` and the network; or what a learner reads."""
    return LEARN.reads(config) or Reads(FEDERATED_ROUNDS | NETWORK)


def refuses_consent(config: Syntactic) -> str | None:
    """Classes are made of all rows of a site and are published; with a learner over sums nothing of a row leaves."""
    return None if learner_of(config) is not None else "the classes that sites publish are made of all their rows"


METHOD = Method(
    name="syntactic",
    summary="Sites make rows and item sets (k, k^m)-anonymous, train on them, and predict through the classes.",
    config=Syntactic,
    protocol=protocol,
    claims=claims,
    contract=contract,
    cites="Choudhury et al. 2020",
    own_rows=True,
    needs=lambda _: frozenset({"data.quasi or data.items"}),
    reads=reads,
    refuses_consent=refuses_consent,
    gain=lambda config: config.gain,
    with_model=with_model,
    phases=LEARN.phases,
    secure=secure,
    example="anonymise = {k = 5}",
    totals=LEARN.chosen,
    strengths=tuple(Strength(f"k = {k}", "k", (f"method.anonymise.k={k}",)) for k in (5, 20, 80)),
)
