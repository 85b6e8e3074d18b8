"""Hybrid federated learning: first among peers, then with a server under differential privacy (Corbucci, Monreale,
Pellungrini: Enhancing Privacy and Utility in Federated Learning, SECRYPT 2024).

Sites of a trusted cluster train together on low-risk rows, encrypted past the hub. Then all sites train with the hub on
high-risk rows, with noise, each starting from its cluster's model. A plan may have any sequence of phases, each with
its own rows, rounds and budget.

With `method.secure` the phases with the server are over secure sums: the mean of the clusters' models is opened first,
then one total per round, with noise that is added once, in shares, per phase. The hub chooses no weights.

Threat model: the hub is honest but curious; with `method.secure` it may lie. It relays the peers' models without being
able to decrypt them, and sees every server update, or with `method.secure` their total. Peers of a cluster trust each
other with plain models.

Guarantee: DP for the units and rows that the claim's scope names; Aggregate or SecureSum for the others.

If the last phase is among peers, the clusters' models stay at the sites: there is no common model, and no step shows
the hub any.

Sharp edges: a phase without a budget protects its rows by nothing but aggregation, and the ledger names those rows.
With `method.secure` these rows are in the mean that is opened before the first phase with the server. Forming clusters
from labels is a release of its own. If models are selected (`method.judge`) after a phase among peers, the sites
disclose their own models to the hub.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt

from kohort.crypto.sums.scheme import find_scheme
from kohort.errors import ConfigError
from kohort.methods.hybrid.judging import JUDGE, REVEAL
from kohort.methods.hybrid.progress import Progress
from kohort.methods.registry import Method
from kohort.methods.strengths import Strength
from kohort.privacy.contract import Contract, Step
from kohort.privacy.guarantee import Aggregate, Guarantee
from kohort.protocol.hub import Ask, Hub, ProtocolGenerator, Replies, Result, RoundEnd
from kohort.protocol.plan.approved import ApprovedPlan, ModelSection, TrainSection
from kohort.protocol.plan.phases import DPSection, JudgeSection, RowPart, SecureSumSection, TrainingPhase
from kohort.protocol.plan.reads import AGGREGATION, AVERAGED, CORRECTION, LOCAL_TRAINING, NETWORK, SELECTION, Reads
from kohort.rounds.clusters import NAMED_STEP, check_cluster_name, form_clusters, labels_step, named_clusters
from kohort.rounds.dp_accounts import planned_claims, reserve, reserve_step, spends, total_claim
from kohort.rounds.group_secrets import secret_step
from kohort.rounds.hub_noise import check_hidden_sites, hub_claim
from kohort.rounds.peers import PeerRounds, neighbours, peer_blocks
from kohort.rounds.phase_training import phase_rounds, phase_step
from kohort.rounds.private_defaults import is_tuned, tuned_budget, tuned_train
from kohort.rounds.totals.summed_tasks import models_steps, summed_steps

__all__ = ["METHOD", "Hybrid", "PhaseSection"]


_PHASE_KEYS = ("local_epochs", "batch", "optimizer", "lr")
"""Keys of `[train]` that a phase can set for itself."""
USUAL_ROUNDS = 10


@dataclass(frozen=True, kw_only=True)
class PhaseSection:
    """`[[method.phases]]`: who trains together, on which rows, for how many rounds, under which budget."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field

    kind: Literal["peers", "server"]
    rows: RowPart | None = None
    """low | high | all; by default low for peers and high for the server."""
    rounds: Annotated[int, Ge(1)] | None = None
    """10; under a budget that the rule of `kohort.rounds.private_defaults` applies to, 60."""
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
            train=replace(train, rounds=self.rounds or USUAL_ROUNDS, **own),
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
    secure: SecureSumSection | None = None
    """Sum what sites add in phases with the server, so that the hub sees totals alone; noise is added in shares."""
    judge: JudgeSection | None = None
    """Model selection: keep the model from before the last server phase if it is better on held-out rows."""

    def __post_init__(self) -> None:
        if self.secure is not None:
            object.__setattr__(self, "secure", self.secure.or_scheme("masks"))
        if not self.phases:
            raise ConfigError("a hybrid federation needs a phase", hint="Add [[method.phases]]")
        for section in self.phases:
            _check_phase(section, self.secure)
        if self.secure is not None and all(section.kind == "peers" for section in self.phases):
            raise ConfigError(
                "method.secure sums what sites add in phases with the server, and the plan has none",
                hint="Drop method.secure, or add a phase with the server",
            )
        _check_claims(self)
        _check_clusters(self.clusters)
        if self.judge is not None:
            _check_judge(self)


