"""One-shot federated learning over a secure sum (after Fontenla-Romero, Guijarro-Berdiñas, Hernández-Pereira,
Pérez-Sánchez: FedHEONN, Future Generation Computer Systems 149, 2023).

A one-layer network has a closed-form solution from Z'Z and Z'y of the rows Z = [1, x], and both are sums over rows.
Every site adds its own statistics to one secure sum, and the hub solves. The result is exactly that of pooled rows, no
matter how the rows are distributed over sites.

Threat model: the hub is honest but curious. It sees the total of all sites' Gram matrices and moments, and each site's
row count. With `bfv` (the default) and `ckks` a key-holder opens the total and must not collude with the hub; `masks`
needs no such party. With `none` the hub is trusted with every site's own statistics; with `statistics_to = "peers"`
the sites trust each other with them, and the hub sees only the model.

Guarantee: SecureSum, or Aggregate with `none`; DP of the total with `method.dp`; in mode "paper", Aggregate and
Encrypted. A total with fewer than 10 rows per input or fewer than `min_cell` persons per class is refused. Rare
categories are merged before anything is summed.

Sharp edges: the paper sends U S of every site in clear, from which the rows of small sites can be recovered;
`mode = "paper"` does the same, for comparison only. Columns need public bounds, because sums are in fixed point.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from math import sqrt
from typing import Any

from kohort.crypto.sums.checked import from_residues, to_residues
from kohort.crypto.sums.scheme import find_scheme
from kohort.errors import ConfigError, RefusedError, SiteError
from kohort.methods.oneshot.bins import BINS, bins_protocol, check_bins, uses_bins
from kohort.methods.oneshot.cells import agree_on_cells, cells_blocks, needs_cells
from kohort.methods.oneshot.design import InputCells, Layout, OneShot, OneShotSection, section_of, unread_keys
from kohort.methods.oneshot.fit import Fit, check_before, check_total, decoded, fit, rounding_noise
from kohort.methods.oneshot.newton import newton_length
from kohort.methods.oneshot.newton_path import NewtonPath, curvature_of
from kohort.methods.oneshot.paper import paper_claims, paper_contract, paper_protocol
from kohort.methods.oneshot.peers import peers_blocks, solved_by_peers
from kohort.methods.oneshot.state import FILE, Batch, OneShotState, join, leave, load_state, save_state
from kohort.methods.oneshot.sums import (
    NEWTON,
    begin_session,
    checks_of,
    deviation_of,
    dp_of,
    is_checked,
    layout_of,
    scheme_of,
    statistics_task,
)
from kohort.methods.registry import Method
from kohort.methods.strengths import with_budget, with_sum
from kohort.privacy.contract import Contract
from kohort.privacy.guarantee import Cells, Guarantee
from kohort.protocol.hub import Ask, Hub, ProtocolGenerator, Replies, Result, RoundEnd
from kohort.protocol.plan.approved import ApprovedPlan, TrainSection
from kohort.protocol.plan.phases import TrainingPhase
from kohort.protocol.plan.reads import Reads
from kohort.rounds.dp_accounts import Shares, planned_claims, reserve, reserve_step, shared_sigma, spends
from kohort.rounds.group_secrets import agree_on_secret, secret_step
from kohort.rounds.summing import Total, secure_sum, sum_steps
from kohort.rounds.totals.pairs import rounds_pairs, small_pairs

__all__ = ["METHOD", "OneShot", "OneShotSection", "join", "leave", "load_state"]


def phases(config: OneShot, train: TrainSection) -> tuple[TrainingPhase, ...]:
    """One look at all rows."""
    return (TrainingPhase(train=replace(train, rounds=1, batch=0, local_epochs=1), dp=config.dp),)


def reads(config: OneShot) -> Reads:
    """Nothing of `[train]`, and of `[model]` the type of the numbers: what is fitted is `[method.oneshot]`."""
    kind = "additive" if uses_bins(config.oneshot) else "onelayer"
    read = frozenset({"model.dtype", "method.secure.colluders"})  # categories are counted under a secret of the sites
    return Reads(read, model_kind=kind, unread=unread_keys(config))


def protocol(config: OneShot, hub: Hub) -> ProtocolGenerator:
    """A closed form over one secure sum, or over two of bins; or the paper's own protocol."""
    if uses_bins(config.oneshot):
        check_bins(config)
        return (yield from bins_protocol(config, hub))
    _check(config, hub)
    return (yield from (paper_protocol(hub) if config.oneshot.mode == "paper" else _one_sum(config, hub)))


