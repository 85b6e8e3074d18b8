"""The key-holder of a run: a party without rows that makes the key of a sum and opens its total, through its own door.

It is neither the hub nor a site, has a ledger chain of its own, and answers two tasks: `sum.keys` (a public key for one
sum, signed, with a sealed box for each site) and `sum.open` (the total over the sites the hub claims, once, if the
check holds for them). Sites look its keys up under its fixed name in their own rosters; a hub cannot appoint another
one. The scheme and the minimum of sites are those of its own approved plan and policy.

The encryption itself is imported when a key is first asked for: most runs encrypt nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.crypto.sums.key_book import KeyBook
from kohort.crypto.sums.scheme import KEY_HOLDER, MIN_SITES, SumContext, find_scheme
from kohort.crypto.sums.session import is_union
from kohort.errors import ConfigError, IntegrityError, RefusedError
from kohort.privacy.contract import Contract, Step
from kohort.privacy.guarantee import Public, SecureSum
from kohort.privacy.ledger.ledger import Ledger, canonical
from kohort.privacy.policy import Policy
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.site import Site, SiteTable
from kohort.protocol.state import TaskState
from kohort.protocol.task import Release, Request, Task, find_task
from kohort.protocol.wire import Payload
from kohort.purposes import Purpose
from kohort.rng import Streams
from kohort.tables.schema import Schema

if TYPE_CHECKING:
    from kohort.crypto.sums.encrypted import EncryptedSum
    from kohort.crypto.sums.key_holder import KeyHolder, Offered

__all__ = [
    "KEYS",
    "OPEN",
    "KeyHolderState",
    "SiteInboxes",
    "key_holder_contract",
    "needs_key_holder",
    "rounded_statement",
    "simulated_key_holder",
]


def needs_key_holder(approved: ApprovedPlan) -> bool:
    """Whether the plan's `method.secure.sum` is a scheme whose totals somebody else than the hub opens.

    Args:
        approved: The approved plan.

    Returns:
        True for encrypted sums.
    """
    return approved.secure is not None and find_scheme(approved.secure.sum).key_holder


def simulated_key_holder(
    *, schema: Schema, policy: Policy, streams: Streams, ledger: Ledger, sites: frozenset[str]
) -> Site:
    """The key-holder of a simulated run; it opens no total over fewer sites than the plan's policy allows.

    Args:
        schema: The run's schema.
        policy: The plan's policy.
        streams: The run's randomness; the key-holder gets a part of its own.
        ledger: Where its chain goes.
        sites: The names of the sites, none of which may be the key-holder's.

    Returns:
        A party without rows that answers two tasks.

    Raises:
        ConfigError: A site has the key-holder's name.
    """
    if KEY_HOLDER in sites:
        raise ConfigError(
            f"a site cannot be called {KEY_HOLDER!r}", hint="That is the party that opens sums; rename it"
        )
    holder = Site(
        name=KEY_HOLDER,
        table=SiteTable(pl.DataFrame(), 0, 0),
        schema=schema,
        policy=Policy(tasks=(KEYS.name, OPEN.name), min_sum_sites=max(MIN_SITES, policy.min_sum_sites)),
        streams=Streams(streams.bytes("site", KEY_HOLDER), streams.seed),
        ledger=ledger,
    )
    holder.contract_of = key_holder_contract
    return holder


def key_holder_contract(approved: ApprovedPlan) -> Contract:
    """What a plan may ask of the key-holder: a key and an opening for every secure sum of its contract.

    Args:
        approved: The approved plan.

    Returns:
        Two steps, answered once per sum; which sums there are is judged by `Contract.sum_step`.
    """
    rounds = sorted({number for step in approved.contract if step.sites for number in step.rounds})
    keys = Step(
        task=KEYS.name,
        says="a public key for one sum",
        claims=(_PUBLIC_KEY,),
        rounds=rounds,
        ordered=False,
        repeats=True,
    )
    opening = SecureSum(sites=MIN_SITES, threshold=MIN_SITES, colluders=1, opens="hub")
    opened = Step(
        task=OPEN.name, says="the total of one sum", claims=(opening,), rounds=rounds, ordered=False, repeats=True
    )
    return Contract.of([keys, opened])


_PUBLIC_KEY = Public(what="the public key of a sum")


@dataclass
class KeyHolderState(TaskState):
    """The key-holder's keys and open sums."""

    book: KeyBook = field(default_factory=KeyBook)
    """What was offered and opened; a deployed key-holder sets one that is kept in a file."""
    holder: KeyHolder | None = None


