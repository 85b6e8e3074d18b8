"""A one-shot fit among peers: every site receives the statistics of all sites and solves; the hub sees none of them.

The paper allows this where sums are not encrypted (`method.secure.sum = "none"`). A site encrypts its integers to every
peer of its own roster, the hub relays messages that it cannot decrypt, and every site adds up what it received. All
sites then have the same integers, and send the hub the model they solved from them.

Guarantees: a site sends its statistics to peers only if its operator approved a plan that says so, and then never to
the hub. Peers see each other's statistics in clear, so sites below `min_rows` take no part. A message that was altered,
misdirected or replayed, and statistics out of range, stop the run and name the sender; so do sites that disagree.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kohort.crypto.sums.scheme import Integers
from kohort.errors import IntegrityError, RefusedError, SiteError
from kohort.methods.oneshot.design import Layout, section_of
from kohort.methods.oneshot.fit import check_total, chosen_notes, decoded, fit
from kohort.methods.oneshot.sums import StatisticsState, layout_at, scheme_of, statistics_at
from kohort.models.closed_form.design import Floats
from kohort.privacy.contract import Step
from kohort.privacy.guarantee import Aggregate
from kohort.protocol.hub import Ask, Expect, Hub, Replies, RoundEnd
from kohort.protocol.site import Site
from kohort.protocol.task import Release, Request, Task
from kohort.protocol.wire import Payload
from kohort.rounds.sealed_messages import keys_step, learn_peers, members_of, open_boxes, passed_around, seal_to

__all__ = ["SEAL", "SOLVE", "PeersFit", "peers_blocks", "solved_by_peers"]


def _approved(site: Site) -> None:
    """Refuse a request for statistics that the approved plan does not send to peers."""
    approved = site.plan
    if section_of(approved).statistics_to != "peers" or scheme_of(approved) != "none":
        raise RefusedError("the approved plan sends no statistics to peers")


def _seal(site: Site, request: Request) -> Release:
    """The site's statistics, encrypted to every peer."""
    _approved(site)
    members = members_of(site, request)
    learn_peers(site, request.payload.blobs["keys"], members)
    own, rows = statistics_at(site, request, _members_named(request))
    site.state(StatisticsState).own = own, rows
    return seal_to(site, request, own.astype("<u8").tobytes(), members, guarantee=site.aggregate(rows), rows=rows)


def _members_named(request: Request) -> list[str]:
    """The sites whose statistics are added, which fix the grid."""
    return request.payload.blobs["sites"].decode(errors="replace").split("\n")


def _solve(site: Site, request: Request) -> Release:
    """Add up the statistics of all peers, solve, and send the model."""
    _approved(site)
    members, layout, sent = members_of(site, request), layout_at(site), site.state(StatisticsState).own
    if sent is None:
        raise SiteError(f"site {site.name!r} was asked to solve before it sent its statistics")
    total, rows = sent
    for name, data in open_boxes(site, request, members).items():
        total = total + _read(layout, name, data, sites=len(members))  # modulo 2^64, as all sums are
    values = decoded(layout, total)
    check_total(layout, values)
    fitted = fit(layout, values)
    return Release(
        payload=Payload(
            arrays={
                "coefficients": np.concatenate(fitted.coefficients),
                "sizes": np.asarray(fitted.sizes, dtype=np.int64),
                "penalties": np.asarray(fitted.penalties),
            }
        ),
        guarantee=site.aggregate(rows),
        rows=rows,
    )


def _read(layout: Layout, name: str, data: bytes, *, sites: int) -> Integers:
    """A peer's integers. Values beyond the bound of an honest site are refused: the total could overflow."""
    grid = layout.grid(sites)
    if len(data) == 8 * layout.length:
        found = np.frombuffer(data, dtype="<u8").astype(np.uint64)
        if np.abs(grid.decode(found)).max() <= grid.bound:
            return found
    raise IntegrityError(f"the statistics peer {name!r} sent do not fit this plan")


SEAL = Task(name="oneshot.peers.seal", one=_seal, public=False)
SOLVE = Task(name="oneshot.peers.solve", one=_solve, public=False)


def peers_blocks() -> list[list[Step]]:
    """Keys, statistics sealed to the peers, and the solved model, each a block of the contract."""
    clear = (Aggregate(rows=0),)
    says = "your counts, sums and products, sealed to the other sites, who can read them"
    sealed = Step(task=SEAL.name, says=says, claims=clear, to="peers")
    solved = Step(task=SOLVE.name, says="the model solved from all sites' statistics", claims=clear, rounds=range(1, 2))
    return [[keys_step()], [sealed], [solved]]


@dataclass(frozen=True, eq=False)
class PeersFit:
    """The model that all sites solved from the same integers."""

    coefficients: list[Floats]
    sizes: list[int]
    notes: tuple[str, ...]
    sites: tuple[str, ...]


def solved_by_peers(hub: Hub, layout: Layout) -> Generator[Ask | RoundEnd, Any, PeersFit]:
    """Exchange the sites' public keys, relay their encrypted statistics, and receive the model from all of them.

    Args:
        hub: The hub and its sites, which have enrolled.
        layout: What is summed.

    Returns:
        The model that all sites agree on.

    Raises:
        IntegrityError: The sites solved different models, or one of another shape.
    """
    handed = yield from passed_around(hub, SEAL, {"sites": "\n".join(hub.sites).encode()})
    parts, outputs = layout.parts, layout.design.outputs
    solved: Replies = yield Ask(
        task=SOLVE,
        to=tuple(handed),
        each=handed,
        round=1,
        expect=Expect(
            arrays={
                "coefficients": ("<f8", (None, outputs)),
                "sizes": ("<i8", (parts,)),
                "penalties": ("<f8", (parts,)),
            }
        ),
    )
    answers = [payload.arrays for payload in solved.payloads()]
    _refuse_other_models(solved.sites, answers)
    sizes = [int(size) for size in answers[0]["sizes"]]
    if any(not 1 <= size <= layout.design.inputs for size in sizes):
        raise IntegrityError("the sites solved a model of another size")
    ends = np.cumsum([size + 1 for size in sizes])
    if ends[-1] != len(answers[0]["coefficients"]):
        raise IntegrityError("the sites solved a model of another shape")
    coefficients = np.split(answers[0]["coefficients"], ends[:-1])
    return PeersFit(coefficients, sizes, chosen_notes(layout, answers[0]["penalties"].tolist(), sizes), solved.sites)


def _refuse_other_models(sites: tuple[str, ...], answers: list[Mapping[str, Any]]) -> None:
    """Refuse models that differ by more than rounding: all sites had the same integers."""
    first = answers[0]
    for site, answer in zip(sites, answers, strict=True):
        alike = np.array_equal(answer["sizes"], first["sizes"]) and all(
            answer[name].shape == first[name].shape and np.allclose(answer[name], first[name], rtol=1e-6, atol=1e-9)
            for name in ("coefficients", "penalties")
        )
        if not alike:
            raise IntegrityError(
                f"sites {sites[0]!r} and {site!r} solved different models out of what should be the same statistics"
            )
