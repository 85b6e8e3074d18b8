"""A lying hub that learns or sets domains: it asks in clear, proposes rare values, forges names, changes declared ones.

Sites are those of a real run, unmodified; only the hub's part is changed. Each attack gets nothing, and a counterpart
shows that it would succeed if the one check against it were missing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.crypto.sums.modular import P61
from kohort.errors import DataError, IntegrityError, KohortError, RefusedError
from kohort.protocol import answers as answers_module
from kohort.protocol import engine as engine_module
from kohort.protocol import enrolment
from kohort.protocol.answers import answer
from kohort.protocol.enrolment import DESCRIBE, PREPARE
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.site import Site
from kohort.protocol.task import Request
from kohort.protocol.wire import decode
from kohort.rounds import counting
from kohort.rounds.counting import SecureCount
from kohort.rounds.domains import counted as domains
from kohort.rounds.domains import names as naming
from kohort.rounds.domains import noisy as noisy_domains
from kohort.rounds.totals import summed_model
from kohort.runs import run as run_module
from kohort.runs.config import load_plan
from kohort.runs.run import Outcome, run
from kohort.tables.domain import Domain
from kohort.testing import listening
from kohort.testing.site_servers import DirectCarrier, ServedSites
from kohort.transport.messages import read_reply, split_messages

RARE = "ward-of-one-patient"


def table() -> pl.DataFrame:
    random = np.random.default_rng(1)
    ward = random.choice(["north", "south"], 400).astype(object)
    ward[7] = RARE
    return pl.DataFrame({"age": random.integers(20, 80, 400), "ward": ward, "y": random.choice(["no", "yes"], 400)})


def outcome(frame: pl.DataFrame | None = None, **data: Any) -> Outcome:
    plan = load_plan(
        {
            "data": {"table": "memory", "target": "y", "features": ["age", "ward"], "test": 0, **data},
            "sites": {"count": 4},
            "train": {"rounds": 1, "lr": 0.1},
            "model": {"kind": "logistic"},
            "method": {"name": "fedavg", "secure": {"sum": "masks"}},
            "policy": {"min_rows": 1},
        }
    )
    return run(plan, seed=2, tables={"": table() if frame is None else frame})


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> tuple[Site, Request]:
    """A site of a run, and the request by which it enrolled."""
    seen: list[tuple[Site, Request]] = []
    answer = engine_module.answer

    def listen(sites: Any, request: Request, **options: Any) -> Any:
        if request.task == PREPARE.name:
            seen.append((sites[0], request))
        return answer(sites, request, **options)

    monkeypatch.setattr(engine_module, "answer", listen)
    outcome()
    return seen[0]


def test_a_domain_is_not_described_in_a_plan_that_hides_it(
    prepared: tuple[Site, Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    site, request = prepared
    (refusal,) = answer((site,), replace(request, task=DESCRIBE.name), many=False).refusals
    assert refusal.code == "contract"
    with pytest.raises(RefusedError, match="learns no domain in clear"):  # whatever the contract says
        DESCRIBE.one(site, request)
    monkeypatch.setattr(ApprovedPlan, "hides_domains", False)
    assert b"north" in DESCRIBE.one(site, request).payload.blobs["domain"]


def test_a_site_enrols_with_one_domain(prepared: tuple[Site, Request], monkeypatch: pytest.MonkeyPatch) -> None:
    site, request = prepared
    blob = request.payload.blobs["domain"].replace(b'"north",', b"")
    other = replace(request, payload=replace(request.payload, blobs={"domain": blob}))
    (refusal,) = answer((site,), other, many=False).refusals
    assert refusal.code == "contract"
    monkeypatch.setattr(answers_module, "admit", lambda *_, **__: None)
    (failure,) = answer((site,), other, many=False).failures
    assert "second domain" in failure.reason


def test_a_site_with_a_stricter_policy_counts_nothing(prepared: tuple[Site, Request]) -> None:
    site, _ = prepared
    assert domains._counts(site).cap == 10
    site.policy = replace(site.policy, min_cell=11)
    with pytest.raises(RefusedError, match="min_cell 10 is below the policy's 11"):
        domains._counts(site)


def change(domain: Domain, name: str, **parts: Any) -> Domain:
    return Domain(columns={**domain.columns, name: replace(domain.columns[name], **parts)})


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("ward", {"categories": ("north", "south", RARE, "other")}),
        ("ward", {"categories": (RARE, "other")}),
        ("age", {"bounds": (0.0, 1e12)}),
        ("age", {"bounds": (41.0, 41.5)}),
        ("age", {"missing": False}),
        ("age", {"counted": False}),
    ],
)
def test_a_hub_cannot_add_to_what_was_learned(
    name: str, parts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = domains.count_domain

    def lying(hub: Any) -> Any:
        domain, sites = yield from honest(hub)
        return change(domain, name, **parts), sites

    monkeypatch.setattr(domains, "count_domain", lying)
    with pytest.raises(KohortError, match="not learned by a secure count"):
        outcome()
    monkeypatch.setattr(enrolment, "_check_domain", lambda *_, **__: None)
    column = outcome().model.encoder.domain.columns[name]
    assert all(getattr(column, key) == value for key, value in parts.items())


DECLARED: dict[str, Any] = {
    "bounds": {"age": (0, 99)}, "categories": {"ward": ["north", "south"], "y": ["no", "yes"]}, "other": ["ward"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("age", {"bounds": (0.0, 1e12)}),
        ("age", {"bounds": (40.0, 41.0)}),
        ("ward", {"categories": ("north", "south", RARE, "other")}),
        ("ward", {"categories": ("north", "other")}),
    ],
)
@pytest.mark.parametrize("secure", [True, False])
def test_declared_domains_win(name: str, parts: dict[str, Any], secure: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = run_module.declared_domain
    monkeypatch.setattr(ApprovedPlan, "sums_securely", property(lambda plan: plan.secure is not None and secure))
    monkeypatch.setattr(run_module, "declared_domain", lambda *about, **how: change(_whole(honest(*about, **how)), name,
                                                                                 **parts))  # fmt: skip
    with pytest.raises(KohortError, match=f"changes what is declared for column '{name}'"):
        outcome(**DECLARED)
    monkeypatch.setattr(enrolment, "_check_declared", lambda *_: None)
    column = outcome(**DECLARED).model.encoder.domain.columns[name]
    assert all(getattr(column, key) == value for key, value in parts.items())


def _whole(domain: Domain | None) -> Domain:
    assert domain is not None
    return domain


def propose_everything(monkeypatch: pytest.MonkeyPatch) -> list[list[bytes]]:
    """A hub that proposes every key as frequent, to read the names of all; the names it reads."""
    honest, read = SecureCount.run, []
    names_in = naming.names_in

    def lying(self: SecureCount, hub: Any, **_: Any) -> Any:
        return (yield from honest(self, hub, threshold=1))

    def listen(total: Any, sites: int) -> list[bytes]:
        read.append(names_in(total, sites))
        return read[-1]

    monkeypatch.setattr(SecureCount, "run", lying)
    monkeypatch.setattr(naming, "names_in", listen)
    return read


def test_names_of_rare_values_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    read = propose_everything(monkeypatch)
    with pytest.raises(IntegrityError, match="the hub proposed a key as frequent that is not"):
        outcome()
    assert not read
    monkeypatch.setattr(counting, "_require_frequent", lambda *_, **__: None)
    outcome()
    assert any(RARE.encode() in name for name in read[0])


def test_names_are_not_told_before_they_are_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that leaves the proof out, or announces totals of its own, gets no name."""
    honest = SecureCount.run

    def unproven(self: SecureCount, hub: Any, **about: Any) -> Any:
        found = yield from honest(self, hub, **about)
        return replace(found, totals=np.full(len(found.f) + 1, 400, dtype=np.uint64))

    monkeypatch.setattr(SecureCount, "run", unproven)
    with pytest.raises(IntegrityError, match="not the sum of what the listed sites contributed"):
        outcome()