class SiteInboxes(Mapping[str, Payload]):
    """What each site gets of an offer, made when it is asked for: the offer with all boxes would be large.

    Args:
        request: What all sites get.
        offered: The key-holder's offer, and a box for each site.
        places: The place of each site in the sum.
    """

    def __init__(self, request: Payload, offered: Offered, places: Mapping[str, int]) -> None:
        self._request, self._offered, self._places = request, offered, places

    def __getitem__(self, site: str) -> Payload:
        inbox = self._offered.inbox(self._places[site])
        return replace(self._request, blobs={**self._request.blobs, "inbox": inbox})

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def _sum_of(site: Site, request: Request) -> tuple[KeyHolder, EncryptedSum, SumContext]:
    """The key-holder's state and which sum is meant. Its own plan says run and scheme; the hub says which sum of it."""
    from kohort.crypto.sums.encrypted import EncryptedSum
    from kohort.crypto.sums.key_holder import KeyHolder

    numbers, texts, secure = request.payload.metrics, request.payload.blobs, site.plan.secure
    site.plan.contract.sum_step(texts["task"].decode(errors="replace"), request.round)
    scheme = None if secure is None else find_scheme(secure.sum)
    if secure is None or not isinstance(scheme, EncryptedSum):
        raise RefusedError("the approved plan has no sum that needs a key-holder")
    context = site.plan.session.find(texts).context(
        texts["task"].decode(errors="replace"),
        request.round,
        length=int(numbers["length"]),
        modulus=int(numbers["modulus"]),
        bits=int(numbers["bits"]),
        view=texts["view"],
    )
    state = site.state(KeyHolderState)
    if state.holder is None:
        state.holder = KeyHolder(
            identity=site.identity,
            streams=site.streams,
            find_site=site.find_peer,
            min_sites=max(MIN_SITES, secure.colluders + 2, site.policy.min_sum_sites),
            book=state.book,
        )
    return state.holder, scheme, context


def _family(task: str) -> str:
    """What totals of a task belong to in the book of openings."""
    return find_task(task).family


def _refuse_split_groups(approved: ApprovedPlan, task: str, names: Sequence[str], context: SumContext) -> None:
    """Open no total with a part of a group, where totals of many rounds are compared."""
    if find_task(task).grouped(approved) and not is_union(names, approved.sum_groups(context.sites)):
        raise RefusedError(
            "a total would leave out some sites of a group, and the next one with them would show those",
            hint="Begin a new run when the missing sites answer again, or set a budget",
        )


def _keys(site: Site, request: Request) -> Release:
    state, scheme, context = _sum_of(site, request)
    offered = state.offer(
        scheme.ring, context, least=max(int(request.payload.metrics["least"]), site.plan.sum_quorum(len(context.sites)))
    )
    payload = Payload(blobs={"offer": offered.offer, "boxes": offered.boxes})
    return Release(payload=payload, guarantee=_PUBLIC_KEY, rows=0)


def _open(site: Site, request: Request) -> Release:
    """Open the claimed total. It goes to the hub in clear; whose vectors are in it was checked."""
    from kohort.crypto.sums.encrypted import split_ciphertexts, sum_claim

    state, scheme, context = _sum_of(site, request)
    claimed = request.payload.arrays["claimed"]
    if claimed.dtype != np.uint32 or claimed.ndim != 1 or (claimed >= len(context.sites)).any():
        raise IntegrityError("the list of sites in a sum cannot be right")
    names = [context.sites[index] for index in claimed.tolist()]
    task = request.payload.blobs["task"].decode(errors="replace")
    totals = split_ciphertexts(request.payload.blobs["totals"])
    _refuse_split_groups(site.plan, task, names, context)
    site.note_opening(_family(task), task, request.round, tuple(names))
    total = _with_rounded_cells(site, task, names, state.open(scheme.ring, context, names, totals))
    blobs = {}
    if find_task(task).signed:
        statement = rounded_statement(site.plan, task, request.round, names, total)
        blobs["signature"] = site.identity.sign(statement, purpose=Purpose.ROUNDED_TOTAL)
    claim = replace(sum_claim(scheme.ring, len(names), len(names)), opens=f"hub: the total over {len(names)} sites")
    return Release(payload=Payload(arrays={"total": total}, blobs=blobs), guarantee=claim, rows=0)


def rounded_statement(
    approved: ApprovedPlan, task: str, number: int, names: Sequence[str], total: NDArray[np.uint64]
) -> bytes:
    """What the key-holder's signature on a rounded total covers.

    Args:
        approved: The approved plan.
        task: The task whose contributions were added.
        number: The round of the sum.
        names: The sites in the total.
        total: Its numbers, after rounding.

    Returns:
        The bytes to sign: run, plan, task, round, sites and numbers.
    """
    facts = canonical([approved.run, approved.plan_hash, task, number, sorted(names)])
    return facts.encode() + hashlib.blake2b(total.astype("<u8").tobytes(), digest_size=32).digest()


def _with_rounded_cells(site: Site, task: str, names: Sequence[str], total: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The total with every count below the plan's minimum rounded at random to 0 or to the minimum.

    Such a count is of a pair of categories: those of single ones were merged before. The expected value is kept. The
    draw belongs to the sites and the place in the total, so that the same total, opened again, is rounded alike.
    """
    about = find_task(task).small_cells
    if about is None or not site.plan.keeps_book:  # under a budget, noise covers them
        return total
    unit, least = about(site.plan)
    values = total.view(np.int64).copy()
    counts, rest = np.divmod(np.abs(values), unit)
    small = (rest == 0) & (counts > 0) & (counts < least)
    binding = "\n".join((task, *sorted(names))).encode()
    key = hashlib.blake2b(binding, key=site.streams.bytes("ledger"), digest_size=16, person=b"kohort-pairs").digest()
    drawn = np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little"))).random(len(values))
    values[small] = np.where(drawn < counts / least, np.sign(values) * least * unit, 0)[small]
    return values.view(np.uint64)


KEYS = Task(name="sum.keys", one=_keys, public=False)
OPEN = Task(name="sum.open", one=_open, public=False)
