"""A lying hub in a secure count: it sits between the sites, forges approvals, and asks for two totals to compare them.

Sites are unmodified; only the hub's part of the count, or what it passes on, is changed. Each attack gets nothing, and
a counterpart shows that it would succeed if the one check against it were missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.crypto import group_secret
from kohort.crypto.group_secret import _HASH, GroupHub, GroupSite
from kohort.crypto.identity.parties import Identity, PublicIdentity
from kohort.crypto.sums import checked
from kohort.crypto.sums.modular import P61
from kohort.errors import IntegrityError, KohortError, RefusedError
from kohort.methods.partial import method as partial_method
from kohort.methods.partial.tasks import COUNT
from kohort.protocol import answers as answers_module
from kohort.protocol import engine as engine_module
from kohort.protocol.answers import Answers, Failure
from kohort.protocol.hub import Ask, Expect
from kohort.protocol.site import Site
from kohort.rng import Streams
from kohort.rounds import counting, summing
from kohort.rounds.counting import FrequentKeys, SecureCount
from kohort.rounds.summing import Total, secure_sum
from kohort.runs.config import load_plan
from kohort.runs.run import Outcome, run

SITES = ("a", "b", "c", "d")
K = 60
VICTIM = "site-04"
DECLARED: dict[str, Any] = {
    "bounds": {"x": (0, 1)},
    "categories": {"group": ["large", "medium", "small", "lone"], "y": ["no", "yes"]},
}


def identities(seed: int) -> dict[str, Identity]:
    return {name: Identity.from_secret(name, Streams.seeded(seed + i).bytes("id")) for i, name in enumerate(SITES)}


def site_of(name: str, keys: Mapping[str, Identity], find_peer: Callable[[str], PublicIdentity | None]) -> GroupSite:
    return GroupSite(SITES, name, b"binding", Streams.seeded(SITES.index(name)), keys[name], find_peer)


def roster(keys: Mapping[str, Identity]) -> Callable[[str], PublicIdentity | None]:
    return {name: identity.public for name, identity in keys.items()}.get


def in_the_middle(victim: GroupSite, owns: Mapping[str, Identity], victim_key: Callable[[str], Any]) -> bytes | None:
    """Answer the victim as all of its peers, with keys of the hub's own; what it then counts under, if it counts."""

    def known(name: str) -> PublicIdentity | None:
        return victim_key(name) if name == "a" else owns[name].public

    fakes = {name: site_of(name, owns, known) for name in SITES[1:]}
    boxes = {"a": victim.reply(0, b""), **{name: fake.reply(0, b"") for name, fake in fakes.items()}}
    inboxes = GroupHub(SITES).route(0, boxes)
    hashes = {"a": victim.reply(1, inboxes["a"])}
    for name, fake in fakes.items():
        hashes[name] = fake.reply(1, inboxes[name])
    victim.reply(2, GroupHub(SITES).route(1, hashes)["a"])
    return fakes["b"].derived


def test_a_hub_between_the_sites_learns_no_secret() -> None:
    honest, owns = identities(0), identities(100)
    victim = site_of("a", honest, roster(honest))
    with pytest.raises(IntegrityError, match="altered"):
        in_the_middle(victim, owns, roster(honest))
    assert victim.secret is None
    with pytest.raises(IntegrityError, match="altered"):  # nor can it open what the victim sealed to its peers
        site_of("b", owns, roster(honest)).reply(
            1, GroupHub(SITES).route(0, {"a": victim.reply(0, b""), "b": b""})["b"]
        )


def test_without_the_roster_the_hub_between_the_sites_learns_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    honest, owns = identities(0), identities(100)
    monkeypatch.setattr(GroupSite, "_on_roster", lambda self, name: owns[name].public if self.name == "a" else
                        self.find_peer(name))  # fmt: skip
    victim = site_of("a", honest, roster(honest))
    assert in_the_middle(victim, owns, roster(honest)) == victim.secret


def split_group(sites: Mapping[str, GroupSite]) -> None:
    """Keep d's contribution from a, and show a nobody's hash but its own, as if it were everybody's."""
    boxes = {name: site.reply(0, b"") for name, site in sites.items()}
    inboxes = GroupHub(SITES).route(0, boxes)
    without_d = GroupHub(SITES).route(0, {name: box for name, box in boxes.items() if name != "d"})["a"]
    own = sites["a"].reply(1, without_d)
    for name in SITES[1:]:
        sites[name].reply(1, inboxes[name])
    sites["a"].reply(2, b"".join(_HASH.pack(place, own) for place in range(3)))