def _check_phase(section: PhaseSection, secure: SecureSumSection | None) -> None:
    dp, among_peers = section.dp, section.kind == "peers"
    _check_kind(section)
    if dp is None:
        return
    if dp.mechanism == "statistics":
        raise ConfigError("statistics are released once, not in phases", hint='Use method.name = "fedavg"')
    if among_peers and dp.mechanism == "hub":
        raise ConfigError("no hub sees what peers exchange", hint="Use dp.mechanism = dp-sgd or after")
    if dp.mechanism == "ftrl":
        _check_single_pass(section)
    dp.refuse_sample(None if among_peers else secure)
    if dp.person_rows == "all" and section.rows != "all":
        raise ConfigError(
            "a person may have rows of either risk, and the phase trains on one part", hint="Drop dp.person_rows"
        )


def _check_kind(section: PhaseSection) -> None:
    """Refuse keys that only the other kind of phase reads."""
    if section.kind == "peers":
        neighbours(section.topology, ("a", "b", "c"), "a")
        if section.dp is not None and section.dp.average is not None:
            raise ConfigError("a phase among peers does not read dp.average: the hub averages", hint="Drop dp.average")
    elif section.topology != "full":
        raise ConfigError("a phase with the server does not read topology: peers have one", hint="Drop topology")


def _check_single_pass(section: PhaseSection) -> None:
    """Each row is in one round: batches follow from the rounds, and a step is a step of SGD."""
    for name in ("local_epochs", "batch", "optimizer"):
        if getattr(section, name) is not None:
            raise ConfigError(
                f'a phase with dp.mechanism = "ftrl" takes one step per round on rows of that round alone, and '
                f"{name} says otherwise",
                hint=f"Drop the phase's {name}",
            )


def _check_judge(config: Hybrid) -> None:
    if config.secure is not None:
        raise ConfigError(
            "method.judge needs each site's own count and model, and method.secure hides them",
            hint="Drop method.judge or method.secure",
        )
    if config.phases[-1].kind != "server":
        raise ConfigError("method.judge judges a server phase at the end", hint="End with a server phase")


def _check_claims(config: Hybrid) -> None:
    """Refuse phases whose epsilon no proof covers."""
    for number, (before, section) in enumerate(pairwise(config.phases), 2):
        if before.kind == "peers" and section.dp is not None and section.dp.mechanism == "hub":
            raise ConfigError(
                f"phase {number}: noise at the hub bounds updates from one common start, and after peers every "
                "cluster starts from its own model",
                hint='Use dp.mechanism = "dp-sgd" or "after", or put a server phase on other rows in between',
            )
    if config.secure is None and any(one.dp is not None and one.dp.mechanism == "hub" for one in config.phases):
        check_hidden_sites(training_phases(config, TrainSection()), config.judge)
    peers = next((section for section in config.phases if section.kind == "peers"), None)
    if _label_clusters(config.clusters) and peers is not None and peers.dp is not None:
        raise ConfigError(
            "clusters by labels count the classes of rows without noise, and the peers' budget protects these rows",
            hint="Name the clusters, or drop the peers' dp",
        )


def training_phases(config: Hybrid, train: TrainSection) -> tuple[TrainingPhase, ...]:
    """The phases as sites see them."""
    held_out: dict[RowPart, float] = {} if config.judge is None else {config.judge.rows: config.judge.share}
    return tuple(section.phase(train, held_out) for section in config.phases)


def fill(
    config: Hybrid, train: TrainSection, model: ModelSection, given: frozenset[str]
) -> tuple[Hybrid, TrainSection]:
    """Set private phases with the server by one rule where the plan leaves them open."""
    own = frozenset(key.removeprefix("train.") for key in given if key.startswith("train."))
    summed = config.secure is not None
    phases = tuple(
        _filled(section, train, model, own | _of_phase(given, number), summed=summed)
        for number, section in enumerate(config.phases, 1)
    )
    if phases == config.phases:
        return config, train
    if not summed and "hub" not in own:
        train = replace(train, hub="momentum")
    return replace(config, phases=phases), train


