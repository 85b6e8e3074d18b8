"""Mode "paper" of the one-shot fit: what FedHEONN sends and computes, for comparison.

A site sends U S of its rows in clear, and its moments encrypted under a key that all sites share. The hub updates its
decomposition with every reply, adds the ciphertexts, and multiplies the encrypted total by U (S^2 + lambda)^-1 U'; a
site decrypts the weights.

Sharp edges: U S determines the rows up to a rotation, and the rows of a small site can be recovered from it
(`kohort.evaluate.attacks.gram`). Sites below `min_rows` take no part, and a note counts the other small sites.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kohort.crypto.sums.encrypted import join_ciphertexts, split_ciphertexts
from kohort.errors import IntegrityError, RefusedError
from kohort.methods.oneshot.cells import rows_at
from kohort.methods.oneshot.design import InputCells, Layout, section_of
from kohort.methods.oneshot.paper_ckks import PaperKeys, PaperTotals, paper_keys
from kohort.methods.oneshot.paper_factors import factor_of_site, merge_incremental
from kohort.models.closed_form.design import Floats
from kohort.privacy.contract import Contract, Step
from kohort.privacy.guarantee import Aggregate, Guarantee
from kohort.protocol.hub import Ask, Expect, Hub, ProtocolGenerator, Replies, Result, RoundEnd
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.site import Site
from kohort.protocol.task import Release, Request, Task
from kohort.protocol.wire import Payload

__all__ = ["OPEN_WEIGHTS", "SEND_FACTORS", "paper_claims", "paper_contract", "paper_protocol"]

SMALL_SITE = 16


def _keys(approved: ApprovedPlan) -> PaperKeys:
    return paper_keys(approved.run, section_of(approved).degree)


def _layout(site: Site) -> Layout:
    approved, encoder = site.plan, site.encoder
    section = section_of(approved)
    if section.mode != "paper":
        raise RefusedError("the approved plan does not send factors in clear")
    if site.deployed:
        raise RefusedError(
            "mode paper is for simulations: its key would have to be handed to every site",
            hint='Set method.oneshot.mode = "default"',
        )
    return Layout.of(section, encoder, InputCells.whole(encoder.width))


def _send(site: Site, request: Request) -> Release:
    del request
    layout, rows = _layout(site), rows_at(site)
    least = layout.section.min_rows
    if rows.count < least:
        raise RefusedError(
            f"site {site.name!r} has {rows.count} rows, fewer than {least}, and sits out: U S would tell them",
            hint="Use the default mode, or lower method.oneshot.min_rows",
        )
    made = factor_of_site(layout.design, layout.inputs(rows.x), rows.y)
    keys = _keys(site.plan)
    return Release(
        payload=Payload(
            arrays={"factors": np.stack(made.factors)},
            blobs={"moments": join_ciphertexts(keys.encrypt(column) for column in made.moments.T)},
        ),
        guarantee=Aggregate(rows=rows.count),
        rows=rows.count,
    )


def _open(site: Site, request: Request) -> Release:
    """Decrypt the weights, as any site can."""
    layout = _layout(site)
    keys = _keys(site.plan)
    columns = [keys.decrypt(data) for data in split_ciphertexts(request.payload.blobs["weights"])]
    weights = np.stack([column[: layout.design.width] for column in columns], axis=1)
    return Release(payload=Payload(arrays={"weights": weights}), guarantee=Aggregate(rows=site.count), rows=site.count)


SEND_FACTORS = Task(name="oneshot.paper.factors", one=_send)
OPEN_WEIGHTS = Task(name="oneshot.paper.open", one=_open)


def paper_claims(rows: int) -> Sequence[Guarantee]:
    """What a site discloses in mode "paper": U S, an unprotected aggregate of all its rows.

    Args:
        rows: The site's training rows.

    Returns:
        The one guarantee that the release claims.
    """
    return (Aggregate(rows=rows),)


def paper_contract() -> Contract:
    """Factors in clear, once, and the opened weights."""
    clear = (Aggregate(rows=0),)
    factors = Step(task=SEND_FACTORS.name, says="the factors U S of your rows, in clear", claims=clear)
    opened = Step(task=OPEN_WEIGHTS.name, says="the decrypted weights of the model", claims=clear)
    return Contract.of([factors], [opened])


def paper_protocol(hub: Hub) -> ProtocolGenerator:
    """Collect U S and encrypted moments, merge them incrementally, and let one site decrypt the weights.

    Args:
        hub: The hub and its sites, which have enrolled.

    Returns:
        The model after one round, with notes that say what was sent in clear and how many sites are small.

    Raises:
        IntegrityError: The decrypted weights are not finite.
    """
    section = section_of(hub.approved)
    layout = Layout.of(section, hub.encoder, InputCells.whole(hub.encoder.width))
    width, neurons = layout.design.width, layout.design.classes or 1
    shared = bool(layout.design.classes) and layout.design.shares_gram
    totals = PaperTotals(_keys(hub.approved).public, neurons)
    merged: list[Floats] = []

    def take(site: str, payload: Payload) -> None:
        del site
        factors = payload.arrays["factors"]
        merged[:] = (
            list(factors)
            if not merged
            else [merge_incremental([known, new]) for known, new in zip(merged, factors, strict=True)]
        )
        totals.add(split_ciphertexts(payload.blobs["moments"]))

    replies: Replies = yield Ask(
        task=SEND_FACTORS,
        to=hub.sites,
        expect=Expect(arrays={"factors": ("<f8", (1 if shared else neurons, width, None))}, blobs=("moments",)),
        take=take,
    )
    encrypted, penalty = [], float(section.lambda_)
    for neuron in range(neurons):
        left, values, _ = np.linalg.svd(merged[0 if shared else neuron], full_matrices=False)
        encrypted.append(totals.times(neuron, left, (left / (values**2 + penalty)).T))
    opened: Replies = yield Ask(
        task=OPEN_WEIGHTS,
        to=replies.sites[:1],
        payload=Payload(blobs={"weights": join_ciphertexts(encrypted)}),
        expect=Expect(arrays={"weights": ("<f8", (width, neurons))}),
    )
    weights = next(opened.payloads()).arrays["weights"]
    if not np.isfinite(weights).all():
        raise IntegrityError("the opened weights are no numbers; a ciphertext was altered, or under another key")
    made = (weights[:, 1:] - weights[:, :1]) / 2 if layout.design.classes == 2 else weights
    network, flat = layout.network([made], [layout.design.inputs], hub.network.dtype)
    model = hub.model_of(flat, network=network)
    yield RoundEnd(round=0, rounds=1, model=model, resumed=hub.resume is not None)
    small = sum(hub.rows[site] <= SMALL_SITE for site in replies.sites)
    notes = ["mode paper: every site's U S was sent in clear, and all sites share one key"]
    if small:
        notes.append(f"{small} sites have {SMALL_SITE} rows or fewer, which U S may give back: kohort audit attacks it")
    return Result(model=model, rounds=1, stopped_by="rounds", notes=tuple(notes))
