"""A lying hub, alone or with one site, against encrypted sums: it gets totals of what the plan says, or nothing.

Sites and key-holder are those of a simulated run, unmodified, and are asked through requests, doors and ledgers. The
hub makes every request itself, under a contract that allows it. What it does to ciphertexts is stronger than what
encryption allows: it may multiply each slot of a ciphertext by a number of its own (`Slots`), where a real one is
limited to combinations with little noise.

Every attack stands beside a counterpart in which one check is patched away, and which then gets what it is after.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.contracts import opened

from kohort.crypto.identity.parties import PublicIdentity
from kohort.crypto.sums import he, key_holder
from kohort.crypto.sums.checks import SiteSecret, weights_of
from kohort.crypto.sums.encrypted import EncryptedSum, join_ciphertexts, split_ciphertexts
from kohort.crypto.sums.he import SEED, CiphertextSum, PublicKey, Ring
from kohort.crypto.sums.key_book import KeyBook
from kohort.crypto.sums.key_holder import KeyHolder, Offered, read_inbox
from kohort.crypto.sums.packing import Packing
from kohort.crypto.sums.scheme import KEY_HOLDER, Integers, SumContext, find_scheme
from kohort.crypto.sums.session import SiteSession, SumSession
from kohort.privacy.ledger.ledger import Ledger
from kohort.privacy.ledger.receipts import Receipts
from kohort.privacy.ledger.signing import Signer
from kohort.protocol.answers import answer
from kohort.protocol.engine import LocalEngine
from kohort.protocol.key_holder import KEYS, OPEN
from kohort.protocol.site import Site
from kohort.protocol.task import Request
from kohort.protocol.wire import Payload, decode
from kohort.rng import Streams
from kohort.rounds.summing import sum_task, trust_of
from kohort.runs.agreed import approved_plan_for
from kohort.runs.backend import RunContext, Simulation
from kohort.testing import plan_of, tables

LENGTH = 6
VICTIM, COLLUDER = 0, 1
SCHEMES = ["bfv", "ckks"]


def numbers_of(site: Site, round_number: int = 0) -> NDArray[np.int64]:
    """What a site counts: rows, men and women, twice; rows = men + women is what anybody would guess of them."""
    men, women = site.streams.generator("numbers", round_number).integers(1, 200, 2).tolist()
    return np.array([men + women, men, women] * 2, dtype=np.int64)


def contribute(site: Site, request: Request, context: SumContext, inputs: Mapping[str, bytes]) -> tuple[Integers, int]:
    """Numbers times the public weight, and noise of the request where that asks for it."""
    del context
    noise = Streams(bytes.fromhex(request.digest), None).generator("noise").integers(-50, 50, LENGTH)
    weight = int.from_bytes(inputs["weight"], "little")
    noisy = b"noise" in inputs["weight"]
    made = numbers_of(site, request.round) + noise if noisy else numbers_of(site, request.round) * weight
    return made.view(np.uint64), site.count


TASK = sum_task(
    "test.attacked-sum", contribute, scheme=lambda approved: str(approved.secure and approved.secure.sum), bits=30
)


class LyingHub:
    """A hub that asks whom it likes for what it likes, and knows what every honest party tells it."""

    def __init__(self, word: str, *, own: Any = None, policy: Any = None) -> None:
        plan = plan_of("fedavg", own={"secure": {"sum": word, **(own or {})}}, policy=policy)
        streams, backend = Streams.seeded(5), Simulation(tables=tables())
        population = backend.populate(plan, streams)
        ready = RunContext(
            plan=plan,
            population=population,
            approved=opened(approved_plan_for(plan, schema=population.schema, run="run", sites=population.names)),
            streams=streams,
            ledger=Ledger(signer=Signer.from_secret(streams.bytes("s")), run="run"),
            receipts=Receipts(signer=Signer.from_secret(streams.bytes("h"))),
        )
        self.engine: LocalEngine = backend.engine(ready)
        self.engine.approve(lambda _: ())
        self.sites = list(self.engine.sites.values())
        self.session: SumSession = self.engine.approved.session
        scheme = find_scheme(word)
        assert isinstance(scheme, EncryptedSum)
        self.scheme = scheme
        self.ring: Ring = Packing.of(scheme.ring, self.context()).ring

    def context(self, **changes: Any) -> SumContext:
        session = changes.pop("session", self.session)
        view = self.engine.inputs.view({"weight": changes.pop("weight", b"\1")})
        return TASK.context(session, changes.pop("round_number", 0), LENGTH, changes.pop("view", view))

    def ask(self, party: Site, task: str, payload: Payload, *, round_number: int = 0, attempt: int = 0) -> Payload:
        """A party's answer; whatever else it says ends the attack."""
        request = Request(
            run=self.engine.approved.run,
            plan_hash=self.engine.approved.plan_hash,
            task=task,
            round=round_number,
            attempt=attempt,
            nonce="00" * 12,
            payload=payload,
        )
        answers = answer((party,), request, many=False)
        for refused in (*answers.failures, *answers.refusals):
            raise Refused(refused.reason)
        (data,) = answers.each()
        return decode(bytes(data))

    def _which(self, about: SumContext, session: SumSession) -> dict[str, Any]:
        return {
            "metrics": {"length": about.length, "modulus": about.modulus, "bits": about.bits, "least": 0},
            "blobs": {"task": TASK.name.encode(), "view": about.view, **session.fields},
        }

    @property
    def holder(self) -> Site:
        return self.engine.parties[KEY_HOLDER]

    def keys(self, *, session: SumSession | None = None, attempt: int = 0, **changes: Any) -> Offered:
        members = session or self.session
        about = self.context(session=members, **changes)
        payload = Payload(**self._which(about, members))
        made = self.ask(self.holder, KEYS.name, payload, round_number=about.round, attempt=attempt)
        return Offered(made.blobs["offer"], made.blobs["boxes"])

    def ciphertext(
        self,
        place: int,
        offered: Offered,
        *,
        session: SumSession | None = None,
        weight: bytes = b"\1",
        round_number: int = 0,
        attempt: int = 0,
        box: int | None = None,
    ) -> bytes:
        """One site's contribution; it has one ciphertext."""
        members, site = session or self.session, self.sites[place]
        inbox = offered.inbox(members.index[site.name] if box is None else box)
        blobs = {"inbox": inbox, "weight": weight, **members.fields}
        payload = Payload(metrics={"step": 0, "length": LENGTH}, blobs=blobs)
        made = self.ask(site, TASK.name, payload, round_number=round_number, attempt=attempt)
        (only,) = split_ciphertexts(made.blobs["answer"])
        return only

    def total(self, ciphertexts: Sequence[bytes]) -> bytes:
        added = CiphertextSum(self.ring)
        for item in ciphertexts:
            added.add(item)
        return added.ciphertext()

    def open(
        self,
        total: bytes,
        claimed: Sequence[int],
        *,
        session: SumSession | None = None,
        attempt: int = 0,
        **changes: Any,
    ) -> NDArray[np.int64]:
        members = session or self.session
        about = self.context(session=members, **changes)
        which = self._which(about, members)
        which["blobs"]["totals"] = join_ciphertexts([total])
        payload = Payload(arrays={"claimed": np.array(claimed, dtype=np.uint32)}, **which)
        opened = self.ask(self.holder, OPEN.name, payload, round_number=about.round, attempt=attempt)
        return opened.arrays["total"].view(np.int64)

    @property
    def everybody(self) -> list[int]:
        return list(range(len(self.sites)))

    def encrypt(self, slots: NDArray[np.int64], offered: Offered) -> bytes:
        """Slots of the hub's own, under the sum's public key."""
        public = offered.offer[64 + 4 + 2 + 32 :]  # after signature, minimum and exchange key
        return PublicKey(self.ring, public).encrypt(slots, sites=len(self.sites), seed=bytes(SEED))