def _of_phase(given: frozenset[str], number: int) -> frozenset[str]:
    """The keys that a plan gives for the budget of a phase: "dp.lower_rate"."""
    place = f"method.phases.{number}."
    return frozenset(key.removeprefix(place) for key in given if key.startswith(f"{place}dp."))


def _filled(
    section: PhaseSection, train: TrainSection, model: ModelSection, given: frozenset[str], *, summed: bool
) -> PhaseSection:
    dp, own = section.dp, {name for name in ("rounds", *_PHASE_KEYS) if getattr(section, name) is not None}
    known = frozenset(own | (given & set(_PHASE_KEYS)))
    if dp is None or section.kind != "server" or not is_tuned(dp, known):
        return section
    tuned = tuned_train(train, dp, model, known, summed=summed)
    keys = {name: getattr(tuned, name) for name in ("rounds", *_PHASE_KEYS) if name not in known}
    return replace(section, dp=tuned_budget(dp, known | given), **keys)


def reads(config: Hybrid) -> Reads:
    """Of `[train]`, what the phases leave open; how the hub chooses and aggregates, where a phase is run with it."""
    own = {f"train.{name}" for name in _PHASE_KEYS if all(getattr(phase, name) is not None for phase in config.phases)}
    keys = LOCAL_TRAINING - own | CORRECTION | NETWORK | _of_sites(config)
    with_hub = [phase for phase in config.phases if phase.kind == "server"]
    average = {"train.average"} if any(phase.dp is None or not phase.dp.average for phase in with_hub) else set()
    because = AVERAGED if with_hub and not average else {}
    if config.secure is not None:
        own_updates = SELECTION | AGGREGATION | CORRECTION
        hidden = dict.fromkeys(own_updates, "a secure sum hides each site's own update")
        stepped = all(phase.is_stepped_on_sums for phase in training_phases(config, TrainSection()))
        alone = {"train.l2", "train.state"} if stepped else set()  # as in fedavg over sums
        return Reads(keys - CORRECTION - alone | average, "with method.secure", because={**hidden, **because})
    unread = {}
    if config.judge is not None and config.judge.rows == "low":
        unread = dict.fromkeys(
            ("method.judge.epsilon", "method.judge.delta"), "rows of low risk judge without a budget"
        )
    if with_hub:
        keys |= SELECTION | average
    if any(phase.dp is None or phase.dp.mechanism != "hub" for phase in with_hub):
        keys |= AGGREGATION
    return Reads(keys, because=because, unread=unread)


def _of_sites(config: Hybrid) -> frozenset[str]:
    """Keys of `[sites]`: what the phases need, and which rows judge."""
    return needs(config) | ({"sites.low_risk"} if config.judge is not None else frozenset())


def needs(config: Hybrid) -> frozenset[str]:
    """Clusters for phases among peers, unless `[method]` names or forms them, and which rows are of low risk."""
    keys = {"sites.low_risk"} if any(phase.rows != "all" for phase in config.phases) else set()
    if config.clusters == "given" and any(phase.kind == "peers" for phase in config.phases):
        keys.add("sites.clusters")
    return frozenset(keys)


