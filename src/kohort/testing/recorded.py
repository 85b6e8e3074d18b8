"""An honest run of a plan through messages and site servers, recorded so that a lying hub can begin as it does."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import polars as pl

from kohort.crypto.sums.scheme import KEY_HOLDER
from kohort.privacy.contract import Contract
from kohort.protocol.enrolment import DESCRIBE
from kohort.protocol.key_holder import key_holder_contract
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.rng import Streams
from kohort.runs.config import Plan
from kohort.runs.run import run
from kohort.runs.simulation import Population
from kohort.testing.canary import CANARY
from kohort.testing.site_servers import DirectCarrier, ServedSites
from kohort.transport.messages import (
    ReplyMessage,
    RequestMessage,
    join_messages,
    read_reply,
    read_request,
    split_messages,
    write_reply,
)
from kohort.transport.remote_engine import Carrier
from kohort.transport.site_server import SiteServer

__all__ = ["CODES", "VICTIM", "Exchange", "HonestRun", "RecordedSites", "few_rows", "record"]

FEW_ROWS = {"a-first": 26, "b-victim": 40, "c-third": 34, "d-fourth": 30}
"""Rows per site."""
_SEED = 3
VICTIM = "b-victim"
"""The site with the canary row, which is lied to."""


CODES = ("042", "250.01", "250.02", "250.40", "401.9", "410.1", "428.0")
"""The items of rows that have any; the victim's first row alone has the first."""
_CONSENTS = ("train", "none", "share", "share", "share")


def few_rows(
    *, seed: int = _SEED, categories: bool = True, items: bool = False, consent: bool = False
) -> dict[str, pl.DataFrame]:
    """One small table per site. The victim's first row has a value that occurs nowhere else.

    Args:
        seed: Another seed makes other rows, as many, without the canary.
        categories: Whether the victim has a row of every category.
        items: Whether there is a column of item sets, `codes`.
        consent: Whether a column, `agreed`, says what each row allows. The victim's first row may train and not leave,
            the second takes no part and has the same value.

    Returns:
        The tables by site name.
    """
    random = np.random.default_rng(seed)
    made = {}
    for name, rows in FEW_ROWS.items():
        age = random.integers(20, 80, rows)
        dose = random.normal(4.0, 1.5, rows).round(2)
        ward = random.choice(["north", "south", "west"], rows)
        if name == VICTIM:
            dose[0] = CANARY if seed == _SEED else 0.0
            ward[0] = "north" if categories else "south"
            ward[1:] = np.where(ward[1:] == "north", "west", ward[1:])
        outcome = np.where(random.random(rows) < 1 / (1 + np.exp(-(age - 50) / 12)), "ill", "well")
        outcome[:2] = ["ill", "well"]
        agreed = np.resize(_CONSENTS, rows)
        if consent and name == VICTIM:
            dose[1] = dose[0]
        made[name] = pl.DataFrame({"age": age, "dose": dose, "ward": ward, "outcome": outcome}).with_columns(
            *([_item_sets(name, rows, seed)] if items else []), *([pl.Series("agreed", agreed)] if consent else [])
        )
    return made


def _item_sets(site: str, rows: int, seed: int) -> pl.Series:
    """Up to three items per row, of random streams of their own: tables without items stay as they are."""
    random = np.random.default_rng([seed, *FEW_ROWS.values(), [*FEW_ROWS].index(site)])
    sets = [sorted(random.choice(CODES[1:], random.integers(0, 4), replace=False).tolist()) for _ in range(rows)]
    if site == VICTIM and seed == _SEED:
        sets[0] = [CODES[0], CODES[1]]
    return pl.Series("codes", sets, dtype=pl.List(pl.String))


@dataclass(frozen=True)
class Exchange:
    """One request of the honest run and the reply to it."""

    site: str
    asked: RequestMessage
    reply: ReplyMessage


@dataclass
class _Recorder:
    """Carries messages, lets a party say something else than its server does, and writes down what was said."""

    carrier: Carrier
    served: RecordedSites
    place: Counter[str] = field(default_factory=Counter)
    """How many replies each party gave."""

    def carry(self, messages: Mapping[str, bytes], *, deadline: float) -> tuple[dict[str, bytes], dict[str, str]]:
        replies, missing = self.carrier.carry(messages, deadline=deadline)
        return {
            name: join_messages(list(self._said(name, messages[name], replies[name]))) for name in messages
        }, missing

    def _said(self, name: str, asked: bytes, replies: bytes) -> Iterator[bytes]:
        assert self.served.hub is not None  # noqa: S101 - set before a message is written
        for question, answer in zip(split_messages(asked), split_messages(replies), strict=True):
            # Receipts and heads belong to one ledger; a fresh site's goes on from its own beginning.
            read = replace(read_request(question, hub=self.served.hub.public), receipts=b"", heads=b"")
            reply = read_reply(answer, site=self.served.identities[name].public)
            said = self.served.alter(name, self.place[name], reply)
            self.place[name] += 1
            self.served.exchanges.append(Exchange(name, read, said))
            yield answer if said is reply else write_reply(said, self.served.identities[name])