class Refused(Exception):  # noqa: N818 - what an attack ends with
    """An honest party did not give what the hub asked for."""


Slots = list[NDArray[np.int64]]


@pytest.fixture
def slots(monkeypatch: pytest.MonkeyPatch) -> Slots:
    """The slots of every ciphertext that a site makes, in order: for a hub that could compute with single slots."""
    seen: Slots = []
    real = PublicKey.encrypt

    def encrypt(self: PublicKey, own: NDArray[np.int64], **options: Any) -> bytes:
        seen.append(own.copy())
        return real(self, own, **options)

    monkeypatch.setattr(PublicKey, "encrypt", encrypt)
    return seen


def combined(hub: LyingHub, slots: Slots, multipliers: Sequence[Any]) -> NDArray[np.int64]:
    """Each site's slots times numbers of the hub's choice, added as the ring adds."""
    parts = [own.astype(object) * factor for own, factor in zip(slots, multipliers, strict=True)]
    total = sum(parts)
    if hub.ring.plain_modulus:
        total = (total + hub.ring.plain_modulus // 2) % hub.ring.plain_modulus - hub.ring.plain_modulus // 2
    return np.asarray(total.astype(np.int64))


def unpadded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SiteSecret, "pads", lambda self: np.zeros(self.packing.shape, dtype=np.int64))


