"""A site: one holder of private rows, with its policy, its ledger chain and its own randomness.

What a site does with a request is in `kohort.protocol.answers`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.crypto.sums.scheme import MIN_SITES
from kohort.errors import SiteError
from kohort.models.rows import Rows
from kohort.models.trainable import Trainable
from kohort.privacy.contract import Contract, Place
from kohort.privacy.guarantee import Aggregate
from kohort.privacy.ledger.ledger import Chain, Ledger
from kohort.privacy.openings import NO_BOOK, OpeningBook
from kohort.privacy.policy import Policy
from kohort.privacy.releases import ReleaseAccount
from kohort.protocol.faults import ByzantineSite
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.state import SiteStates, TaskState
from kohort.rng import Streams
from kohort.tables.consent import SHARE, consent_levels
from kohort.tables.encoder import Encoder
from kohort.tables.schema import Schema

T = TypeVar("T", bound=TaskState)

if TYPE_CHECKING:
    from kohort.crypto.sealed import Identity, PublicIdentity
    from kohort.models.base import Model

__all__ = ["Site", "SiteTable"]


@dataclass(frozen=True, eq=False)
class SiteTable:
    """A site's rows: `frame` from `start` to `stop`. Simulated sites own consecutive parts of one frame."""

    frame: pl.DataFrame
    start: int
    stop: int
    low: int | None = None
    """How many rows, at the beginning, have a low re-identification risk; None when risks were not assessed."""
    low_by_row: bool = False
    """Whether a row's risk depends on that row alone, so that no other row can change it."""

    @property
    def count(self) -> int:
        """How many rows."""
        return self.stop - self.start

    def rows(self) -> pl.DataFrame:
        """The site's own rows; no copy."""
        return self.frame.slice(self.start, self.count)

    def longer(self, rows: pl.DataFrame) -> SiteTable:
        """The table with more rows at its end; of such a table no risks are known."""
        whole = pl.concat([self.rows(), rows])
        return SiteTable(whole, 0, whole.height)


UNUSED = ("target", "drop")
"""Why rows of a table take no part in a run: no target, or another missing value where the plan drops such rows."""


@dataclass(frozen=True)
class UnusedRows:
    """Rows of a site's table that take no part in a run, for one reason, and the persons they are about."""

    rows: int = 0
    persons: int = 0


