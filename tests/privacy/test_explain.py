"""A contract in words: every step is listed, with its number, its recipient and its weakest claim."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kohort.methods.registry import methods
from kohort.privacy.claim_words import claim_in_words
from kohort.privacy.contract import Contract, Step
from kohort.privacy.explain import explain
from kohort.privacy.guarantee import DP, Aggregate, DomainClaim, Guarantee, KAnonymous, KKm, Public, Raw, SecureSum
from kohort.runs.agreed import approved_plan_for
from kohort.runs.config import Plan
from kohort.runs.explain import explain_plan
from kohort.runs.simulation import schema_of
from kohort.testing.federation import plan_of, tables

ROWS = Public(what="row count")
SUM = SecureSum(sites=5, threshold=4, colluders=2, opens="hub: the total")


def plans() -> dict[str, Plan]:
    """Every registered method with its example, and the options that change what fedavg asks."""
    found = {name: plan_of(name) for name in methods()}
    step = {"batch": 0, "local_epochs": 1, "optimizer": "sgd"}
    dp = {"epsilon": 0.7, "delta": 1e-4}
    found["fedavg masks"] = plan_of("fedavg", own={"secure": {"sum": "masks"}})
    found["fedavg bfv"] = plan_of("fedavg", own={"secure": {"sum": "bfv", "colluders": 2}})
    found["fedavg dp"] = plan_of("fedavg", own={"dp": dp}, train=step)
    found["fedavg masks dp"] = plan_of("fedavg", own={"dp": dp, "secure": {"sum": "masks"}}, train=step)
    found["oneshot peers"] = plan_of("oneshot", own={"oneshot": {"statistics_to": "peers"}})
    found["partial raw"] = plan_of("partial", own={"gate": {"released": "raw", "count": "local"}})
    return found


PLANS = plans()


def explained(*steps: Step, keep_days: int | None = None, optional: tuple[str, ...] = ()) -> str:
    return explain(Contract.of(steps), method="m", plan_hash="ab", keep_days=keep_days, optional=optional).text


@pytest.mark.parametrize("name", PLANS)
def test_every_step_of_a_runs_contract_is_explained(name: str) -> None:
    plan = PLANS[name]
    columns = tables()["a-small"].columns
    schema = schema_of(plan.data, columns, codebook=None, default=None)
    sites = tuple(tables())
    contract = approved_plan_for(plan, schema=schema, run="ab" * 8, sites=sites).contract
    found = explain_plan(plan)
    listed = [(step.task, step.times, step.to, step.rows) for step in (*found.steps, *found.set_up)]
    wanted = [(step.task, step.times, step.to, step.rows) for step in contract]
    # A plan does not know all columns: under a budget, it says what learning the domain of others would ask.
    asked = {step.task for step in contract}
    steps = [step for step in found.steps if step.task in asked or not step.task.startswith("domain.")]
    assert len(steps) == sum(step.ordered for step in contract)
    assert set(wanted) <= set(listed)
    for step, explained in zip((step for step in contract if step.ordered), steps, strict=True):
        assert step.says in explained.what
        if step.task != "describe":  # its claim names columns, and a plan does not know them all
            assert set(step.claims) == set(explained.claims)
    assert all(step.says in " ".join(found.text.split()) for step in contract)


@pytest.mark.parametrize("name", PLANS)
def test_the_explanation_depends_on_the_plan_alone_and_is_json(name: str) -> None:
    mapping = explain_plan(PLANS[name]).to_mapping()
    assert json.loads(json.dumps(mapping, allow_nan=False)) == json.loads(json.dumps(mapping))
    assert mapping["plan_hash"] == PLANS[name].digest()
    assert explain_plan(PLANS[name]).text == explain_plan(PLANS[name]).text


def test_numbers_recipients_and_claims_are_in_words() -> None:
    text = " ".join(
        explained(
            Step(task="count", says="your row count", claims=(ROWS,)),
            Step(task="sum", says="a share", claims=(SUM, ROWS), rounds=range(60), sites=5),
            Step(task="swap", says="your model", claims=(Aggregate(rows=0),), rounds=range(2), to="peers"),
        ).split()
    )
    assert "To the hub; read as it is, and treated as public: - once: your row count." in text
    assert "To the hub; masked; the hub can read only the total over at least 5 sites, while at most 2 sites" in text
    assert "work with the hub: - 60 times: a share." in text
    assert "To the sites you train with, sealed so that the hub cannot read it; read as it is" in text
    assert "by a lying peer: - 2 times: your model." in text
    assert "Nothing else." in text


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        (Aggregate(rows=0), "rows can be worked out from it by a lying hub"),
        (Raw(rows=0), "raw rows, no protection"),
        (Raw(rows=0, counted_by="other sites"), "on the counts of other sites"),
        (DP(epsilon=0.5, delta=1e-5, unit="person"), "within epsilon 0.5 and delta 1e-05 per person"),
        (KAnonymous(k=10, l=2, verified=True), "k-anonymous with k = 10, l = 2, verified"),
        (KAnonymous(k=10), "k-anonymous with k = 10, not verified"),
        (KKm(k=4, m=2, verified=True), "k = 4 and m = 2"),
        (DomainClaim(columns=("age",)), "values and ranges of your rows"),
    ],
)
def test_each_claim_has_words_of_its_own(claim: Guarantee, words: str) -> None:
    assert words in claim_in_words(claim)


def test_a_claim_of_an_extension_is_shown_by_its_own_text() -> None:
    class Sketch(Guarantee):
        kind = "sketch-in-a-test"

    assert claim_in_words(Sketch()) == Sketch().shown


def test_a_lying_hub_reads_rows_from_plain_averaging_and_only_totals_from_sums() -> None:
    plain, masked = explain_plan(PLANS["fedavg"]), explain_plan(PLANS["fedavg masks"])
    assert plain.lying_hub[0].startswith("Your rows")
    assert not any(sentence.startswith("Your rows") for sentence in masked.lying_hub)
    assert any(sentence.startswith("Totals over at least 3 sites") for sentence in masked.lying_hub)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("central", ("leave your site as they are", "A lying hub can read rows")),
        ("fedavg", ("No row of yours leaves", "A lying hub can read rows")),
        ("fedavg masks", ("No row of yours leaves", "does not get numbers of your site alone", "takes nothing")),
        ("fedavg bfv", ("No row of yours leaves", "totals over at least 4 sites")),
        ("fedavg masks dp", ("No row of yours leaves", "carries noise", "takes epsilon 0.7 and delta 0.0001")),
        ("trees", ("No row of yours leaves", "Every site, or a hub with a site on its side, reads further totals")),
        ("oneshot", ("does not get numbers of your site alone", "These may show single persons")),
        ("additive", ("No row of yours leaves", "does not get numbers of your site alone", "a hub with a site on its")),
        ("partial", ("generalised in classes", "A lying hub can read rows")),
        ("oneshot peers", ("No row of yours leaves", "A lying")),
    ],
)
def test_the_answer_in_short_comes_first(name: str, words: tuple[str, ...]) -> None:
    found = explain_plan(PLANS[name])
    said = " ".join(found.in_short)
    assert all(word in said for word in words), said
    assert found.text.index("In short") < found.text.index("everything the plan may ever ask")
    if "single persons" in said:
        assert any("single persons" in line or "pairs" in line for line in found.lying_hub)


def test_words_are_explained_where_they_occur() -> None:
    masked, noisy = explain_plan(PLANS["fedavg masks"]), explain_plan(PLANS["fedavg dp"])
    assert any(word.startswith("masked:") for word in masked.words)
    assert not any(word.startswith(("key-holder:", "epsilon,")) for word in masked.words)
    assert any(word.startswith("epsilon,") for word in noisy.words)


def test_the_book_is_told_where_it_is_kept_and_where_it_is_not() -> None:
    book, rounds = "none opens that, together with earlier ones", "totals leave out whole public groups"
    declared = {"bounds": {"age": (0, 99), "dose": (0, 9)}, "categories": {"ward": ("a",), "outcome": ("ill", "well")}}
    trained, solved = explain_plan(PLANS["fedavg masks"]), explain_plan(PLANS["oneshot"])
    assert any(book in sentence for sentence in solved.lying_hub)
    assert not any(rounds in sentence for sentence in solved.lying_hub)
    assert any(rounds in sentence for sentence in trained.lying_hub)
    noisy = explain_plan(replace(PLANS["fedavg masks dp"], data=replace(PLANS["fedavg"].data, **declared)))
    assert not any(book in sentence or rounds in sentence for sentence in noisy.lying_hub)
    assert any("The totals are noisy" in sentence for sentence in noisy.lying_hub)


def test_a_domain_that_may_be_declared_is_learned_at_most_once() -> None:
    steps = {step.task: step for step in explain_plan(PLANS["fedavg masks"]).steps}
    assert "describe" not in steps
    assert steps["domain.names"].often == "at most once"
    assert steps["sum.updates"].often == f"{PLANS['fedavg masks'].train.rounds} times"


def test_the_key_holder_is_named_where_it_opens() -> None:
    text = explain_plan(PLANS["fedavg bfv"]).text
    assert "The key-holder, a party apart from the hub, opens each encrypted total once" in " ".join(text.split())
    assert "over at least 4 sites" in text  # two colluders
    found = explain_plan(PLANS["fedavg bfv"]).key_holder
    assert [(step.task, step.often) for step in found] == [
        ("sum.keys", "once per sum"),
        ("sum.open", "once per sum"),
    ]
    assert "over at least" in found[1].protection
    assert not explain_plan(PLANS["fedavg masks"]).key_holder
    assert "key-holder" not in explain_plan(PLANS["fedavg masks"]).text


def test_the_price_is_the_whole_plans() -> None:
    paid = explain_plan(PLANS["fedavg masks dp"])
    assert (paid.epsilon, paid.delta) == (0.7, 1e-4)
    assert "Epsilon 0.7" in paid.text
    assert explain_plan(PLANS["fedavg masks"]).epsilon == 0
    assert "Nothing is taken from your privacy budget" in explain_plan(PLANS["fedavg masks"]).text


def test_retention_is_told_only_where_rows_are_received() -> None:
    rows = Step(task="ship", says="rows", claims=(Raw(rows=0),), rows=True)
    assert "deletes received rows after 30 days" in explained(rows, keep_days=30)
    assert "The plan sets no date" in explained(rows)
    assert "none are kept" in explained(Step(task="n", says="a count", claims=(ROWS,)), keep_days=30)
    assert explain_plan(PLANS["partial"]).keep_days == 365
    assert explain_plan(PLANS["silo"]).keep_days is None


def test_a_set_up_that_several_sums_share_is_listed_once() -> None:
    set_up = Step(task="keys", says="public keys", claims=(ROWS,), ordered=False)
    first = Step(task="a", says="a sum", claims=(SUM,), sites=3)
    found = explain(Contract.of([set_up, first], [set_up, first]), method="m", plan_hash="ab")
    assert len(found.set_up) == 1
    assert len(found.steps) == 2
    assert found.text.count("public keys") == 1


def test_equal_steps_of_two_phases_are_both_listed() -> None:
    phases = [Step(task="train", says="weights", claims=(ROWS,), phase=number) for number in range(2)]
    assert len(explain(Contract.of(phases), method="m", plan_hash="ab").steps) == 2


def test_a_step_that_may_not_come_says_at_most() -> None:
    step = Step(task="describe", says="ranges", claims=(ROWS,))
    assert "at most once: ranges" in explained(step, optional=("describe",))
    assert "at most 3 times: ranges" in explained(
        Step(task="count", says="ranges", claims=(ROWS,), rounds=range(3), every=3)
    )


@pytest.mark.parametrize(
    ("name", "openers"),
    [
        ("fedavg", ["Everything that is neither"]),
        ("fedavg masks", ["The hub opens each masked total", "Everything that is neither"]),
        ("fedavg bfv", ["The key-holder, a party apart", "Everything that is neither"]),
        (
            "oneshot peers",
            ["The hub opens each masked total", "What is sealed to other sites", "Everything that is neither"],
        ),
    ],
)
def test_it_is_said_who_opens_what(name: str, openers: list[str]) -> None:
    said = explain_plan(PLANS[name]).opens
    assert len(said) == len(openers)
    assert all(sentence.startswith(opener) for sentence, opener in zip(said, openers, strict=True))


def test_a_plan_that_sends_nothing_in_clear_does_not_say_so() -> None:
    masked = Step(task="sum", says="a share", claims=(SUM,), sites=5)
    found = explain(Contract.of([masked]), method="m", plan_hash="ab")
    assert [sentence.split(",")[0] for sentence in found.opens] == ["The hub opens each masked total"]


def test_how_long_rows_are_kept_is_what_the_method_says_and_no_attribute_of_its_config(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = plan_of("central")
    assert explain_plan(plan).keep_days is None
    bent = replace(methods()["central"], keep_days=lambda _: 7)
    monkeypatch.setattr("kohort.runs.explain.find_method", lambda _: bent)
    assert explain_plan(plan).keep_days == 7
    assert explain_plan(plan_of("partial")).keep_days == 7
    assert methods()["partial"].keep_days(plan_of("partial", own={"gate": {"keep_days": 9}}).config) == 9