def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_holder, "_holds", lambda *_: True)


def without_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SiteSecret, "offsets", lambda self: [0] * self.packing.checks)


def without_book(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeyBook, "offer", lambda *_: None)
    monkeypatch.setattr(KeyBook, "open", lambda *_: None)


def any_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key-holder neither counts the claimed sites nor looks for repeated ones."""
    monkeypatch.setattr(
        KeyHolder, "_rostered", lambda self, _, claimed, least: [self.find_site(name) for name in claimed]
    )


def many_sums_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    real = SiteSession.begin

    def begin(self: SiteSession, *args: Any, **options: Any) -> Any:
        self.begun.clear()
        return real(self, *args, **options)

    monkeypatch.setattr(SiteSession, "begin", begin)


def transcript_without(monkeypatch: pytest.MonkeyPatch, **blank: Any) -> None:
    """Sums that differ in these parts alone have the same transcript."""
    real = SumContext.__dict__["transcript"].func
    monkeypatch.setattr(SumContext, "transcript", property(lambda self: real(replace(self, **blank))))


Patch = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("word", SCHEMES)
def test_an_honest_hub_gets_the_total(word: str) -> None:
    hub = LyingHub(word)
    offered = hub.keys()
    total = hub.total([hub.ciphertext(place, offered) for place in hub.everybody])
    assert np.array_equal(hub.open(total, hub.everybody), sum(numbers_of(site) for site in hub.sites))


@pytest.mark.parametrize(
    ("word", "patches", "outcome"),
    [
        ("bfv", [], "refused"),
        ("bfv", [unpadded], "refused"),
        ("bfv", [unchecked], "noise"),
        ("bfv", [unpadded, unchecked], "exact"),
        ("ckks", [], "refused"),
        ("ckks", [unchecked], "exact"),
    ],
)
def test_zeroed_payload_slots_with_the_check_kept(
    word: str, patches: list[Patch], outcome: str, slots: Slots, monkeypatch: pytest.MonkeyPatch
) -> None:
    for patch in patches:
        patch(monkeypatch)
    hub = LyingHub(word)
    offered = hub.keys()
    for place in hub.everybody:
        hub.ciphertext(place, offered)
    kept = np.zeros(hub.ring.slots, dtype=np.int64)
    kept[-len(hub.ring.check_moduli) :] = 1  # of all but the victim, the check alone
    forged = combined(hub, slots, [kept if place != VICTIM else 1 for place in hub.everybody])
    attack = lambda: hub.open(hub.encrypt(forged, offered), hub.everybody)  # noqa: E731
    _expect(attack, outcome, numbers_of(hub.sites[VICTIM]))


def _expect(attack: Callable[[], NDArray[np.int64]], outcome: str, wanted: NDArray[np.int64]) -> None:
    if outcome == "refused":
        with pytest.raises(Refused, match="the check of a total does not hold"):
            attack()
        return
    if outcome == "noise":  # uniform slots, some of them out of the range of a total
        with pytest.raises(Refused, match="out of range"):
            attack()
        return
    assert np.array_equal(attack(), wanted)


@pytest.mark.parametrize(
    ("word", "patches", "outcome"),
    [
        ("bfv", [], "refused"),
        ("bfv", [without_offsets], "refused"),
        ("bfv", [unpadded], "refused"),
        ("bfv", [unpadded, without_offsets], "exact"),
        ("ckks", [], "refused"),
        ("ckks", [without_offsets], "exact"),
    ],
)
def test_payload_and_check_of_all_but_one_zeroed(
    word: str, patches: list[Patch], outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for patch in patches:
        patch(monkeypatch)
    hub = LyingHub(word)
    offered = hub.keys()
    alone = hub.ciphertext(VICTIM, offered)  # the sum of it and of nothing, which is linear too
    _expect(lambda: hub.open(alone, hub.everybody), outcome, numbers_of(hub.sites[VICTIM]))


@pytest.mark.parametrize("word", SCHEMES)
@pytest.mark.parametrize("multiple", [1, 2, -1])
def test_a_multiple_of_a_victims_ciphertext(word: str, multiple: int) -> None:
    hub = LyingHub(word)
    offered = hub.keys()
    parts = [hub.ciphertext(place, offered) for place in hub.everybody]
    again = parts[VICTIM : VICTIM + 1] * multiple if multiple > 0 else []
    total = hub.total([*again, *(parts if multiple > 0 else parts[1:])])
    with pytest.raises(Refused, match="the check of a total"):
        hub.open(total, hub.everybody)


@pytest.mark.parametrize("primes_differ", [True, False])
def test_a_multiple_that_one_prime_of_the_check_divides(
    primes_differ: bool, slots: Slots, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Slots of ckks add as integers, so a check modulo one prime would not see its multiples.
    prime = he.CKKS.check_moduli[0]
    if not primes_differ:
        monkeypatch.setattr(he, "_CHECK_PRIMES", (prime,) * 5)
    hub = LyingHub("ckks")
    offered = hub.keys()
    for place in hub.everybody:
        hub.ciphertext(place, offered)
    multiplier = np.ones(hub.ring.slots, dtype=object)
    multiplier[:LENGTH] += prime
    forged = combined(hub, slots, [multiplier if place == VICTIM else 1 for place in hub.everybody])
    if primes_differ:
        with pytest.raises(Refused, match="the check of a total"):
            hub.open(hub.encrypt(forged, offered), hub.everybody)
        return
    opened = hub.open(hub.encrypt(forged, offered), hub.everybody)
    assert np.array_equal(opened // prime, numbers_of(hub.sites[VICTIM]))


def _null_space(rows: list[list[int]], prime: int) -> list[int]:
    """A vector that all rows map to zero modulo a prime."""
    width, rows, pivots = len(rows[0]), [list(row) for row in rows], []
    for column in range(width):
        at = next((at for at in range(len(pivots), len(rows)) if rows[at][column]), None)
        if at is None:
            continue
        top = len(pivots)
        rows[top], rows[at] = rows[at], rows[top]
        inverse = pow(rows[top][column], -1, prime)
        rows[top] = [value * inverse % prime for value in rows[top]]
        for other, row in enumerate(rows):
            if other != top and row[column]:
                rows[other] = [(a - row[column] * b) % prime for a, b in zip(row, rows[top], strict=True)]
        pivots.append(column)
    free = [column for column in range(width) if column not in pivots]
    found = [0] * width
    for place, column in enumerate(free):
        found[column] = 7 + place
    for row, column in zip(rows, pivots, strict=False):
        found[column] = -sum(row[other] * found[other] for other in free) % prime
    return found


BASIS = [[1, 1, 0] * 2, [1, 0, 1] * 2]
"""Every site's vector is men times the first plus women times the second."""


