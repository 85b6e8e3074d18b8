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
from kohort.errors import IntegrityError, KohortError, RefusedError
from kohort.protocol import engine as engine_module
from kohort.protocol import enrolment
from kohort.protocol.enrolment import DESCRIBE, PREPARE
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.site import Site
from kohort.protocol.task import Request
from kohort.rounds import counting, domains
from kohort.rounds.counting import SecureCount
from kohort.runs import run as run_module
from kohort.runs.config import load_plan
from kohort.runs.run import Outcome, run
from kohort.tables.domain import Domain

RARE = "ward-of-one-patient"


def table() -> pl.DataFrame:
    random = np.random.default_rng(1)
    ward = random.choice(["north", "south"], 400).astype(object)
    ward[7] = RARE
    return pl.DataFrame({"age": random.integers(20, 80, 400), "ward": ward, "y": random.choice(["no", "yes"], 400)})


def outcome(**data: Any) -> Outcome:
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
    return run(plan, seed=2, tables={"": table()})


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
    (refusal,) = site.handle(replace(request, task=DESCRIBE.name)).refusals
    assert refusal.code == "contract"
    with pytest.raises(RefusedError, match="learns no domain in clear"):  # whatever the contract says
        DESCRIBE.one(site, request)
    monkeypatch.setattr(ApprovedPlan, "hides_domains", False)
    assert b"north" in DESCRIBE.one(site, request).payload.blobs["domain"]


def test_a_site_enrols_with_one_domain(prepared: tuple[Site, Request], monkeypatch: pytest.MonkeyPatch) -> None:
    site, request = prepared
    blob = request.payload.blobs["domain"].replace(b'"north",', b"")
    other = replace(request, payload=replace(request.payload, blobs={"domain": blob}))
    (refusal,) = site.handle(other).refusals
    assert refusal.code == "contract"
    monkeypatch.setattr("kohort.protocol.site.admit", lambda *_, **__: None)
    (failure,) = site.handle(other).failures
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
        ("age", {"missing": True}),
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
    names_in = domains._names_in

    def lying(self: SecureCount, hub: Any, **_: Any) -> Any:
        return (yield from honest(self, hub, threshold=1))

    def listen(total: Any, sites: int) -> list[bytes]:
        read.append(names_in(total, sites))
        return read[-1]

    monkeypatch.setattr(SecureCount, "run", lying)
    monkeypatch.setattr(domains, "_names_in", listen)
    return read


def test_names_of_rare_values_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    read = propose_everything(monkeypatch)
    with pytest.raises(IntegrityError, match="proposed as frequent that is not"):
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
    ask, names_in = domains.Ask, domains._names_in

    def lying(**about: Any) -> Any:
        total = about["payload"].arrays["names"].copy()
        spelled = names_in(total[:-1], 4)
        place = spelled.index(next(name for name in spelled if name.endswith(old)))
        rows = total[:-1].reshape(len(spelled), -1)
        forged = domains._limbs([spelled[place].replace(old, new)])[0].tolist()
        rows[place, 1:] = [int(rows[place, 0]) * limb % P61 for limb in forged]
        arrays = {**about["payload"].arrays, "names": np.append(rows.reshape(-1), total[-1])}
        return ask(**{**about, "payload": replace(about["payload"], arrays=arrays)})

    monkeypatch.setattr(domains, "Ask", lying)


def test_names_are_not_forged(monkeypatch: pytest.MonkeyPatch) -> None:
    forge_names(monkeypatch, b"north", b"forge")
    with pytest.raises(IntegrityError, match="not the sum of what the listed sites contributed"):
        outcome()
    monkeypatch.setattr(domains, "proven_total", lambda *about: about[3][:-1])
    with pytest.raises(IntegrityError, match="not that of a frequent value"):  # nor does another name fit the key
        outcome()
    fingerprints: Callable[..., Any] = domains.fingerprints
    monkeypatch.setattr(domains, "fingerprints", lambda secret, names: fingerprints(
        secret, [name.replace(b"forge", b"north") for name in names]))  # fmt: skip
    with pytest.raises(KohortError, match="not learned by a secure count"):  # the sites believe the forged name
        outcome()
