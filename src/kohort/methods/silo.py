"""Cross-silo learning on anonymised rows (Saleh: Comparison of the Effects of Data Privacy Preserving Methods on
Machine Learning Algorithms in IoT, Marmara University, 2022, chapter 6): every site anonymises its own rows, then all
sites run federated averaging on the anonymised rows. Test rows are not anonymised.

Threat model: the hub is honest but curious. It sees how many rows and classes each site has after anonymisation, every
site's weights of every round and, with early stopping, its training loss.

Guarantee: Aggregate of the anonymised rows. No k-anonymous table is sent; the ledger records, with the counts, that the
checker verified k (and l, t) for every class a site trains on. A site whose policy demands a larger k refuses the plan.
A site has no rows to train on before it has anonymised them, so a hub that asks for training first gets nothing.

With `model.kind = "additive"` or `"trees"` sites learn such a model from their anonymised rows over secure sums instead
(`kohort.methods.learners`): the hub sees totals alone, and a generalised cell counts in every bin it could stand for.

Sharp edges: an attack on the weights can at best reconstruct generalised quasi-identifiers, but all other columns are
trained on as they are. Membership is not hidden, nor is anything that holds for a whole class: use differential privacy
for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import polars as pl
from annotated_types import Ge, Le

from kohort.errors import ConfigError, nearest
from kohort.methods.learners import LearnerKeys, Learners, learner_of, with_model
from kohort.methods.registry import Method
from kohort.methods.strengths import Strength
from kohort.models.rows import Rows, encode_rows
from kohort.models.soft import soft_columns
from kohort.privacy.contract import Contract, Step
from kohort.privacy.guarantee import Aggregate, Guarantee, KAnonymous
from kohort.protocol.hub import Ask, Expect, Hub, ProtocolGenerator, Replies, Result
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.plan.reads import FEDERATED_ROUNDS, NETWORK, Reads
from kohort.protocol.site import Site
from kohort.protocol.task import Release, Request, Task
from kohort.protocol.wire import Payload
from kohort.rounds.loop import federated_rounds
from kohort.rounds.training import training_step
from kohort.tables.blocks import encode_generalised
from kohort.tables.encoder import Encoder
from kohort.tables.hierarchy import read_hierarchies
from kohort.tables.schema import Schema

if TYPE_CHECKING:
    from kohort.anonymity.relational.anonymise import Anonymised

__all__ = ["METHOD", "Anonymise", "Silo", "anonymise_rows", "encode_anonymised"]


@dataclass(frozen=True, kw_only=True)
class Anonymise:
    """`[method.anonymise]`: the privacy model of every site's rows, and the algorithm. l and t of 0 are not enforced.

    The unguarded step of the thesis (`--keep-exact thesis` on the command line) is not available here: it can break k.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field

    k: Annotated[int, Ge(2)] = 5
    l: Annotated[int, Ge(0)] = 0  # noqa: E741 - the literature's own letter
    t: Annotated[float, Ge(0)] = 0.0
    l_kind: Literal["distinct", "entropy", "recursive"] = "distinct"
    t_kind: Literal["emd", "kl"] = "emd"
    algorithm: str = "auto"
    """auto | lattice | cluster | mondrian | thesis | a registered technique"""
    hierarchies: str = "auto"
    """auto | intervals | a registered technique | a folder at the site with one CSV per column, as a path: ./folder"""
    keep_exact: bool = True
    suppression_limit: Annotated[float, Ge(0), Le(1)] = 0.0
    """Share of a site's rows that may be suppressed, if necessary."""