class Site:
    """One holder of private rows, with its policy, its ledger chain and its own randomness.

    Args:
        name: The site's name in the plan.
        table: Its rows.
        schema: The columns and their roles.
        policy: What may leave, and under which guarantees.
        streams: The site's own random streams.
        ledger: The ledger that holds the site's chain.
    """

    def __init__(
        self, *, name: str, table: SiteTable, schema: Schema, policy: Policy, streams: Streams, ledger: Ledger
    ) -> None:
        self.name = name
        self.table = self._all_rows = self._read_rows = table
        self.rows_appended = 0
        """Rows that were appended to its table since the run began, those that take no part included."""
        self.read_appended: Callable[[int], pl.DataFrame] | None = None
        """Reads the table again in a round of a run, and gives the rows that were appended since it was read last; None
        at a site whose table cannot be read again."""
        self.schema = schema
        self.policy = policy
        self.streams = streams
        self.row_key = streams.key("rows")
        self.states = SiteStates()
        """What tasks keep between requests, such as an optimizer's state. Never leaves."""
        self.training_rows: Rows | None = None
        """The encoded rows to train on; None until a task of the method sets them. They never leave."""
        self.approved: ApprovedPlan | None = None
        self.contract_of: Callable[[ApprovedPlan], Contract] = lambda approved: approved.contract
        """What this participant takes from an approved plan; a key-holder takes other steps than a site."""
        self.place = Place()
        """How far the site has come in its contract."""
        self.byzantine: ByzantineSite | None = None
        """Simulated dishonesty; None at an honest site."""
        self._encoder: Encoder | None = None
        self._network: Trainable | None = None
        self.find_peer: Callable[[str], PublicIdentity | None] = lambda _: None
        """The site's own roster: the public keys of a peer that its operator trusts, or None for an unknown name."""
        self.openings = OpeningBook()
        """The totals it took part in; a real site keeps the book in a file, over all runs."""
        self.releases = ReleaseAccount()
        """Whom it released in which classes; a real site keeps the account in a file, over all runs."""
        self.deployed = False
        """Whether it is a real site, with a process, keys and files of its own; a simulated one is in the hub's."""
        self.unused: Mapping[str, UnusedRows] = {}
        """Rows that a real site left out before the run, by a reason of `UNUSED`. Secure totals tell their number, and
        without a budget it follows from the row counts of two plans that treat missing values otherwise."""
        self.before: SiteTable | None = None
        """The table of a real site with these rows among the others: under a budget, the site declares them all."""
        self.write_model: Callable[[Model], None] = lambda _: None
        """Writes a model that the site has and the hub has not; a real site writes it into its own folder."""
        self.kept_model: Model | None = None
        """The last such model."""
        self.ledger = ledger
        self.chain: Chain = ledger.open_chain(
            name,
            secret=streams.bytes("ledger"),
            binding={
                "schema": schema.fingerprint(),
                "policy": policy.to_mapping(),
                "rows_public": "rows" in policy.public,
            },
        )
        self._aggregates: dict[int, Aggregate] = {}

    def keep_model(self, model: Model) -> None:
        """Keep a model that the site has and the hub has not. It never leaves.

        Args:
            model: The model.
        """
        self.kept_model = model
        self.write_model(model)

    def state(self, kind: type[T]) -> T:
        """The state that a group of tasks keeps at this site.

        Args:
            kind: The state's class.

        Returns:
            The site's one state of that class.
        """
        return self.states.get(kind)

    @property
    def plan(self) -> ApprovedPlan:
        """The plan the site approved.

        Raises:
            SiteError: It has not approved one yet.
        """
        if self.approved is None:
            raise SiteError(f"site {self.name!r} was asked before it approved a plan")
        return self.approved

    @property
    def contract(self) -> Contract:
        """Everything the approved plan may ask of this participant."""
        return self.contract_of(self.plan)

    def enrol(self, encoder: Encoder, network: Trainable) -> None:
        """Set the encoder and the network that tasks use from now on.

        Args:
            encoder: How rows become numbers.
            network: The model of the approved plan for that encoding.
        """
        self._encoder, self._network = encoder, network

    @property
    def encoder(self) -> Encoder:
        """How the site's rows become numbers.

        Raises:
            SiteError: It has not enrolled yet.
        """
        if self._encoder is None:
            raise SiteError(f"site {self.name!r} was asked before it enrolled")
        return self._encoder

    @property
    def network(self) -> Trainable:
        """The network, built at the site from the approved plan.

        Raises:
            SiteError: It has not enrolled yet.
        """
        if self._network is None:
            raise SiteError(f"site {self.name!r} was asked to train before it enrolled")
        return self._network

    @property
    def table(self) -> SiteTable:
        """The site's rows."""
        return self._table

    @table.setter
    def table(self, table: SiteTable) -> None:
        self._table = table
        self.count = table.count
        """How many rows the site holds; a plain attribute, because the door reads it in every round."""

    def append(self, rows: pl.DataFrame, inside: NDArray[np.bool_]) -> None:
        """Take rows that were appended to the table, after all others.

        The data version changes if one of them can be counted: one that takes part, and whose person agreed to share.

        Args:
            rows: The rows.
            inside: Which of them lie in the agreed domain; the others take no part.
        """
        kept = rows.filter(pl.Series(inside))
        self.rows_appended += rows.height
        self._read_rows = self._read_rows.longer(rows)
        self.table = self.table.longer(kept)
        column = self.schema.consent
        if kept.height if column is None else (consent_levels(kept[column]) == SHARE).any():
            self._all_rows = self._read_rows
            self.__dict__.pop("data_version", None)

    def may_leave(self) -> NDArray[np.bool_] | None:
        """Which rows of the table may leave the site by what their persons agreed to; None where nobody was asked."""
        column = self.schema.consent
        return None if column is None else consent_levels(self.table.rows()[column]) == SHARE

    @cached_property
    def identity(self) -> Identity:
        """The long-term keys by which peers know this site; a real site sets them from its key file."""
        from kohort.crypto.sealed import Identity

        return Identity.from_secret(self.name, self.streams.bytes("identity"))

    @cached_property
    def data_version(self) -> str:
        """Identifies the site's rows: equal for equal rows, and useless for guessing them. Empty without rows."""
        rows = self._all_rows.rows()  # those that take no part, too; hash_rows differs between versions of Polars
        text = rows.write_json() if rows.height else ""
        return text and hashlib.blake2b(text.encode(), key=self.streams.bytes("ledger"), digest_size=16).hexdigest()

    def note_opening(
        self,
        family: str,
        task: str,
        number: int,
        sites: tuple[str, ...],
        batches: Mapping[str, int] | None = None,
        announced: bytes = NO_BOOK,
    ) -> None:
        """Note an opened total in the book, before this participant's share of it leaves.

        Args:
            family: What the total belongs to; empty: nothing is noted.
            task: Whose contributions are added.
            number: The round of the sum.
            sites: The sites in the total.
            batches: How often the rows of other sites changed, where they said it.
            announced: The book that this participant announced in the session of the sum.

        Raises:
            RefusedError: Together with earlier totals it would show too few sites.
        """
        if not family or (approved := self.plan).secure is None or not approved.keeps_book:
            return
        colluders, name = approved.secure.colluders, f"{approved.run}:{approved.plan_hash}:{task}:{number}"
        few, version = max(MIN_SITES, colluders + 2), self.data_version
        self.openings.admit(
            family,
            name,
            sites,
            version=version,
            least=few,
            site=self.name,
            batches=batches,
            colluders=colluders,
            announced=announced,
        )

    def require_one_witness(self, family: str, *, key_holder: bool) -> None:
        """Refuse a sum at its first step, where earlier totals of the family were opened in the other way.

        Args:
            family: What the total belongs to; empty: nothing is noted.
            key_holder: Whether a key-holder opens it.

        Raises:
            RefusedError: Nobody would know of all totals of these rows.
        """
        if family and self.plan.secure is not None and self.plan.keeps_book:
            self.openings.require_one_witness(family, key_holder=key_holder)

    def aggregate(self, rows: int) -> Aggregate:
        """The claim of an update computed from `rows` rows. Cached: the same object in every round."""
        known = self._aggregates.get(rows)
        if known is None:
            known = self._aggregates[rows] = Aggregate(rows=rows)
        return known
