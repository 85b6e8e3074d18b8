"""Hybrid federated learning: first among peers, then with a server under differential privacy (Corbucci, Monreale,
Pellungrini: Enhancing Privacy and Utility in Federated Learning, SECRYPT 2024).

Sites of a trusted cluster train together on low-risk rows, encrypted past the hub. Then all sites train with the hub on
high-risk rows, with noise, each starting from its cluster's model. A plan may have any sequence of phases, each with
its own rows, rounds and budget.

Threat model: the hub is honest but curious. It relays the peers' models without being able to decrypt them, and sees
every server update. Peers of a cluster trust each other with plain models.

Guarantee: DP for the units and rows that the claim's scope names; Aggregate for the others.

Sharp edges: a phase without a budget protects its rows by nothing but aggregation, and the ledger names those rows.
Forming clusters from labels is a release of its own. If the last phase is among peers, or models are selected
(`method.judge`), the sites disclose their own models to the hub.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt

from kohort.errors import ConfigError
from kohort.methods.hybrid.judging import JUDGE, REVEAL, prefers_later, revealed
from kohort.methods.registry import Method
from kohort.models.dense.network import FloatArray
from kohort.privacy.contract import Contract, Step
from kohort.privacy.guarantee import DP, Aggregate, Guarantee
from kohort.protocol.hub import Ask, Hub, ProtocolGenerator, Replies, Result, RoundEnd
from kohort.protocol.plan.approved import ApprovedPlan, TrainSection
from kohort.protocol.plan.phases import DPSection, JudgeSection, RowPart, TrainingPhase
from kohort.protocol.plan.reads import AGGREGATION, CORRECTION, LOCAL_TRAINING, NETWORK, SELECTION, Reads
from kohort.rounds.clusters import NAMED_STEP, check_cluster_name, form_clusters, labels_step, named_clusters
from kohort.rounds.dp_accounts import planned_claims, reserve, reserve_step, spends, total_claim
from kohort.rounds.hub_noise import hub_noise
from kohort.rounds.loop import RoundOptions, federated_rounds
from kohort.rounds.peers import PeerRounds, neighbours, peer_blocks, peer_rounds
from kohort.rounds.phase_training import TRAIN_PHASE, phase_rounds, phase_step

__all__ = ["METHOD", "Hybrid", "PhaseSection"]

_PHASE_KEYS = ("local_epochs", "batch", "optimizer", "lr")
"""Keys of `[train]` that a phase can set for itself."""


@dataclass(frozen=True, kw_only=True)
class PhaseSection:
    """`[[method.phases]]`: who trains together, on which rows, for how many rounds, under which budget."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field

    kind: Literal["peers", "server"]
    rows: RowPart | None = None
    """low | high | all; by default low for peers and high for the server."""
    rounds: Annotated[int, Ge(1)] = 10
    local_epochs: Annotated[int, Ge(1)] | None = None
    batch: Annotated[int, Ge(0)] | None = None
    optimizer: Literal["sgd", "momentum", "adam"] | None = None
    lr: Annotated[float, Gt(0)] | None = None
    topology: str = "full"
    """Peers only: full | ring | regular:d"""
    dp: DPSection | None = None
    """The budget; without one no noise is added, and the ledger says so."""

    def phase(self, train: TrainSection, held_out: dict[RowPart, float]) -> TrainingPhase:
        """What sites do in this phase; what it does not say is as in `[train]`."""
        own = {name: value for name in _PHASE_KEYS if (value := getattr(self, name)) is not None}
        rows: RowPart = self.rows or ("low" if self.kind == "peers" else "high")
        return TrainingPhase(
            train=replace(train, rounds=self.rounds, **own),
            rows=rows,
            dp=self.dp,
            topology=self.topology if self.kind == "peers" else "",
            held_out=held_out.get(rows, 0.0),
        )