def test_a_site_is_not_made_to_agree_with_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = identities(0)
    with pytest.raises(IntegrityError, match="same secret"):
        split_group({name: site_of(name, keys, roster(keys)) for name in SITES})
    monkeypatch.setattr(GroupSite, "_hash_of", lambda self, _: group_secret._digest(self.derived))
    sites = {name: site_of(name, keys, roster(keys)) for name in SITES}
    split_group(sites)
    assert sites["a"].secret is not None
    assert sites["a"].secret != sites["b"].derived


def half_a_group(sites: Mapping[str, GroupSite]) -> None:
    """Show two sites nothing of the two others, so that two secrets are in use."""
    half = {name: sites[name] for name in SITES[:2]}
    inboxes = GroupHub(SITES).route(0, {name: site.reply(0, b"") for name, site in half.items()})
    hashes = GroupHub(SITES).route(1, {name: site.reply(1, inboxes[name]) for name, site in half.items()})
    sites["a"].reply(2, hashes["a"])


def test_two_halves_of_a_group_have_no_secrets_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = identities(0)
    with pytest.raises(RefusedError, match="2 of 4 sites are left to share a secret, 3 are needed"):
        half_a_group({name: site_of(name, keys, roster(keys)) for name in SITES})
    monkeypatch.setattr(GroupSite, "_require", lambda *_: None)
    sites = {name: site_of(name, keys, roster(keys)) for name in SITES}
    half_a_group(sites)
    assert sites["a"].secret is not None