@dataclass(frozen=True, kw_only=True)
class Silo(LearnerKeys):
    """`[method]` of silo: how sites anonymise their rows. Rounds, epochs, fraction and stopping are in `[train]`."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field

    anonymise: Anonymise = field(default_factory=Anonymise)


def anonymise_rows(frame: pl.DataFrame, schema: Schema, config: Anonymise) -> Anonymised:
    """Anonymise the rows of one site and verify the result. It is deterministic.

    Args:
        frame: The rows.
        schema: The roles of their columns.
        config: k, l, t and the algorithm.

    Returns:
        The anonymised rows, which of the given rows were kept, and the hierarchies that were applied.

    Raises:
        RefusedError: The rows cannot meet k, l and t.
    """
    from kohort.anonymity.relational.anonymise import anonymise
    from kohort.anonymity.relational.techniques import hierarchy_techniques

    word = config.hierarchies
    return anonymise(
        frame,
        keep=None,  # the plan says what the columns are
        quasi=schema.quasi,
        sensitive=schema.sensitive,
        target=schema.target,
        person=schema.identifiers[0] if schema.identifiers else None,
        k=config.k,
        l=config.l,
        l_kind=config.l_kind,
        t=config.t,
        t_kind=config.t_kind,
        algorithm=config.algorithm,
        hierarchies=word if word in hierarchy_techniques() else read_hierarchies(word),
        keep_exact=config.keep_exact,
        suppression_limit=config.suppression_limit,
    )


def encode_anonymised(encoder: Encoder, made: Anonymised, frame: pl.DataFrame) -> Rows:
    """Encode the rows that were not suppressed; a generalised cell is encoded as the mean of the values it stands for.

    Args:
        encoder: The encoder that all sites share.
        made: The anonymised rows.
        frame: The rows before anonymisation.

    Returns:
        The rows to train on, [kept rows, features]. Targets are those before anonymisation.
    """
    exact = frame[made.kept]
    left = encode_rows(encoder, exact)
    generalised = {cells.name for cells in made.cells if cells.generalised}
    start = 0
    for block in encoder.blocks:
        stop = start + len(block.features)
        if block.name in generalised:
            column = made.frame[block.name]
            encode_generalised(block, column, left.x[:, start:stop], made.hierarchies.get(block.name))
        start = stop
    released = exact.with_columns(made.frame[name] for name in sorted(generalised))
    soft = soft_columns(encoder, released, left.x, made.hierarchies, tuple(generalised))
    return replace(left, soft=soft)


def _anonymise(site: Site, request: Request) -> Release:
    del request  # what to do is in the approved plan
    approved = site.plan
    config: Silo = approved.config
    schema = approved.schema
    frame = site.table.rows().select(*schema.identifiers[:1], *schema.inputs, str(schema.target))
    made = anonymise_rows(frame, schema, config.anonymise)
    rows = encode_anonymised(site.encoder, made, frame)
    site.training_rows = rows
    return Release(
        payload=Payload(metrics={"rows": rows.count, "classes": made.report.classes}),
        guarantee=_verdict(config.anonymise, rows.count, schema),
        rows=rows.count,
    )


ANONYMISE = Task(name="silo.anonymise", one=_anonymise)
LEARN = Learners("silo")


def protocol(config: Silo, hub: Hub) -> ProtocolGenerator:
    """Let every site anonymise its rows, then run federated averaging over the sites that could.

    Raises:
        ConfigError: The plan has no quasi-identifier, an unknown algorithm, or roles that contradict each other.
    """
    _check(config.anonymise, hub.approved.schema)
    replies: Replies = yield Ask(task=ANONYMISE, to=hub.sites, expect=Expect(metrics=("rows", "classes")))
    left = dict(zip(replies.sites, replies.metric("rows").tolist(), strict=True))
    suppressed = sum(hub.rows[site] for site in left) - sum(left.values())
    notes = (f"{suppressed:,} rows were suppressed and not trained on",) if suppressed else ()
    hub = replace(hub, sites=replies.sites, rows=left)
    if learner_of(config) is not None:
        learned = yield from LEARN.fit(config, hub)
        return replace(learned, notes=(*notes, *learned.notes))
    weights = hub.network.start(hub.streams.generator("start"))
    ended = yield from federated_rounds(hub, weights)
    return Result(model=hub.model_of(ended.weights), rounds=ended.rounds, stopped_by=ended.stopped_by, notes=notes)


def claims(config: Silo, rows: int) -> Sequence[Guarantee]:
    """What a site with `rows` rows discloses: that they are k-anonymous, and weights trained on at most all of them, or
    shares of sums."""
    trained = LEARN.claims(config, rows) or (Aggregate(rows=rows),)
    return (_verdict(config.anonymise, rows), *trained)


def _verdict(config: Anonymise, rows: int, schema: Schema | None = None) -> KAnonymous:
    """What the checker verifies; an anonymised table that does not meet it is an error at the site.

    Entropy and recursive l-diversity imply as many distinct values. The claim's t is an earth mover's distance, which
    is at most half the sum of absolute differences and so, by Pinsker's inequality, at most sqrt(KL / 2).
    """
    t = None
    if config.t > 0:
        t = config.t if config.t_kind == "emd" else min(sqrt(config.t / 2), 1.0)
    made = KAnonymous(k=config.k, l=max(config.l, 1), t=t, rows=rows, verified=True)
    if schema is None:
        return made
    judged = schema.sensitive if config.l or config.t else ()
    return replace(made, unit="person" if schema.identifiers else "row", sensitive=judged)


def _check(config: Anonymise, schema: Schema) -> None:
    """Refuse, before any site is asked, a plan that every site would fail on."""
    from kohort.anonymity.relational.techniques import class_techniques

    algorithms = ("auto", "lattice", *class_techniques())
    if config.algorithm not in algorithms:
        raise ConfigError(f"unknown algorithm {config.algorithm!r}", hint=nearest(config.algorithm, algorithms))
    _check_hierarchies(config.hierarchies)
    if not schema.quasi:
        raise ConfigError("silo has no quasi-identifiers to anonymise", hint="Name them in data.quasi")
    protected = {*schema.sensitive, *([] if schema.target is None else [schema.target])}
    both = [name for name in schema.quasi if name in protected]
    if both:
        raise ConfigError(
            f"quasi-identifiers are also the target or sensitive: {', '.join(both)}",
            hint="What is generalised cannot be what is protected or predicted: choose one of the two",
        )
    if (config.l or config.t) and not schema.sensitive:
        raise ConfigError("l and t are about a sensitive column and none is named", hint="Name it in data.sensitive")


def _check_hierarchies(word: str) -> None:
    """Refuse a word that is no technique; a path is a folder at the sites, which the hub may not have."""
    from kohort.anonymity.relational.techniques import hierarchy_techniques

    known = hierarchy_techniques()
    if word not in known and Path(word).name == word and not Path(word).is_dir():
        hint = f"For a folder at the sites write a path, as in ./folder. {nearest(word, known)}"
        raise ConfigError(f"unknown method.anonymise.hierarchies {word!r}", hint=hint)


def contract(approved: ApprovedPlan) -> Contract:
    """The counts after anonymisation, then weights once per round, or the sums of a learner."""
    config: Silo = approved.config
    says = "how many rows and classes you have after anonymisation"
    anonymise = Step(task=ANONYMISE.name, says=says, claims=(_verdict(config.anonymise, 0, approved.schema),))
    if learner_of(config) is not None:
        return Contract.of([anonymise]) + LEARN.contract(approved)
    return Contract.of([anonymise], [training_step(approved)])


def reads(config: Silo) -> Reads:
    """What the shared loop of rounds reads, all of `[train]` and the network; or what a learner reads."""
    kinds = {"l": config.anonymise.l, "t": config.anonymise.t}
    unread = {f"method.anonymise.{name}_kind": f"{name} is 0" for name, value in kinds.items() if not value}
    return replace(LEARN.reads(config) or Reads(FEDERATED_ROUNDS | NETWORK), unread=unread)


METHOD = Method(
    name="silo",
    summary="Sites anonymise their rows, train on them, and the hub averages their weights.",
    config=Silo,
    protocol=protocol,
    claims=claims,
    contract=contract,
    cites="Saleh 2022",
    own_rows=True,
    needs=lambda _: frozenset({"data.quasi"}),
    reads=reads,
    with_model=with_model,
    phases=LEARN.phases,
    secure=LEARN.secure,
    example="anonymise = {k = 5}",
    totals=LEARN.chosen,
    strengths=(
        Strength("k = 5", "k", ("method.anonymise.k=5",)),
        Strength("k = 5, l = 2", "l", ("method.anonymise.k=5", "method.anonymise.l=2")),
        Strength("k = 5, t = 0.2", "t", ("method.anonymise.k=5", "method.anonymise.t=0.2")),
    ),
)
