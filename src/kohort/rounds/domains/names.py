"""A secure count whose frequent keys become known by name.

Sites count keys (`kohort.rounds.counting`). The keys that at least `min_cell` persons share are proven to the sites,
and only then are their names added up: per key the number of sites that hold it, the name's bytes times that number,
and, for keys that a site tallies, its exact number of rows. All of it is in one checked sum, so every site can verify
the names, and that they belong to the proven keys.

Guarantee: a key of fewer than `min_cell` persons over all sites is in no message in clear. What is learned: of each
frequent key its name, how many sites hold it, its capped count, and its tally where it has one; of the others how many
there are, and their capped totals, without names. A hub with a colluding site can also look up the total of a key that
it can guess.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from kohort.crypto.counting import fingerprints
from kohort.crypto.sums.checked import CHECKS, proven_total, with_check
from kohort.crypto.sums.modular import P61, multiply
from kohort.crypto.sums.scheme import Integers, SumContext
from kohort.errors import IntegrityError, RefusedError
from kohort.privacy.contract import Step
from kohort.protocol.hub import Ask, Coordinator, RoundEnd
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.site import Site
from kohort.protocol.state import TaskState
from kohort.protocol.task import Request
from kohort.rounds.counting import KeyCounts, SecureCount
from kohort.rounds.summing import sum_steps, sum_task
from kohort.tables.domain import category_text, item_lists

__all__ = ["LIMBS", "NAME_BYTES", "WIDTH", "NamedCount", "NamedKeys", "by_person", "value_counts", "values_of"]

_LIMB, LIMBS = 7, 18
NAME_BYTES = _LIMB * LIMBS - 1
"""Longest key; a longer one is treated as a rare one."""
WIDTH = 1 + LIMBS + 1
"""Numbers per key: its holders, its name times that number, its tally."""


@dataclass
class NamesState(TaskState):
    """A site's part in sums of names, by the count's name."""

    summed: dict[str, tuple[bytes, frozenset[str]]] = field(default_factory=dict)
    """The transcript of the sum of names, and the sites in it."""


@dataclass(frozen=True, eq=False)
class NamedKeys:
    """The frequent keys, as the hub reads them.

    Attributes:
        keys: Their names.
        holders: How many sites hold each.
        tallies: The rows of each over all sites; 0 for keys without a tally.
        sites: The sites that were counted.
        inputs: What proves the names to the sites in a later request.
    """

    keys: tuple[bytes, ...] = ()
    holders: tuple[int, ...] = ()
    tallies: tuple[int, ...] = ()
    sites: tuple[str, ...] = ()
    inputs: Mapping[str, bytes] = field(default_factory=dict)


class NamedCount:
    """The tasks and the sub-plan of a count that names its frequent keys.

    Args:
        name: The prefix of its tasks.
        counts_of: A site's own keys and counts.
        tallies_of: A site's exact rows for keys whose total is told; no key has one by default.
    """

    def __init__(
        self,
        name: str,
        *,
        counts_of: Callable[[Site], KeyCounts],
        tallies_of: Callable[[Site], Mapping[bytes, int]] = lambda _: {},
    ) -> None:
        self._name = name
        self._counts_of, self._tallies_of = counts_of, tallies_of
        self.count = SecureCount(f"{name}.count", counts_of=counts_of, scheme=ApprovedPlan.sum_scheme)
        self.names = sum_task(
            f"{name}.names",
            self._add,
            scheme=ApprovedPlan.sum_scheme,
            modulus=P61,
            family="rows",
            over=self.count.same_sites,
        )

    def steps(self, approved: ApprovedPlan, *, counted: str, named: str) -> list[Step]:
        """What it asks of a site.

        Args:
            approved: The approved plan.
            counted: What is counted, for people.
            named: What becomes known by name, for people.

        Returns:
            The steps.
        """
        count = self.count.steps(approved, says=counted, stages=range(1))
        return [*count, *sum_steps(approved, self.names, says=named)]

    def run(self, hub: Coordinator) -> Generator[Ask | RoundEnd, Any, NamedKeys]:
        """Count, prove the frequent keys, and add up their names.

        Args:
            hub: The coordinator.

        Returns:
            The frequent keys; none where no key is frequent.

        Raises:
            IntegrityError: Somebody sent what no honest party sends.
        """
        counted = yield from self.count.run(hub, threshold=hub.approved.min_cell)
        if not len(counted.f):
            return NamedKeys(sites=counted.sites)
        proof = {"totals": counted.totals.astype("<u8").tobytes()}
        length = len(counted.f) * WIDTH + CHECKS
        total = yield from self.count.sum_again(hub, self.names, counted.sites, length, 0, proof)
        rows = total.values[:-CHECKS].reshape(-1, WIDTH)
        return NamedKeys(
            keys=tuple(names_in(rows.reshape(-1), len(counted.sites))),
            holders=tuple(rows[:, 0].tolist()),
            tallies=tuple(rows[:, -1].tolist()),
            sites=counted.sites,
            inputs={**proof, "names": total.values.astype("<u8").tobytes()},
        )

    def verified(self, site: Site, round_number: int, inputs: Mapping[str, bytes]) -> list[bytes]:
        """The announced names, if they are those of the proven keys.

        Args:
            site: The site.
            round_number: The round of the request.
            inputs: `NamedKeys.inputs`, as the hub announces them.

        Returns:
            The names.

        Raises:
            RefusedError: The site took no part.
            IntegrityError: A name was changed, or is not that of a proven key.
        """
        totals, announced = (np.frombuffer(inputs.get(name, b""), dtype="<u8") for name in ("totals", "names"))
        proven = self.count.proven(site, round_number, totals)
        if proven is None:
            raise RefusedError(f"site {site.name!r} got the result of a count it took no part in")
        transcript, sites = self.summed(site)
        secret = self.count.secret_of(site)
        names = names_in(proven_total(secret, transcript, sorted(sites), announced), len(sites))
        prints = fingerprints(secret, names)
        if (prints.f != proven.f).any() or (prints.h != proven.h).any():
            raise IntegrityError("a named value is not frequent")
        return names

    def summed(self, site: Site) -> tuple[bytes, frozenset[str]]:
        """The transcript of the sum of names, and the sites in it.

        Args:
            site: The site.

        Raises:
            RefusedError: The site took no part in it.
        """
        known = site.state(NamesState).summed.get(self._name)
        if known is None:
            raise RefusedError(f"site {site.name!r} got the result of a count it took no part in")
        return known

    def _add(
        self, site: Site, request: Request, context: SumContext, inputs: Mapping[str, bytes]
    ) -> tuple[Integers, int]:
        """The names of the proven keys that this site holds; nothing before they are proven."""
        proven = self.count.proven(site, request.round, np.frombuffer(inputs.get("totals", b""), dtype="<u8"))
        if proven is None:
            raise RefusedError(f"site {site.name!r} was asked for names of values that were not proven to be frequent")
        if context.length != len(proven.f) * WIDTH + CHECKS:
            raise IntegrityError("the names of a domain are a sum of another length")
        mine, counts, tallies = self.count.prints(site), self._counts_of(site), self._tallies_of(site)
        own = dict(zip(zip(mine.f.tolist(), mine.h.tolist(), strict=True), counts.keys, strict=True))
        vector = np.zeros((len(proven.f), WIDTH), dtype=np.uint64)
        wanted = enumerate(zip(proven.f.tolist(), proven.h.tolist(), strict=True))
        held = {place: own[print_pair] for place, print_pair in wanted if print_pair in own}
        vector[list(held), 0] = 1
        vector[list(held), 1:-1] = limbs(list(held.values()))
        vector[list(held), -1] = [tallies.get(key, 0) for key in held.values()]
        state = site.state(NamesState)
        known = state.summed.get(self._name)
        if known is not None and known[0] != context.transcript:
            raise IntegrityError("the names of a domain were asked for before, in another way")
        state.summed[self._name] = (context.transcript, self.count.same_sites(site, request, inputs))
        secret = self.count.secret_of(site)
        return with_check(secret, context.transcript, site.name, vector.reshape(-1)), counts.rows


def limbs(keys: Sequence[bytes]) -> Integers:
    """Each key as a row of numbers of 56 bits: its length, its bytes, zeros."""
    padded = b"".join((bytes([len(key)]) + key).ljust(_LIMB * LIMBS, b"\0") for key in keys)
    words = np.zeros((len(keys), LIMBS, 8), dtype=np.uint8)
    words[:, :, :_LIMB] = np.frombuffer(padded, dtype=np.uint8).reshape(len(keys), LIMBS, _LIMB)
    return words.view("<u8").reshape(len(keys), LIMBS).astype(np.uint64, copy=False)


def names_in(total: Integers, sites: int) -> list[bytes]:
    """The keys that a total of names spells.

    Args:
        total: `WIDTH` numbers per key.
        sites: How many sites are in it.

    Returns:
        The keys.

    Raises:
        IntegrityError: It spells none: a site sent something else.
    """
    table = total.reshape(-1, WIDTH)
    holders = table[:, 0]
    if ((holders < 1) | (holders > sites)).any():
        raise IntegrityError("the names of a domain cannot be read: a site sent something else")
    inverses = {count: pow(count, -1, P61) for count in set(holders.tolist())}
    shares = np.array([inverses[count] for count in holders.tolist()], dtype=np.uint64)
    numbers = multiply(table[:, 1:-1] % np.uint64(P61), shares[:, None])
    if (numbers >= 1 << (8 * _LIMB)).any():
        raise IntegrityError("the names of a domain cannot be read: two sites spell one differently")
    words = numbers.astype("<u8").view(np.uint8).reshape(len(table), LIMBS, 8)
    return [padded[1 : 1 + padded[0]] for padded in map(bytes, words[:, :, :_LIMB].reshape(len(table), -1))]


def values_of(site: Site, name: str) -> pl.DataFrame:
    """The known values of one column of a site, each with a number for the person.

    Args:
        site: The site.
        name: The column.

    Returns:
        The columns `value` and `person`.
    """
    frame = site.table.rows()
    person = pl.Series("person", np.arange(frame.height))
    if site.schema.identifiers:
        person = frame[site.schema.identifiers[0]].rank("dense").alias("person")
    return pl.DataFrame([frame[name].alias("value"), person]).drop_nulls()


def value_counts(values: pl.DataFrame, *, items: bool) -> Iterator[tuple[str, int]]:
    """The texts of a column's values, or items, each with the persons that have it.

    Args:
        values: What `values_of` gives.
        items: Whether a value is a set of items.

    Yields:
        A text and a number of persons.
    """
    column = values["value"]
    found = values.with_columns((item_lists(column) if items else category_text(column)).alias("value"))
    if items:
        found = found.explode("value").drop_nulls()
    for text, persons in by_person(found, "value"):
        yield str(text), persons


def by_person(frame: pl.DataFrame, *keys: str) -> Iterator[tuple[Any, ...]]:
    """The distinct keys of a table, each with the number of its persons.

    Args:
        frame: Rows with a column `person` and the key columns. Several rows of a person count once per key.
        keys: The key columns.

    Yields:
        The values of the key columns, and then the number of persons; in no fixed order.
    """
    yield from frame.group_by(*keys).agg(pl.col("person").n_unique()).select(*keys, "person").iter_rows()