def _one_sum(config: OneShot, hub: Hub) -> ProtocolGenerator:
    """Agree on what is summed, sum it once, and solve; with more rounds in the plan, Newton steps follow."""
    sigma = 0.0
    phase = hub.approved.phase(0)
    if spends(phase, config.secure) is not None:
        reserved: Replies = yield reserve(hub.sites)
        hub, sigma = replace(hub, sites=reserved.sites), shared_sigma(hub.approved)
    cells = InputCells.whole(hub.encoder.width)
    if needs_cells(hub.approved, hub.encoder):
        cells = yield from agree_on_cells(hub)
    layout = layout_of(hub.approved, hub.encoder, cells)
    check_before(layout, [hub.rows[site] for site in hub.sites])
    if config.oneshot.statistics_to == "peers":
        return (yield from _among_peers(hub, layout))
    task, checks = statistics_task(hub.approved), checks_of(hub.approved)
    if is_checked(hub.approved):
        hub = replace(hub, sites=(yield from agree_on_secret(hub)))
    opened = yield from secure_sum(hub, task, length=layout.length + checks)
    total = Total(from_residues(opened.values[:-checks]) if checks else opened.values, opened.sites)
    _check_sites(config, hub, total, noisy=sigma > 0)
    totals = decoded(layout, total.values)
    check_total(layout, totals)
    noise = deviation_of(layout, sigma, Shares(len(hub.sites), config.secure.colluders)) * sqrt(len(total.sites))
    if find_scheme(config.secure.sum).key_holder and not sigma:
        noise = rounding_noise(layout, totals)
    fitted = fit(layout, totals, noise=noise)
    yield from _shown(hub, fitted, 0, config.oneshot.rounds)
    if config.oneshot.rounds > 1:
        fitted = yield from _newton(config, hub, NewtonPath.start(layout, total.values), opened)
    network, weights = fitted.network(hub.network.dtype)
    state = OneShotState(
        section=config.oneshot,
        encoder=hub.encoder,
        cells=cells,
        clip=layout.clip,
        batches=(Batch(frozenset(total.sites), total.values, noise),),
    )
    return Result(
        model=hub.model_of(weights, network=network),
        rounds=config.oneshot.rounds,
        stopped_by="rounds",
        notes=(*fitted.notes, *_notes(layout)),
        files={FILE: save_state(state)},
    )


def _among_peers(hub: Hub, layout: Layout) -> ProtocolGenerator:
    """The sites exchange their statistics and solve; the hub sees only the model, so it has no state to keep."""
    solved = yield from solved_by_peers(hub, layout)
    network, weights = layout.network(solved.coefficients, solved.sizes, hub.network.dtype)
    model = hub.model_of(weights, network=network)
    yield RoundEnd(round=0, rounds=1, model=model, resumed=hub.resume is not None)
    note = f"{len(solved.sites)} sites saw each other's statistics in clear, and the hub saw the model alone"
    return Result(
        model=model,
        rounds=1,
        stopped_by="rounds",
        notes=(*solved.notes, *_notes(layout), note),
    )


def _newton(config: OneShot, hub: Hub, path: NewtonPath, before: Total) -> Generator[Ask | RoundEnd, Any, Fit]:
    """Newton steps on the cross-entropy, from the closed form. Sites take them, too, from the announced totals."""
    layout, rounds, checks = path.fitted.layout, config.oneshot.rounds, checks_of(hub.approved)
    length = newton_length(layout.design, curvature_of(layout)) + checks
    announced, sites = before.values if checks else to_residues(before.values), before.sites
    for number in range(1, rounds):
        inputs = {"total": announced.astype("<u8").tobytes(), "sites": hub.approved.places_of(sites)}
        total: Total = yield from secure_sum(hub, NEWTON, length=length, round_number=number, inputs=inputs)
        _check_sites(config, hub, total, noisy=False)
        announced, sites = total.values, total.sites
        path.take(from_residues(announced[:-checks] if checks else announced))
        yield from _shown(hub, path.fitted, number, rounds)
    return path.fitted