def protocol(config: Hybrid, hub: Hub) -> ProtocolGenerator:
    """Reserve the budgets, then phase after phase: peers among themselves, or everybody with the hub."""
    phases = hub.approved.phases
    enrolled = len(hub.sites)
    clusters = yield from _known_clusters(config, hub)
    if clusters is not None:
        hub = _within(hub, clusters)
    outside = enrolled - len(hub.sites)
    if any(spends(phase, config.secure) is not None for phase in phases) or _judge_spends(config):
        reserved: Replies = yield reserve(hub.sites)
        hub = replace(hub, sites=reserved.sites)
    if clusters is None:
        clusters = yield from _formed_clusters(config, hub)
        hub = _within(hub, clusters)
    progress = Progress(hub, hub.network.start(hub.streams.generator("start")))
    if outside:
        progress.notes.append(f"{outside} of {enrolled} sites are in no cluster and took no part")
    total = sum(phase.train.rounds for phase in phases)
    for number, (section, phase) in enumerate(zip(config.phases, phases, strict=True)):
        last_and_judged = config.judge is not None and number == len(phases) - 1
        earlier = (yield from progress.earlier_model(number)) if last_and_judged else None
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
            yield from progress.with_server(number, phase, total)
        if earlier is not None and config.judge is not None:
            yield from progress.choose(config.judge, earlier, number)
    return Result(
        model=progress.model,
        rounds=total,
        stopped_by="rounds",
        notes=tuple(progress.notes),
        claim=hub_claim(hub),
        clusters=progress.clusters,
    )


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
    made: list[Guarantee] = list(planned_claims(phases, config.secure))
    bare = any(spends(phase, config.secure) is None for phase in phases)
    if config.secure is not None:
        made.append(find_scheme(config.secure.sum).claim(3, rows))
        bare = any(phase.topology and phase.dp is None for phase in phases)
    if bare:
        made.append(Aggregate(rows=rows))
    return tuple(made)


def contract(approved: ApprovedPlan) -> Contract:
    """Clusters and budget, then the phases in their order; a model that only peers know is shown to the hub before a
    phase that is judged against it, and with secure sums as part of a mean before a phase with the server."""
    config: Hybrid = approved.config
    phases, last = approved.phases, len(approved.phases) - 1
    spending = any(spends(phase, config.secure) is not None for phase in phases) or _judge_spends(config)
    budget = [reserve_step(approved)] if spending else []
    blocks: list[list[Step]] = [*_cluster_blocks(config, budget)]
    for number, section in enumerate(config.phases):
        if number == last and config.judge is not None:
            blocks.append(_reveal_steps(approved, number))
        if section.kind == "peers":
            blocks += peer_blocks(approved, number)
        elif config.secure is not None:
            blocks += [*_opening(approved, number), summed_steps(approved, number, says=_says(phases[number]))]
        else:
            blocks.append([phase_step(approved, number)])
    end = phase_rounds(approved, last).stop
    if config.judge is not None:
        claims = (total_claim(approved),) if _judge_spends(config) else (Aggregate(rows=0),)
        says = "how many held-out rows the later of two models gets right more often"
        judged = Step(task=JUDGE.name, says=says, claims=claims, rounds=range(end, end + 1), phase=last)
        blocks.append([judged])
    return Contract.of(*blocks)


def _says(phase: TrainingPhase) -> str:
    """What a total of a phase over sums is, for people."""
    rows = "" if phase.rows == "all" else f" on rows of {phase.rows} risk"
    return f"the sum of all sites' updates{rows}" if phase.dp is None else f"the noisy sum of clipped updates{rows}"


def _opening(approved: ApprovedPlan, number: int) -> list[list[Step]]:
    """What comes before phase `number` over sums: a secret, once, and the mean of models."""
    config: Hybrid = approved.config
    follows_peers = number > 0 and config.phases[number - 1].kind == "peers"
    earlier = any(phase.kind == "server" for phase in config.phases[:number])
    secret = [secret_step()] if not earlier and approved.sums_securely else []
    return [secret, models_steps(approved, number - 1) if follows_peers else []]


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


def _strength(epsilon: float) -> Strength:
    peers = '{kind = "peers", rounds = 6, local_epochs = 7, optimizer = "sgd", lr = 0.3}'
    dp = f"{{epsilon = {epsilon}, delta = 1e-5}}"
    server = f'{{kind = "server", rounds = 2, optimizer = "sgd", lr = 0.1, batch = 0, dp = {dp}}}'
    keys = (f"method.phases=[{peers}, {server}]", 'method.clusters="labels:2"', "sites.low_risk=0.5")
    return Strength(f"epsilon {epsilon:g} for rows of high risk", "epsilon", keys)


METHOD = Method(
    name="hybrid",
    summary="Trusted clusters train among themselves, then all train with the hub under differential privacy.",
    config=Hybrid,
    protocol=protocol,
    claims=claims,
    contract=contract,
    cites="Corbucci, Monreale, Pellungrini 2024",
    reads=reads,
    fill=fill,
    needs=needs,
    phases=training_phases,
    secure=lambda config: config.secure,
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
    strengths=tuple(_strength(epsilon) for epsilon in (8.0, 2.0, 0.5)),
)