@dataclass(frozen=True, kw_only=True)
class Hybrid:
    """`[method]` of a hybrid federation."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field

    phases: tuple[PhaseSection, ...] = (PhaseSection(kind="peers"), PhaseSection(kind="server", dp=DPSection()))
    clusters: str | Mapping[str, tuple[str, ...]] = "given"
    """given: those of [sites], or those the sites name themselves | labels:N: N clusters of sites with similar label
    distributions | {NAME = [SITE, ...]}: these; a site in none takes no part"""
    judge: JudgeSection | None = None
    """Model selection: keep the model from before the last server phase if it is better on held-out rows."""

    def __post_init__(self) -> None:
        if not self.phases:
            raise ConfigError("a hybrid federation needs a phase", hint="Add [[method.phases]]")
        for section in self.phases:
            if section.kind == "peers":
                neighbours(section.topology, ("a", "b", "c"), "a")
            if section.dp is not None and section.dp.mechanism == "statistics":
                raise ConfigError("statistics are released once, not in phases", hint='Use method.name = "fedavg"')
            if section.kind == "peers" and section.dp is not None and section.dp.mechanism == "hub":
                raise ConfigError("no hub sees what peers exchange", hint="Use dp.mechanism = dp-sgd or after")
        _check_clusters(self.clusters)
        if self.judge is not None and self.phases[-1].kind != "server":
            raise ConfigError("method.judge judges a server phase at the end", hint="End with a server phase")


def training_phases(config: Hybrid, train: TrainSection) -> tuple[TrainingPhase, ...]:
    """The phases as sites see them."""
    held_out: dict[RowPart, float] = {} if config.judge is None else {config.judge.rows: config.judge.share}
    return tuple(section.phase(train, held_out) for section in config.phases)


def reads(config: Hybrid) -> Reads:
    """Of `[train]`, what the phases leave open; how the hub chooses and aggregates, where a phase is run with it."""
    own = {f"train.{name}" for name in _PHASE_KEYS if all(getattr(phase, name) is not None for phase in config.phases)}
    keys = LOCAL_TRAINING - own | CORRECTION | NETWORK
    with_hub = [phase for phase in config.phases if phase.kind == "server"]
    if with_hub:
        keys |= SELECTION | {"train.average"}
    if any(phase.dp is None or phase.dp.mechanism != "hub" for phase in with_hub):
        keys |= AGGREGATION
    return Reads(keys)


def protocol(config: Hybrid, hub: Hub) -> ProtocolGenerator:
    """Reserve the budgets, then phase after phase: peers among themselves, or everybody with the hub."""
    phases = hub.approved.phases
    enrolled = len(hub.sites)
    clusters = yield from _known_clusters(config, hub)
    if clusters is not None:
        hub = _within(hub, clusters)
    outside = enrolled - len(hub.sites)
    if any(spends(phase) is not None for phase in phases) or _judge_spends(config):
        reserved: Replies = yield reserve(hub.sites)
        hub = replace(hub, sites=reserved.sites)
    if clusters is None:
        clusters = yield from _formed_clusters(config, hub)
        hub = _within(hub, clusters)
    progress = _Progress(hub, hub.network.start(hub.streams.generator("start")))
    if outside:
        progress.notes.append(f"{outside} of {enrolled} sites are in no cluster and took no part")
    total = sum(phase.train.rounds for phase in phases)
    for number, (section, phase) in enumerate(zip(config.phases, phases, strict=True)):
        last_and_judged = config.judge is not None and number == len(phases) - 1
        earlier = (yield from progress.known_model(number)) if last_and_judged else None
        if section.kind == "peers":
            own = PeerRounds(
                number=number,
                rounds=phase.train.rounds,
                first_round=progress.round,
                last_round=total,
                clusters=clusters,
            )
            yield from progress.with_peers(own)
        else:
            yield from progress.with_hub(number, phase, total)
        if earlier is not None and config.judge is not None:
            yield from progress.choose(config.judge, earlier, number)
    weights = yield from progress.known_model(len(phases))
    return Result(
        model=hub.model_of(weights),
        rounds=total,
        stopped_by="rounds",
        notes=tuple(progress.notes),
        claim=progress.hub_claim,
    )


class _Progress:
    """The model between phases: known to the hub, or only to the sites."""

    def __init__(self, hub: Hub, weights: FloatArray) -> None:
        self.round = 0
        self.notes: list[str] = []
        self.hub_claim: DP | None = None
        self._hub = hub
        self._weights = weights
        self._hidden = False

    def _passed(self, rounds: int) -> bool:
        """Whether the resumed run had already finished the phase that begins here."""
        resume = self._hub.resume
        return resume is not None and resume.round >= self.round + rounds

    def with_peers(self, phase: PeerRounds) -> Generator[Ask | RoundEnd, Any, None]:
        """Run a phase among peers; afterwards only they know the model."""
        if not self._passed(phase.rounds):
            there = yield from peer_rounds(self._hub, phase, self._weights)
            self._hub = replace(self._hub, sites=there)
        self.round += phase.rounds
        self._hidden = True

    def with_hub(self, number: int, phase: TrainingPhase, total: int) -> Generator[Ask | RoundEnd, Any, None]:
        """Run a phase with the hub; sites start from their peers' model if they have one."""
        rounds, dp = phase.train.rounds, phase.dp
        hub = replace(self._hub, approved=replace(self._hub.approved, train=phase.train))
        noise = None
        if dp is not None and dp.mechanism == "hub":
            noise, self.hub_claim = hub_noise(hub, dp, rounds=rounds, sites=len(hub.sites))
        if not self._passed(rounds):
            ended = yield from federated_rounds(
                hub,
                self._weights,
                options=RoundOptions(
                    task=TRAIN_PHASE,
                    metrics={"phase": number},
                    first_round=self.round,
                    last_round=total,
                    own_start=self._hidden,
                    noise=noise,
                    average=0.0 if dp is None else dp.average,
                ),
            )
            self._weights = ended.weights
        elif hub.resume is not None:
            self._weights = hub.resume.state["weights"]
        self.round += rounds
        self._hidden = False

    def known_model(self, number: int) -> Generator[Ask | RoundEnd, Any, FloatArray]:
        """The model; if only the sites know it, they disclose theirs to the hub, which averages them."""
        if not self._hidden:
            return self._weights
        shown = yield from revealed(self._hub, number - 1, self.round)
        return shown

    def choose(self, section: JudgeSection, earlier: FloatArray, number: int) -> Generator[Ask | RoundEnd, Any, None]:
        """Continue with the better of two models, as measured on held-out rows."""
        better = yield from prefers_later(
            self._hub, earlier=earlier, later=self._weights, number=number, round_number=self.round
        )
        if not better:
            self._weights = earlier
        kept = "later" if better else "earlier"
        self.notes.append(f"held-out {section.rows}-risk rows chose the {kept} model")