def forge_names(monkeypatch: pytest.MonkeyPatch, old: bytes, new: bytes) -> None:
    """A hub that announces another name for a frequent value."""
    sum_again, names_in = SecureCount.sum_again, naming.names_in

    def lying(self: SecureCount, hub: Any, task: Any, *about: Any) -> Any:
        if task is not domains.REST:
            return (yield from sum_again(self, hub, task, *about))
        total = np.frombuffer(about[-1]["names"], dtype="<u8").copy()
        spelled = names_in(total[:-1], 4)
        place = spelled.index(next(name for name in spelled if name.endswith(old)))
        rows = total[:-1].reshape(len(spelled), -1)
        forged = naming.limbs([spelled[place].replace(old, new)])[0].tolist()
        rows[place, 1:-1] = [int(rows[place, 0]) * limb % P61 for limb in forged]
        inputs = {**about[-1], "names": np.append(rows.reshape(-1), total[-1]).astype("<u8").tobytes()}
        return (yield from sum_again(self, hub, task, *about[:-1], inputs))

    monkeypatch.setattr(SecureCount, "sum_again", lying)


def test_names_are_not_forged(monkeypatch: pytest.MonkeyPatch) -> None:
    forge_names(monkeypatch, b"north", b"forge")
    with pytest.raises(IntegrityError, match="not the sum of what the listed sites contributed"):
        outcome()
    monkeypatch.setattr(naming, "proven_total", lambda *about: about[3][:-1])
    with pytest.raises(IntegrityError, match="a named value is not frequent"):  # nor does another name fit the key
        outcome()
    fingerprints: Callable[..., Any] = naming.fingerprints
    monkeypatch.setattr(naming, "fingerprints", lambda secret, names: fingerprints(
        secret, [name.replace(b"forge", b"north") for name in names]))  # fmt: skip
    with pytest.raises(KohortError, match="lacks a value that is frequent at this site"):
        outcome()
    monkeypatch.setattr(domains, "_require_own", lambda *_: None)
    with pytest.raises(KohortError, match="lacks a range or class"):  # what the hub proves is about other names
        outcome()
    monkeypatch.setattr(domains, "is_below", lambda *_, **__: True)
    with pytest.raises(KohortError, match="not learned by a secure count"):  # the sites believe the forged name
        outcome()