def _shown(hub: Hub, fitted: Fit, number: int, rounds: int) -> Generator[Ask | RoundEnd, Any, None]:
    """End a round. A resumed run repeats all requests, gets the same replies, and reports only rounds that are new."""
    done = -1 if hub.resume is None else hub.resume.round
    if number >= done:
        network, weights = fitted.network(hub.network.dtype)
        model = hub.model_of(weights, network=network)
        yield RoundEnd(round=number, rounds=rounds, model=model, resumed=number == done)


def _check_sites(config: OneShot, hub: Hub, total: Total, *, noisy: bool) -> None:
    """Refuse a total that too few sites contributed to."""
    protected = find_scheme(config.secure.sum).name != "none"
    if protected and len(total.sites) < config.oneshot.min_sites:
        raise RefusedError(f"{len(total.sites)} sites are left, fewer than {config.oneshot.min_sites}")
    shares = Shares(len(hub.sites), config.secure.colluders)
    if noisy and len(total.sites) < shares.quorum:
        raise SiteError(
            f"{len(total.sites)} of {shares.sites} sites are left, too few for the noise to be enough",
            hint="Begin a new run with the sites that answer",
        )


def _check(config: OneShot, hub: Hub) -> None:
    """What would fail at every site is the plan's fault, and is said once."""
    section = config.oneshot
    if section.rounds > 1 and (section.patches > 1 or config.dp is not None):
        raise ConfigError(
            "Newton steps follow a single fit without noise", hint="Set method.oneshot.rounds = 1, or drop the other"
        )
    if section.patches > 1 and not section.features:
        raise ConfigError("patches are random layers", hint="Set method.oneshot.features")
    if hub.encoder.classes is None:
        _check_number(section)
    _check_peers(config)
    if section.mode == "paper":
        _check_paper(config)
    elif find_scheme(config.secure.sum).name != "none":
        _check_protected(section, hub)


def _check_number(section: OneShotSection) -> None:
    """What a target that is a number cannot be fitted with."""
    if section.rounds > 1:
        raise ConfigError("a number is fitted exactly in one round", hint="Set method.oneshot.rounds = 1")
    if section.activation == "softplus" or (section.features and section.activation != "linear"):
        raise ConfigError(
            "the target is a number, which this activation fits no network for",
            hint='Set method.oneshot.activation = "linear"',
        )


def _check_peers(config: OneShot) -> None:
    """What peers that exchange statistics cannot do."""
    section = config.oneshot
    if section.statistics_to == "peers" and (
        config.secure.sum != "none" or section.rounds > 1 or section.mode == "paper" or config.dp is not None
    ):
        raise ConfigError(
            "peers exchange plain statistics, once",
            hint='Set method.secure.sum = "none", or method.oneshot.statistics_to = "hub"; drop rounds, mode and dp',
        )


def _check_paper(config: OneShot) -> None:
    """What the paper's own protocol cannot do."""
    section = config.oneshot
    if section.lambda_ == "folds" or section.rounds > 1 or section.features or config.dp is not None:
        raise ConfigError(
            "mode paper fits one layer with a fixed lambda in one round", hint="Drop features, rounds, folds and dp"
        )


def _check_protected(section: OneShotSection, hub: Hub) -> None:
    """What a protected sum needs: public bounds, and enough sites."""
    _require_bounds(hub)
    if len(hub.sites) < section.min_sites:
        raise RefusedError(
            f"{len(hub.sites)} sites take part and {section.min_sites} are needed for a total to hide any of them",
            hint='Add sites, or set method.secure.sum = "none" where the hub is trusted',
        )


def _require_bounds(hub: Hub) -> None:
    """Refuse columns without bounds that clip: sums are in fixed point, so no row may lie outside."""
    schema = hub.approved.schema
    names = [*schema.inputs, *([] if hub.encoder.classes is not None else [str(schema.target)])]
    open_ended = [
        name
        for name in names
        if hub.encoder.domain.columns[name].kind == "number"
        and not hub.encoder.domain.columns[name].counted
        and schema.columns[name].bounds is None
        and schema.columns[name].bins is None
    ]
    if open_ended:
        raise RefusedError(
            f"{len(open_ended)} columns have no public bounds and would overflow a secure sum: {', '.join(open_ended)}",
            hint="Declare them in data.bounds, as in bounds = {age = [0, 120]}",
        )