@dataclass
class RecordedSites(ServedSites):
    """Site servers whose exchanges with the hub are written down."""

    exchanges: list[Exchange] = field(default_factory=list)
    alter: Callable[[str, int, ReplyMessage], ReplyMessage] = lambda _, __, reply: reply
    """(party, how many replies it gave before, its reply) -> what it says instead, signed by it."""
    population: Population | None = None
    """The rows; of a finished run with the same plan and seed, so that they need not be read again."""
    streams: Streams | None = None

    def populate(self, plan: Plan, streams: Streams) -> Population:
        """The rows of a simulation; see `ServedSites.populate`."""
        self.streams, self.population = streams, self.population or super().populate(plan, streams)
        return self.population

    def carrier(self) -> Carrier:
        """What writes messages down on their way to the servers."""
        return _Recorder(DirectCarrier(self.site_servers), self)


class Named(Protocol):
    """What can be chosen by its name."""

    @property
    def name(self) -> str:
        """The name."""
        ...


N = TypeVar("N", bound=Named)


class HonestRun:
    """An honest run of a plan: what each site was asked and said, and how to make its sites anew.

    Args:
        name: What to call it in messages.
        plan: The plan.
        served: The finished run's sites.
        other: The rows of the twins: as many per site, with other values.
        share: The share of all lies that is tried, chosen by a hash of each lie's name.
        seed: The run's seed.
    """

    def __init__(
        self, name: str, plan: Plan, served: RecordedSites, other: Population, share: float, seed: int
    ) -> None:
        self.name, self.plan, self.served, self.share, self.seed = name, plan, served, share, seed
        self._other = other

    @property
    def approved(self) -> ApprovedPlan:
        """What was approved."""
        assert self.served.approved is not None  # noqa: S101 - the run is over
        return self.served.approved

    @property
    def parties(self) -> tuple[str, ...]:
        """Who is lied to: one site, and the key-holder where there is one."""
        return (VICTIM, *([KEY_HOLDER] if KEY_HOLDER in self.served.makers else []))

    def script(self, site: str) -> list[Exchange]:
        """The honest exchanges of one site, in order.

        Args:
            site: The site's name.

        Returns:
            Requests and replies.
        """
        return [exchange for exchange in self.served.exchanges if exchange.site == site]

    def contract(self, site: str) -> Contract:
        """What the plan may ask of a participant.

        Args:
            site: A site's name, or the key-holder's.

        Returns:
            The contract.
        """
        return key_holder_contract(self.approved) if site == KEY_HOLDER else self.approved.contract

    def serve(self, site: str, *, other_rows: bool = False, folder: Path | None = None) -> SiteServer:
        """A fresh server of a site.

        Args:
            site: The site's name.
            other_rows: Whether it gets other row values than in the honest run.
            folder: Where it keeps its files; None keeps them in memory.

        Returns:
            The server; nothing was asked of it yet.
        """
        make = self.served.makers[site]
        return make(folder=folder, population=self._other) if other_rows else make(folder=folder)

    def sampled(self, found: Iterable[N], *place: object, weight: float = 1.0) -> Iterator[N]:
        """The share of lies that is tried.

        Args:
            found: All of them.
            place: Where they are told: the same lie at another place is another one.
            weight: How many times the run's share is tried of this family.

        Yields:
            Those chosen; the same ones every time.
        """
        prefix, limit = f"{self.name}|{place}|", weight * self.share * 2**64
        for lie in found:
            drawn = hashlib.blake2b((prefix + lie.name).encode(), digest_size=8).digest()
            if int.from_bytes(drawn, "little") < limit:
                yield lie


def record(plan: Plan, *, name: str = "", share: float = 1.0, seed: int = 5) -> HonestRun:
    """Carry a plan out honestly, through messages and site servers, and record it.

    Args:
        plan: For example from `plan_of`.
        name: What to call it in messages; by default the method's name.
        share: The share of all lies that is to be tried later.
        seed: The run's seed.

    Returns:
        The recorded run.

    Raises:
        KohortError: The honest run failed.
    """
    columns = {"items": bool(plan.data.items), "consent": plan.data.consent is not None}
    served = RecordedSites(tables=few_rows(**columns))
    run(plan, seed=seed, backend=served)
    assert served.streams is not None  # noqa: S101 - the run is over
    assert served.approved is not None  # noqa: S101 - the run is over
    # A plan that learns domains in clear tells which categories occur; otherwise nothing may depend on that.
    described = any(step.task == DESCRIBE.name for step in served.approved.contract)
    others = few_rows(seed=_SEED + 1, categories=described, **columns)
    other = ServedSites(tables=others).populate(plan, Streams.choose(seed, secure=False))
    return HonestRun(name or plan.method, plan, served, other, share, seed)