def leave_out(monkeypatch: pytest.MonkeyPatch, wanted: Callable[[bytes], bool]) -> set[int]:
    """A hub that proposes all keys but some. It knows which opaque keys those are: by luck, or from a site."""
    left_out: set[int] = set()
    prints, peel = SecureCount.prints, counting.peel

    def telling(self: SecureCount, site: Site, keys: list[bytes] | None = None) -> Any:
        found = prints(self, site, keys)
        listed = domains._counts(site).keys if keys is None else keys
        left_out.update(f for f, key in zip(found.f.tolist(), listed, strict=True) if wanted(key))
        return found

    def blind(*parts: Any) -> Any:
        found = peel(*parts)
        kept = ~np.isin(found.f, np.asarray(sorted(left_out), dtype=np.uint64))
        return replace(found, f=found.f[kept], h=found.h[kept], totals=found.totals[kept])

    monkeypatch.setattr(SecureCount, "prints", telling)
    monkeypatch.setattr(counting, "peel", blind)
    return left_out


def is_outer(key: bytes) -> bool:
    """Whether a key is the cell of the finest level that holds the ages 78 and 79."""
    return key.startswith(b"n") and key.endswith(b"7 1 121")


@pytest.mark.parametrize(
    ("wanted", "shown"),
    [
        (lambda key: key.endswith(b"maybe"), lambda columns: columns["y"].categories == ("no", "yes")),
        (is_outer, lambda columns: 70 < columns["age"].bounds[1] < 78),
    ],
    ids=["a class", "a range"],
)
def test_a_hub_cannot_leave_out_what_is_frequent_over_all_sites(
    wanted: Callable[[bytes], bool], shown: Callable[[Any], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At no site alone do enough persons have the value. Without it, rows vanish or are clipped: the difference of two
    runs would show a few."""
    frame = table()
    rare = np.arange(400) % 20 == 3
    frame = frame.with_columns(y=pl.when(pl.Series(rare)).then(pl.lit("maybe")).otherwise("y"))
    honest = outcome(frame).model.encoder.domain.columns
    assert "maybe" in honest["y"].categories
    assert honest["age"].bounds[1] > 79
    left_out = leave_out(monkeypatch, wanted)
    with pytest.raises(DataError, match="or more"):  # an honest hub would notice what it did
        outcome(frame)
    monkeypatch.setattr(domains, "totals_of", lambda *_: [0])
    with pytest.raises(IntegrityError, match="lacks a range or class that is frequent over all sites"):
        outcome(frame)
    assert left_out
    monkeypatch.setattr(domains, "is_below", lambda *_, **__: True)
    assert shown(outcome(frame).model.encoder.domain.columns)


def test_a_hub_cannot_leave_out_what_is_frequent_at_a_site(monkeypatch: pytest.MonkeyPatch) -> None:
    """A colluding site tells the hub which opaque key a value has; the hub then proposes all others."""
    left_out = leave_out(monkeypatch, lambda key: key.endswith(b"north"))
    with pytest.raises(IntegrityError, match="lacks a value that is frequent at this site"):
        outcome()
    assert left_out
    monkeypatch.setattr(domains, "_require_own", lambda *_: None)
    assert outcome().model.encoder.domain.columns["ward"].categories == ("south", "other")


def noisy_outcome(rows: int = 2000, backend: Any = None, method: dict[str, Any] | None = None) -> Outcome:
    """A run under a budget over a table whose domains nobody declared."""
    budget = {"dp": {"epsilon": 4.0, "delta": 1e-5}}
    network = {"train": {"rounds": 1, "lr": 0.1, "batch": 0, "optimizer": "sgd"}, "model": {"kind": "logistic"}}
    plan = load_plan(
        {
            "data": {"table": "memory", "target": "y", "features": ["age", "ward"], "test": 0},
            "sites": {"split": "files"},
            **(network if method is None or method["name"] == "fedavg" else {}),
            "method": {**(method or {"name": "fedavg"}), **budget},
            "policy": {"min_rows": 1},
        }
    )
    frame = pl.concat([table()] * (rows // 400)).with_columns(
        y=pl.when(pl.int_range(pl.len()) % 500 == 0).then(pl.lit("rare")).otherwise("y")
    )
    tables = {f"s{part}": frame.gather_every(3, part) for part in range(3)}
    if method is not None:
        return run(plan, seed=2, tables=tables)
    return run(plan, seed=2, backend=ServedSites(tables=tables) if backend is None else backend(tables))


def lie_under_a_budget(monkeypatch: pytest.MonkeyPatch, name: str, **parts: Any) -> None:
    honest = noisy_domains.noisy_domain

    def lying(hub: Any) -> Any:
        domain, sites = yield from honest(hub)
        return change(domain, name, **parts), sites

    monkeypatch.setattr(noisy_domains, "noisy_domain", lying)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("ward", {"categories": ("south", "other")}),
        ("ward", {"categories": ("north", "south")}),
        ("y", {"categories": ("no", "rare")}),
        ("age", {"kind": "category", "categories": ("41", "other")}),
        ("age", {"counted": False}),
        ("age", {"missing": False}),
    ],
)
def test_under_a_budget_a_domain_holds_what_a_site_named(
    name: str, parts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    lie_under_a_budget(monkeypatch, name, **parts)
    with pytest.raises(KohortError, match="'prepare'"):
        noisy_outcome()


def test_a_chosen_domain_shows_no_count_of_rows_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub adds a rare class to the domain or leaves it out, and reads how many rows each site speaks of."""
    said: dict[bool, set[tuple[str, str, int]]] = {}

    class Listening(DirectCarrier):
        def carry(self, messages: Any, *, deadline: float) -> Any:
            replies, missing = super().carry(messages, deadline=deadline)
            for site, data in replies.items():
                for part in split_messages(data):
                    reply = read_reply(part, site=served[-1].identities[site].public)
                    seen.add((site, reply.to, reply.rows))
            return replies, missing

    class Listened(ServedSites):
        def carrier(self) -> Any:
            served.append(self)
            return Listening(self.site_servers)

    served: list[ServedSites] = []
    for adds in (False, True):
        seen: set[tuple[str, str, int]] = set()
        with monkeypatch.context() as patched:
            if adds:
                lie_under_a_budget(patched, "y", categories=("no", "rare", "yes"))
            noisy_outcome(backend=lambda tables: Listened(tables=tables))
        said[adds] = {(site, to, rows) for site, to, rows in seen if rows}
    assert said[True] == said[False]
    assert said[True]


def counts_said(monkeypatch: pytest.MonkeyPatch, method: dict[str, Any], *, adds: bool) -> set[tuple[str, int]]:
    """Every row count in an answer about rows, and in an opened total of updates."""
    seen: set[tuple[str, int]] = set()
    honest = summed_model._decoded

    def decoded(*parts: Any) -> Any:
        found = honest(*parts)
        seen.add(("total", found[1]))
        return found

    with monkeypatch.context() as patched:
        patched.setattr(summed_model, "_decoded", decoded)
        if adds:
            lie_under_a_budget(patched, "y", categories=("no", "rare", "yes"))
        with listening() as heard:
            noisy_outcome(method=method)
    for site, _, _, data in heard.replies:
        rows = decode(data).metrics.get("rows")
        seen |= {(site, int(rows))} if rows is not None else set()
    return seen


def forgetting(adopt: Any) -> Any:
    """An enrolment that forgets the rows that take no part."""

    def go(sites: Any, request: Any) -> Any:
        encoder = adopt(sites, request)
        for site in sites:
            site.state(enrolment.DomainState).whole = None
        return encoder

    return go


@pytest.mark.parametrize(
    "method",
    [
        {"name": "fedavg"},
        {"name": "fedavg", "secure": {"sum": "masks"}},
        {"name": "additive", "rounds": 3, "secure": {"sum": "none"}},
    ],
    ids=["fedavg", "masks", "additive in clear"],
)
def test_under_a_budget_no_message_counts_the_rows_within_a_chosen_domain(
    method: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hub adds a rare class to the domain or leaves it out; how many rows each site has of it is no noisy release."""
    adds, leaves_out = (counts_said(monkeypatch, method, adds=adds) for adds in (True, False))
    assert adds == leaves_out
    assert {rows for site, rows in adds if site != "total"} == {666, 667}
    with monkeypatch.context() as unguarded:
        unguarded.setattr(enrolment, "_adopt", forgetting(enrolment._adopt))
        assert counts_said(monkeypatch, method, adds=False) != adds