def _known_weights(hub: LyingHub, offered: Offered) -> list[list[int]]:
    """The weights of the check, as a site on the hub's side tells it."""
    packing, site = Packing.of(hub.scheme.ring, hub.context()), hub.sites[COLLUDER]
    _, _, seed = read_inbox(packing, offered.inbox(COLLUDER), site.name, trust_of(site))
    halves = [half[0].astype(np.int64) for half in weights_of(seed, packing)._halves]
    return [(low + (high << 20)).tolist() for low, high in halves]


@pytest.mark.parametrize("padded", [True, False])
def test_a_linear_relation_in_the_payload_known_to_hub_and_one_site(
    padded: bool, slots: Slots, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not padded:
        unpadded(monkeypatch)
    hub = LyingHub("bfv")
    prime, offered = hub.ring.plain_modulus, hub.keys()
    for place in hub.everybody:
        hub.ciphertext(place, offered)
    weights = _known_weights(hub, offered)
    # Extra multiples of the victim's slots which no check sees, for any numbers of men and women.
    extra = _null_space(
        [[r[slot] * base[slot] % prime for slot in range(LENGTH)] for r in weights for base in BASIS], prime
    )
    multiplier = np.ones(hub.ring.slots, dtype=object)
    multiplier[:LENGTH] += np.array(extra, dtype=object)
    forged = combined(hub, slots, [multiplier if place == VICTIM else 1 for place in hub.everybody])
    # Totals in range are a second hurdle, which a hub could pass with small multiples; here it does not matter.
    monkeypatch.setattr(Packing, "bound", property(lambda self: 2**62))
    attack = lambda: hub.open(hub.encrypt(forged, offered), hub.everybody)  # noqa: E731
    if padded:
        with pytest.raises(Refused, match="the check of a total"):
            attack()
        return
    opened = attack().tolist()
    # Six slots, four unknowns: men and women of the total and of the victim.
    system = [
        [*(base[slot] for base in BASIS), *(extra[slot] * base[slot] % prime for base in BASIS), -opened[slot] % prime]
        for slot in range(LENGTH)
    ]
    solution = _null_space(system, prime)
    scale = pow(solution[-1], -1, prime)
    men, women = (value * scale % prime for value in solution[2:4])
    assert [men + women, men, women] == numbers_of(hub.sites[VICTIM])[:3].tolist()


@pytest.mark.parametrize("word", SCHEMES)
@pytest.mark.parametrize("bound", [True, False])
def test_ciphertexts_of_another_round(word: str, bound: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not bound:
        transcript_without(monkeypatch, round=0)
    hub = LyingHub(word)
    first = hub.keys()
    old = [hub.ciphertext(place, first) for place in hub.everybody]
    before = hub.open(hub.total(old), hub.everybody)
    fresh = hub.ciphertext(VICTIM, hub.keys(round_number=1), round_number=1)
    mixed = hub.total([fresh, *(old[place] for place in hub.everybody if place != VICTIM)])
    if bound:
        with pytest.raises(Refused, match=r"check of a total|noise budget|grid"):
            hub.open(mixed, hub.everybody, round_number=1)
        return
    site = hub.sites[VICTIM]
    difference = hub.open(mixed, hub.everybody, round_number=1) - before
    assert np.array_equal(difference, numbers_of(site, 1) - numbers_of(site, 0))


@pytest.mark.parametrize("word", SCHEMES)
@pytest.mark.parametrize("kind", ["larger", "smaller", "another"])
@pytest.mark.parametrize("checked", [True, False])
def test_a_claimed_list_that_is_not_the_totals(
    word: str, kind: str, checked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not checked:
        unchecked(monkeypatch)
        unpadded(monkeypatch)
    hub = LyingHub(word)
    offered = hub.keys()
    inside, claimed = {
        "larger": ([VICTIM, COLLUDER], hub.everybody),
        "smaller": (hub.everybody, hub.everybody[:3]),
        "another": (hub.everybody[:3], hub.everybody[1:4]),
    }[kind]
    total = hub.total([hub.ciphertext(place, offered) for place in inside])
    if checked:
        with pytest.raises(Refused, match="check of a total"):
            hub.open(total, claimed)
        return
    assert np.array_equal(hub.open(total, claimed), sum(numbers_of(hub.sites[place]) for place in inside))


@pytest.mark.parametrize("word", SCHEMES)
@pytest.mark.parametrize("checked", [True, False])
def test_a_claimed_list_that_repeats_a_site(word: str, checked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not checked:
        any_claim(monkeypatch)
    hub = LyingHub(word)
    offered = hub.keys()
    victim, own = hub.ciphertext(VICTIM, offered), hub.ciphertext(COLLUDER, offered)
    claimed, total = [VICTIM, COLLUDER, COLLUDER], hub.total([victim, own, own])
    if checked:
        with pytest.raises(Refused, match="list of sites in a sum cannot be right"):
            hub.open(total, claimed)
        return
    found = hub.open(total, claimed) - 2 * numbers_of(hub.sites[COLLUDER])
    assert np.array_equal(found, numbers_of(hub.sites[VICTIM]))


@pytest.mark.parametrize("word", SCHEMES)
@pytest.mark.parametrize("counted_by", ["key-holder", "contract", "policy", "nobody"])
def test_a_total_over_fewer_sites_than_the_minimum(word: str, counted_by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = LyingHub(word)
    if counted_by != "key-holder":
        any_claim(monkeypatch)
    if counted_by in {"policy", "nobody"}:
        hub.holder.contract_of = lambda approved: approved.contract
    if counted_by == "nobody":
        hub.holder.policy = replace(hub.holder.policy, min_sum_sites=1)
    offered = hub.keys()
    total = hub.total([hub.ciphertext(place, offered) for place in (VICTIM, COLLUDER)])
    if counted_by != "nobody":
        words = {"key-holder": "opens none below 3", "contract": "weaker", "policy": "the policy's 3"}
        with pytest.raises(Refused, match=words[counted_by]):
            hub.open(total, [VICTIM, COLLUDER])
        return
    found = hub.open(total, [VICTIM, COLLUDER]) - numbers_of(hub.sites[COLLUDER])
    assert np.array_equal(found, numbers_of(hub.sites[VICTIM]))


@pytest.mark.parametrize("minimum", [{"own": {"colluders": 2}}, {"policy": {"min_sum_sites": 4}}], ids=str)
def test_the_minimum_follows_from_colluders_and_policy(minimum: dict[str, Any]) -> None:
    hub = LyingHub("bfv", **minimum)
    fewer = hub.session.over(hub.session.members[:3])
    with pytest.raises(Refused, match="opens none below 4"):
        hub.keys(session=fewer)
    offered = hub.keys(round_number=1)
    total = hub.total([hub.ciphertext(place, offered, round_number=1) for place in range(3)])
    with pytest.raises(Refused, match="opens none below 4"):
        hub.open(total, range(3), round_number=1)
    with pytest.raises(Refused, match="takes part in none below 4"):
        hub.ciphertext(VICTIM, offered, session=fewer, round_number=2)


@pytest.mark.parametrize("word", SCHEMES)
def test_an_offer_of_another_sum_or_view_or_for_another_site(word: str) -> None:
    hub = LyingHub(word)
    offers = {
        "round": hub.keys(round_number=1),
        "view": hub.keys(round_number=2, weight=b"\2"),
        "site": hub.keys(round_number=3),
    }
    with pytest.raises(Refused, match="was not made for it"):
        hub.ciphertext(VICTIM, offers["round"], round_number=4)
    with pytest.raises(Refused, match="was not made for it"):
        hub.ciphertext(VICTIM, offers["view"], round_number=2)
    with pytest.raises(Refused, match="is for another site"):
        hub.ciphertext(VICTIM, offers["site"], round_number=3, box=COLLUDER)
    mixed = Offered(offers["round"].offer, offers["site"].boxes)
    with pytest.raises(Refused, match="is for another site or sum"):
        hub.ciphertext(VICTIM, mixed, round_number=1)


@pytest.mark.parametrize("word", SCHEMES)
@pytest.mark.parametrize("checked", [True, False])
def test_an_offer_that_the_hub_made_itself(word: str, checked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = LyingHub(word)
    if not checked:
        monkeypatch.setattr(PublicIdentity, "signed", lambda *_, **__: True)
    real = hub.holder
    roster = {site.name: site.identity.public for site in hub.sites}
    own = KeyHolder(
        identity=replace(real.identity, signing_key=hub.sites[COLLUDER].identity.signing_key),
        streams=Streams.seeded(9),
        find_site=roster.get,
    )
    offered = own.offer(hub.scheme.ring, hub.context())
    if checked:
        with pytest.raises(Refused, match="was not made for it"):
            hub.ciphertext(VICTIM, offered)
        return
    (keys,) = own._pending.values()
    opened = keys.secret.open(hub.ciphertext(VICTIM, offered), sites=len(hub.sites))
    bare = key_holder._checked(keys, [roster[hub.sites[VICTIM].name]], opened[np.newaxis])
    assert np.array_equal(bare[0, :LENGTH], numbers_of(hub.sites[VICTIM]))


@pytest.mark.parametrize("word", SCHEMES)
@pytest.mark.parametrize("again", ["attempt", "view", "members"])
@pytest.mark.parametrize("patches", [[], [without_book], [many_sums_a_round], [without_book, many_sums_a_round]])
def test_a_second_opening_of_a_sum(
    word: str, again: str, patches: list[Patch], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = LyingHub(word)
    offered = hub.keys()
    whole = hub.open(hub.total([hub.ciphertext(place, offered) for place in hub.everybody]), hub.everybody)
    others = [place for place in hub.everybody if place != VICTIM]
    members = hub.session.over(tuple(hub.sites[place].name for place in others)) if again == "members" else hub.session
    weight, attempt = (b"\1\0" if again == "view" else b"\1"), int(again == "attempt")

    def second() -> NDArray[np.int64]:
        """The same sum without the victim."""
        offered = hub.keys(session=members, weight=weight, attempt=1)
        parts = [
            hub.ciphertext(place, offered, session=members, weight=weight, attempt=attempt or 2) for place in others
        ]
        claimed = [members.index[hub.sites[place].name] for place in others]
        return hub.open(hub.total(parts), claimed, session=members, weight=weight, attempt=attempt)

    for patch in patches:
        patch(monkeypatch)
    if len(patches) < 2:
        with pytest.raises(Refused, match="begun here before" if without_book in patches else "opened already"):
            second()
        return
    assert np.array_equal(whole - second(), numbers_of(hub.sites[VICTIM]))


@pytest.mark.parametrize("again", ["view", "members"])
def test_a_second_offer_with_another_context_before_the_first_is_opened(again: str) -> None:
    hub = LyingHub("bfv")
    hub.keys()
    changes: dict[str, Any] = {"weight": b"\2"}
    if again == "members":
        changes = {"session": hub.session.over(tuple(site.name for site in hub.sites[1:]))}
    with pytest.raises(Refused, match="over other sites, numbers or public inputs"):
        hub.keys(attempt=1, **changes)


@pytest.mark.parametrize("word", SCHEMES)
@pytest.mark.parametrize("bound", [True, False])
def test_different_views_at_one_site(word: str, bound: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not bound:
        transcript_without(monkeypatch, view=b"")
    hub = LyingHub(word)
    offered = hub.keys(weight=b"\1")  # what the victim is told; to the others the weight is 0

    def attack() -> NDArray[np.int64]:
        parts = [hub.ciphertext(place, offered, weight=b"\1" if place == VICTIM else b"\0") for place in hub.everybody]
        return hub.open(hub.total(parts), hub.everybody)

    if bound:
        with pytest.raises(Refused, match="was not made for it"):
            attack()
        return
    assert np.array_equal(attack(), numbers_of(hub.sites[VICTIM]))


@pytest.mark.parametrize("word", SCHEMES)
@pytest.mark.parametrize("checked", [True, False])
def test_two_vectors_of_a_site_under_the_same_pads(
    word: str, checked: bool, slots: Slots, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Noise is drawn for a request. Asked twice, a site would draw twice under the same pads and the same check, and the
    # hub could average it away, or add a difference as often as it likes.
    if not checked:
        many_sums_a_round(monkeypatch)
    hub = LyingHub(word)
    weight = b"noise"
    offered = hub.keys(weight=weight)
    hub.ciphertext(VICTIM, offered, weight=weight)
    if checked:
        with pytest.raises(Refused, match="begun here before"):
            hub.ciphertext(VICTIM, offered, weight=weight, attempt=1)
        return
    hub.ciphertext(VICTIM, offered, weight=weight, attempt=1)
    for place in hub.everybody[1:]:
        hub.ciphertext(place, offered, weight=weight)
    forged = combined(hub, slots, [1001, -1000, *[1] * (len(hub.sites) - 1)])
    opened = hub.open(hub.encrypt(forged, offered), hub.everybody, weight=weight)
    honest = sum(numbers_of(site) for site in hub.sites)
    # A thousand times the difference of the victim's two noises, and not more than 50 of each of the others'.
    assert np.abs(opened - honest).max() > 1000 * 1 - 50 * len(hub.sites)


def test_a_failed_check_ends_the_run() -> None:
    hub = LyingHub("bfv")
    offered, waiting = hub.keys(), hub.keys(round_number=1)
    alone = hub.ciphertext(VICTIM, offered)
    with pytest.raises(Refused, match="check of a total"):
        hub.open(alone, hub.everybody)
    with pytest.raises(Refused, match="no key for this sum"):
        hub.open(alone, hub.everybody)
    honest = hub.total([hub.ciphertext(place, waiting, round_number=1) for place in hub.everybody])
    with pytest.raises(Refused, match="no key for this sum"):
        hub.open(honest, hub.everybody, round_number=1)
    with pytest.raises(Refused, match="the check of a total failed in this run"):
        hub.keys(round_number=2)


def test_the_hub_is_told_that_a_total_is_wrong_and_not_why() -> None:
    reasons = set()
    for harm in range(3):
        hub = LyingHub("bfv")
        offered = hub.keys()
        parts = [hub.ciphertext(place, offered) for place in hub.everybody]
        with pytest.raises(Refused) as caught:
            hub.open(hub.total(parts[: 1 + harm]), hub.everybody)
        reasons.add(str(caught.value))
    assert len(reasons) == 1