def _known_clusters(config: Hybrid, hub: Hub) -> Generator[Ask | RoundEnd, Any, dict[str, str] | None]:
    """The clusters that the plan or the sites name, before any budget is spent; None if they have to be formed."""
    if not any(phase.kind == "peers" for phase in config.phases):
        return dict.fromkeys(hub.sites, "")
    if _label_clusters(config.clusters):
        return None
    if not isinstance(config.clusters, str):
        found = {site: name for name, members in config.clusters.items() for site in members}
    elif hub.clusters is not None:
        found = dict(hub.clusters)
    else:
        found = yield from named_clusters(hub)
    found = {site: found[site] for site in hub.sites if site in found}
    if not found:
        raise ConfigError(
            "peers need clusters, and neither the plan nor a site names one for anybody who takes part",
            hint='Set sites.clusters in a simulation, cluster in each site.toml, or method.clusters = "labels:N"',
        )
    return found


def _formed_clusters(config: Hybrid, hub: Hub) -> Generator[Ask | RoundEnd, Any, dict[str, str]]:
    """Form clusters of sites with similar label distributions, which is a release of its own."""
    number = next(index for index, phase in enumerate(config.phases) if phase.kind == "peers")
    formed = yield from form_clusters(hub, _label_clusters(config.clusters), number)
    return formed


def _within(hub: Hub, clusters: Mapping[str, str]) -> Hub:
    """The hub, with only the sites that are in a cluster."""
    return replace(hub, sites=tuple(site for site in hub.sites if site in clusters))


def _label_clusters(clusters: str | Mapping[str, tuple[str, ...]]) -> int:
    """N of "labels:N"; 0 for clusters that need no labels."""
    kind, _, count = clusters.partition(":") if isinstance(clusters, str) else ("", "", "")
    return int(count) if kind == "labels" and count.isdecimal() else 0