def test_a_box_of_another_count_is_refused() -> None:
    keys = identities(0)
    sites = {name: site_of(name, keys, roster(keys)) for name in SITES}
    earlier = replace(sites["b"], binding=b"another count")
    boxes = {name: site.reply(0, b"") for name, site in sites.items()}
    with pytest.raises(IntegrityError, match="altered"):
        sites["a"].reply(1, GroupHub(SITES).route(0, {**boxes, "b": earlier.reply(0, b"")})["a"])
    again = GroupHub(SITES).route(0, boxes)["a"]
    with pytest.raises(IntegrityError, match="came in twice"):
        sites["a"].reply(1, again + again[: len(again) // 3])


def table() -> pl.DataFrame:
    generator = np.random.default_rng(3)
    groups = np.repeat(["large", "medium", "small", "lone"], [300, 59, 30, 1])
    rows = len(groups)
    return pl.DataFrame({"group": groups, "x": generator.random(rows), "y": generator.choice(["no", "yes"], rows)})


def outcome(**sites: Any) -> Outcome:
    plan = load_plan(
        {
            "data": {"table": "memory", "target": "y", "quasi": ["group"], "features": ["x"], "test": 0, **DECLARED},
            "sites": {"count": 4, **sites},
            "train": {"rounds": 4, "optimizer": "sgd", "lr": 0.1},
            "model": {"kind": "logistic"},
            "policy": {"raw": True, "trust_counts": True, "min_rows": 1},
            "method": {"name": "partial", "gate": {"k": K, "released": "raw"}},
        }
    )
    return run(plan, seed=2, tables={"": table()})


def shared(found: Outcome) -> set[str]:
    return set() if found.received is None else set(found.received["group"].to_list())


def test_an_honest_hub_gets_the_frequent_group_alone() -> None:
    assert shared(outcome()) == {"large"}


def lie(monkeypatch: pytest.MonkeyPatch, *, threshold: int, times: int = 1, plus: int = 0) -> None:
    """A hub that proposes what reaches `threshold`, and announces `times` the totals, the first raised by `plus`."""
    honest = SecureCount.run

    def lying(self: SecureCount, hub: Any, *, stage: int = 0, **_: Any) -> Any:
        found = yield from honest(self, hub, threshold=threshold, stage=stage)
        totals = np.asarray([times * int(number) % P61 for number in found.totals], dtype=np.uint64)
        totals[0] += np.uint64(plus)
        return replace(found, totals=totals)

    monkeypatch.setattr(SecureCount, "run", lying)


def test_three_times_the_total_approves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    lie(monkeypatch, threshold=K // 3, times=3)
    with pytest.raises(IntegrityError, match="not the sum of what the listed sites contributed"):
        outcome()
    with monkeypatch.context() as patched:
        patched.setattr(checked, "_pad", lambda *_: 0)
        assert shared(outcome()) == {"large", "medium", "small"}


def test_a_raised_total_approves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    lie(monkeypatch, threshold=K, plus=1)
    with pytest.raises(IntegrityError, match="not the sum of what the listed sites contributed"):
        outcome()


@pytest.mark.parametrize(("threshold", "found"), [(1, {"medium", "small", "lone"}), (K - 1, {"medium"})])
def test_a_proposed_key_below_the_threshold_refuses_the_count(
    monkeypatch: pytest.MonkeyPatch, threshold: int, found: set[str]
) -> None:
    lie(monkeypatch, threshold=threshold)
    with pytest.raises(IntegrityError, match="the hub proposed a key as frequent that is not"):
        outcome()
    with monkeypatch.context() as patched:
        patched.setattr(counting, "_require_frequent", lambda *_, **__: None)
        assert shared(outcome()) == {"large"}  # the site still compares each total with its own threshold
        patched.setattr(FrequentKeys, "reaching", lambda self, _: self)
        assert shared(outcome()) == {"large", *found}


def test_a_forged_approval_without_a_proof_approves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = SecureCount.sum_again

    def unproven(self: SecureCount, hub: Any, task: Any, counted: Any, length: int, *rest: Any) -> Any:
        if task is not self.proof:
            return (yield from honest(self, hub, task, counted, length, *rest))
        return Total(np.full(length, K, dtype=np.uint64), counted)

    monkeypatch.setattr(SecureCount, "sum_again", unproven)
    peel = counting.peel
    monkeypatch.setattr(counting, "peel", lambda *table: replace(peel(*table), totals=np.full(4, K, dtype=np.int64)))
    assert shared(outcome()) == set()


def opened_totals(monkeypatch: pytest.MonkeyPatch, last: int | None = None) -> list[Total]:
    """A hub that announces the sites up to `last` as those of a count's later sums; the totals that it opens."""
    opened: list[Total] = []

    def lying(
        self: SecureCount, hub: Any, task: Any, counted: Any, length: int, round_number: int, inputs: Any = None
    ) -> Any:
        del self
        places = [hub.approved.sites.index(name) for name in counted[:last]]
        own = {**(inputs or {}), "sites": np.asarray(places, dtype="<u4").tobytes()}
        total = yield from secure_sum(hub, task, length=length, round_number=round_number, inputs=own)
        opened.append(total)
        return total

    monkeypatch.setattr(SecureCount, "sum_again", lying)
    return opened


def test_a_count_does_not_go_on_over_fewer_sites(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = opened_totals(monkeypatch, -1)
    with pytest.raises(KohortError, match="exactly the sites that it began with"):
        outcome()
    assert not opened
    with monkeypatch.context() as patched:
        patched.setattr(counting, "survivors_of", lambda site, *_: frozenset(site.plan.sites[:-1]))
        patched.setattr(Site, "note_opening", lambda *_: None)  # the book of openings refuses it, too
        assert shared(outcome()) == {"large"}
    assert all(len(total.sites) == len(SITES) - 1 for total in opened)


def ignore_victim(monkeypatch: pytest.MonkeyPatch, task: str) -> None:
    """Let the hub ignore the vector of one site in sums of `task`, as if it had dropped out."""
    answer = engine_module.answer

    def deaf(sites: Any, request: Any, **options: Any) -> Any:
        found = answer(sites, request, **options)
        if request.task == task and request.payload.metrics["step"] == 1 and sites[0].name == VICTIM:
            return Answers(sites=(), encoded=[], failures=[Failure(VICTIM, "ignored")])
        return found

    monkeypatch.setattr(engine_module, "answer", deaf)


@pytest.mark.parametrize("task", [COUNT.table.name, COUNT.proof.name])
def test_a_total_over_fewer_sites_never_opens(monkeypatch: pytest.MonkeyPatch, task: str) -> None:
    opened = opened_totals(monkeypatch)
    ignore_victim(monkeypatch, task)
    with pytest.raises(KohortError):
        outcome()
    assert all(VICTIM in total.sites for total in opened)
    monkeypatch.setattr(summing, "_fixed_sites", lambda task, *about: (task.over(*about[:3]), None)[1])
    monkeypatch.setattr(Site, "note_opening", lambda *_: None)  # the book of openings refuses it, too
    with suppress(KohortError):  # the check value notices it, too late: the hub has opened the total
        outcome()
    assert any(VICTIM not in total.sites for total in opened)


def test_rows_are_not_counted_again_for_a_few_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that counts whenever it likes: the difference of two counts would show the keys of a few new rows."""
    stages: list[int] = []

    def eager(config: Any, hub: Any, round_number: int) -> Any:
        del config
        yield Ask(task=partial_method.NEWS, to=hub.sites, round=round_number, expect=Expect(metrics=("new",)))
        found = yield from COUNT.run(hub, threshold=K, stage=round_number)
        stages.append(round_number)
        return found

    monkeypatch.setattr(partial_method, "_count", eager)
    with pytest.raises(KohortError, match="counted again when 3 sites have new rows, 60 in all"):
        outcome(arrive="10%/1 round")
    assert stages == [0]
    with monkeypatch.context() as patched:
        patched.setattr(SecureCount, "_check_recount", lambda *_: None)
        outcome(arrive="10%/1 round")
    assert len(stages) > 2


def counted_site(monkeypatch: pytest.MonkeyPatch) -> Site:
    """A site of a finished run that has counted its keys."""
    seen: list[Site] = []
    answer = engine_module.answer

    def listen(sites: Any, request: Any, **options: Any) -> Any:
        seen.extend(sites)
        return answer(sites, request, **options)

    monkeypatch.setattr(engine_module, "answer", listen)
    outcome()
    return seen[0]


@pytest.mark.parametrize(
    ("numbers", "colluders", "counts"),
    [
        ((20, 20, 20, 0), 1, True),
        ((20, 20, 19, 0), 1, False),
        ((60, 60, 0, 0), 1, False),
        ((60, 60, 60, 0), 2, False),
        ((60, 60, 60, 1), 2, True),
        ((0, 1, 1, counting._FIRST), 1, True),
    ],
)
def test_new_rows_must_be_many_and_at_several_sites(
    monkeypatch: pytest.MonkeyPatch, numbers: tuple[int, ...], colluders: int, counts: bool
) -> None:
    site = counted_site(monkeypatch)
    side: Any = SimpleNamespace(numbers=dict(zip(SITES, numbers, strict=True)), colluders=colluders)
    with nullcontext() if counts else pytest.raises(RefusedError, match="counted again"):
        COUNT._check_recount(site, side)


def test_a_site_confirms_no_other_survivors_than_those_of_the_sum_before(monkeypatch: pytest.MonkeyPatch) -> None:
    site = counted_site(monkeypatch)
    monkeypatch.setattr(Site, "note_opening", lambda *_: None)
    sites = site.plan.sites
    site.state(summing.SumState).exactly[COUNT.proof.name, 9] = frozenset(sites[:3])

    def confirm(*places: int) -> None:
        side = SimpleNamespace(survivors=np.asarray(places, dtype=np.uint32))
        part: Any = SimpleNamespace(side=side, context=SimpleNamespace(sites=sites))
        summing._note_survivors(site, COUNT.proof, 9, part)

    for other in ((0, 1), (0, 1, 3), (0, 1, 2, 3)):
        with pytest.raises(IntegrityError, match="not the sites of the one that it continues"):
            confirm(*other)
    confirm(0, 1, 2)


def test_a_count_is_begun_once(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = SecureCount.share_secret

    def twice(self: SecureCount, hub: Any, stage: int) -> Any:
        yield from honest(self, hub, stage)
        yield from honest(self, replace(hub, sites=hub.sites[:-1]), stage)

    monkeypatch.setattr(SecureCount, "share_secret", twice)
    with pytest.raises(RefusedError, match="answered to another request before"):
        outcome()
    monkeypatch.setattr(
        answers_module, "admit", lambda *_, **__: None
    )  # the count refuses it, too, whatever the contract says
    with pytest.raises(IntegrityError, match="begun here before"):
        outcome()


def test_raw_rows_counted_across_sites_need_a_policy_that_trusts_counts() -> None:
    with pytest.raises(RefusedError, match="does not trust counts"):
        run(
            load_plan(
                {
                    "data": {
                        "table": "memory",
                        "target": "y",
                        "quasi": ["group"],
                        "features": ["x"],
                        "test": 0,
                        **DECLARED,
                    },
                    "sites": {"count": 4},
                    "train": {"rounds": 1},
                    "model": {"kind": "logistic"},
                    "policy": {"raw": True, "min_rows": 1},
                    "method": {"name": "partial", "gate": {"k": K, "released": "raw"}},
                }
            ),
            tables={"": table()},
        )