def _notes(layout: Layout) -> tuple[str, ...]:
    cells, notes = layout.cells, []
    merged = len(cells.target) - cells.inputs
    if merged:
        notes.append(f"{merged + len(cells.left_out)} rare categories became one per column, or were not read")
    if cells.left_out:
        notes.append(f"rows of rare categories were left out in: {', '.join(cells.left_out)}")
    return tuple(notes)


def claims(config: OneShot, rows: int) -> Sequence[Guarantee]:
    """What a site with `rows` rows discloses: its statistics, in a sum or in clear; in mode "paper", U S in clear."""
    if config.oneshot.mode == "paper":
        return paper_claims(rows)
    (phase,) = phases(config, TrainSection())
    least = 1 if find_scheme(config.secure.sum).name == "none" else config.oneshot.min_cell
    return (
        *planned_claims((phase,), config.secure),
        find_scheme(config.secure.sum).claim(config.oneshot.min_sites, rows),
        *([Cells(least=least)] if config.dp is None else []),
    )


def _pairs(approved: ApprovedPlan) -> str:
    """How counts of pairs of categories are opened, in words."""
    least = least_pair(approved)
    if least == 1:
        return "; counts of pairs of categories open as they are, also those of few persons"
    if least is None:
        return ""
    return f"; the key-holder rounds counts of pairs of categories below {least} at random"


def least_pair(approved: ApprovedPlan) -> int | None:
    """The fewest persons of a pair that opens as it is; 1 where no key-holder rounds, None under noise."""
    section = section_of(approved)
    if uses_bins(section):
        return small_pairs(approved)[1] if rounds_pairs(approved) else 1
    if dp_of(approved) is not None or not _counts_pairs(approved):
        return None
    alone = section.mode == "paper" or section.statistics_to == "peers" or is_checked(approved)
    return section.min_cell if not alone and find_scheme(scheme_of(approved)).key_holder else 1


def _counts_pairs(approved: ApprovedPlan) -> bool:
    """Whether two columns may be categories, as far as the plan says; a number with a place for missing values is."""
    schema = approved.schema
    columns = [schema.columns[name] for name in (*schema.inputs, *(() if schema.target is None else (schema.target,)))]
    numbers = [(spec.bounds is not None or spec.kind == "number") and spec.bins is None for spec in columns]
    return len(columns) - sum(numbers) > 1 or (approved.missing == "category" and len(columns) > 1)


def contract(approved: ApprovedPlan) -> Contract:
    """Rare categories are counted, then statistics are summed once, and once more per Newton step."""
    config: OneShot = approved.config
    section = config.oneshot
    if uses_bins(section):
        return BINS.contract(approved)
    if section.mode == "paper":
        return paper_contract()
    budget = [reserve_step(approved)] if spends(approved.phase(0), config.secure) is not None else []
    cells = cells_blocks(approved) if approved.phase(0).dp is None else []
    if section.statistics_to == "peers":
        return Contract.of(budget, *cells, *peers_blocks())
    says = f"counts, sums and products of your columns, from which the model is solved{_pairs(approved)}"
    statistics = sum_steps(approved, statistics_task(approved), says=says)
    secret = [secret_step()] if is_checked(approved) else []
    steps = range(1, section.rounds)
    newton = sum_steps(approved, NEWTON, says="gradient and curvature of the loss", rounds=steps) if steps else []
    return Contract.of(budget, *cells, secret, statistics, newton)


METHOD = Method(
    name="oneshot",
    summary="Sites add up statistics in one secure sum, and the hub solves a one-layer network in closed form.",
    config=OneShot,
    protocol=protocol,
    claims=claims,
    contract=contract,
    least_pair=least_pair,
    cites="Fontenla-Romero et al. 2023",
    opening=begin_session,
    reads=reads,
    phases=phases,
    secure=lambda config: config.secure,
    example='[method.secure]\nsum = "masks"\n[policy]\npairs = "open"',
    totals=lambda config: BINS if uses_bins(config.oneshot) else None,
    strengths=(
        with_sum("masks", 'policy.pairs="open"'),
        with_sum("bfv"),
        with_budget(1.0, 'method.secure.sum="masks"'),
    ),
)