def _check_clusters(clusters: str | Mapping[str, tuple[str, ...]]) -> None:
    if isinstance(clusters, str):
        if clusters != "given" and not _label_clusters(clusters):
            raise ConfigError(f"unknown clusters {clusters!r}", hint='Use "given", "labels:N" or {NAME = [SITE, ...]}')
        return
    members = [site for sites in clusters.values() for site in sites]
    if not members or len(set(members)) != len(members):
        raise ConfigError("method.clusters must have every site at most once, and one at least", hint="Correct it")
    for name in clusters:
        check_cluster_name(name)


def _judge_spends(config: Hybrid) -> bool:
    return config.judge is not None and config.judge.rows == "high"


def claims(config: Hybrid, rows: int) -> Sequence[Guarantee]:
    """A site spends each phase's budget; phases without one give away weights trained on their rows."""
    phases = training_phases(config, TrainSection())
    made: list[Guarantee] = list(planned_claims(phases))
    if any(spends(phase) is None for phase in phases):
        made.append(Aggregate(rows=rows))
    return tuple(made)


def contract(approved: ApprovedPlan) -> Contract:
    """Clusters and budget, then the phases in their order; a model that only peers know is shown to the hub at the end,
    or before a phase that is judged against it."""
    config: Hybrid = approved.config
    phases, last = approved.phases, len(approved.phases) - 1
    spending = any(spends(phase) is not None for phase in phases) or _judge_spends(config)
    budget = [reserve_step(approved)] if spending else []
    blocks: list[list[Step]] = [*_cluster_blocks(config, budget)]
    for number, section in enumerate(config.phases):
        if number == last and config.judge is not None:
            blocks.append(_reveal_steps(approved, number))
        blocks += peer_blocks(approved, number) if section.kind == "peers" else [[phase_step(approved, number)]]
    end = phase_rounds(approved, last).stop
    if config.judge is not None:
        claims = (total_claim(approved),) if _judge_spends(config) else (Aggregate(rows=0),)
        says = "how many held-out rows the later of two models gets right more often"
        judged = Step(task=JUDGE.name, says=says, claims=claims, rounds=range(end, end + 1), phase=last)
        blocks.append([judged])
    return Contract.of(*blocks, _reveal_steps(approved, last + 1))


def _cluster_blocks(config: Hybrid, budget: list[Step]) -> list[list[Step]]:
    """How clusters come about, before or after the budget is reserved."""
    peers = [number for number, phase in enumerate(config.phases) if phase.kind == "peers"]
    if not peers or not isinstance(config.clusters, str):
        return [budget]
    if _label_clusters(config.clusters):
        return [budget, [labels_step(peers[0])]]
    return [[NAMED_STEP], budget]


def _reveal_steps(approved: ApprovedPlan, number: int) -> list[Step]:
    """The model of phase `number` - 1, if only peers know it."""
    config: Hybrid = approved.config
    if number == 0 or config.phases[number - 1].kind != "peers":
        return []
    phase, end = approved.phase(number - 1), phase_rounds(approved, number - 1).stop
    claims: tuple[Guarantee, ...] = (Aggregate(rows=0),) if spends(phase) is None else (total_claim(approved),)
    says = "the model you trained with your peers"
    return [Step(task=REVEAL.name, says=says, claims=claims, rounds=range(end, end + 1), phase=number - 1)]


METHOD = Method(
    name="hybrid",
    summary="Trusted clusters train among themselves, then all train with the hub under differential privacy.",
    config=Hybrid,
    protocol=protocol,
    claims=claims,
    contract=contract,
    cites="Corbucci, Monreale, Pellungrini 2024",
    reads=reads,
    phases=training_phases,
    judge=lambda config: config.judge,
    clusters=lambda config: None if isinstance(config.clusters, str) else config.clusters,
    example=(
        'clusters = "labels:2"\n'
        "phases = [\n"
        '  {kind = "peers", rounds = 6, local_epochs = 7, optimizer = "sgd", lr = 0.3},\n'
        '  {kind = "server", rounds = 2, optimizer = "sgd", lr = 0.1, batch = 0, dp = {epsilon = 2.0, delta = 1e-5}},\n'
        "]\n"
        "[sites]\n"
        "low_risk = 0.5"
    ),
)
