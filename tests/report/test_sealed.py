"""Totals that sites alone read: what a page says of them is what the hub has."""

from __future__ import annotations

from typing import Any

import pytest
from tests.report.test_report_page import Reader
from tests.support.run_reports import disclosure, finished

from kohort.methods.additive.method import TRAINING
from kohort.methods.learners import Learners
from kohort.methods.trees.method import TRAINING as TREES
from kohort.report.editions import edited
from kohort.report.flow import flow_picture
from kohort.report.page import render
from kohort.report.runs import check_run
from kohort.report.sealed import described, sealed_totals
from kohort.report.verdict import verdict_on
from kohort.report.words import DISCLOSED, DISCLOSED_SPLITS, SEALED, SEALED_TOTALS, kind_named

SHARE = "secure-sum(sites=10, threshold=7, colluders=1, opens=hub: the total)"


def left(*tasks: str) -> list[dict[str, Any]]:
    return [disclosure("secure-sum", SHARE, what=task, rows=303, size=4000) for task in tasks]


def additive(**more: Any) -> dict[str, Any]:
    entries = described(left(TRAINING.total.name, TRAINING.tell.name), {"method": {"name": "additive"}})
    return finished("additive", disclosed=[disclosure("public", "public(what=row count)"), *entries], **more)


@pytest.mark.parametrize(("method", "kind"), [("additive", DISCLOSED), ("trees", DISCLOSED_SPLITS)])
def test_the_tasks_of_learners_are_known_also_as_the_learner_of_another_method(method: str, kind: str) -> None:
    for training in ({"additive": TRAINING, "trees": TREES}[method], Learners("a-method").trainings[method]):
        items = left(training.total.name, training.tell.name)
        assert sealed_totals(items, None) == {training.total.name}
        assert [item["shown_as"] for item in described(items, None)] == [SEALED_TOTALS, kind]


def test_the_verdict_on_a_forest_names_its_splits() -> None:
    entries = described(left(TREES.total.name, TREES.tell.name), {"method": {"name": "trees"}})
    found = verdict_on(check_run(finished("trees", disclosed=entries), where="a test"))
    assert found.headline == "The hub reads bins, splits and the model; sites alone read totals"
    assert "how trees split" in " ".join(found.sentences)
    assert "rounded" not in " ".join(found.sentences)
    assert SEALED in found.unprotected


@pytest.mark.parametrize(
    ("tasks", "plan"),
    [
        ((TRAINING.total.name,), None),  # with a budget nothing is sealed, and nothing told
        ((TRAINING.total.name, TRAINING.tell.name), {"method": {"metric": "gram"}}),
        (("silo.additive.total", "silo.additive.disclose"), {"method": {"additive": {"metric": "gram"}}}),
        (("additive.total", "additive.tell"), None),  # an earlier version, whose sums of residuals the hub read
    ],
)
def test_totals_that_the_hub_reads_are_not_called_sealed(tasks: tuple[str, ...], plan: dict[str, Any] | None) -> None:
    assert not sealed_totals(left(*tasks), plan)
    assert not any("shown_as" in item for item in described(left(*tasks), plan))


def test_the_verdict_names_what_the_hub_reads_and_what_sites_read() -> None:
    entries = verdict_on(check_run(additive(), where="a test"))
    assert entries.headline == "The hub reads bins, their counts and the model; sites alone read totals"
    assert "bins, counts and model from 303 rows, to hub" in entries.sentences[1]
    assert "may be over few persons" not in " ".join(entries.sentences)
    assert SEALED in entries.unprotected
    both = [*described(left("additive.total", "additive.disclose"), None), *left("other.sum")]
    mixed = verdict_on(check_run(finished("x", disclosed=both), where="a test"))
    assert mixed.headline == "Only totals over several sites can be read"
    assert SEALED in mixed.unprotected


@pytest.mark.parametrize("edition", ["internal", "external"])
def test_every_edition_tells_sealed_totals_from_what_was_told(edition: Any) -> None:
    page = Reader(render([additive()], title="x", edition=edition)).text
    for name in (SEALED_TOTALS, DISCLOSED):
        assert kind_named(name).label in page
        assert kind_named(name).sentence in page
    assert kind_named("secure-sum").sentence not in page
    assert "the hub can read only the total" not in page
    shown = {item.get("shown_as") for item in edited(additive(), edition)["disclosed"]}
    assert shown == {None, SEALED_TOTALS, DISCLOSED}


def test_the_picture_has_an_arrow_of_its_own_for_what_the_hub_reads() -> None:
    picture = flow_picture(check_run(additive(), where="a test")) or ""
    assert picture.count("<g>") == 3
    assert kind_named(SEALED_TOTALS).color in picture
    assert kind_named(DISCLOSED).color in picture


@pytest.mark.parametrize(
    ("rounds", "measured", "drawn"),
    [(12, (1, 12), False), (2, (1, 2), True), (12, (12,), False), (12, (1, 6, 12), True)],
)
def test_a_line_over_rounds_is_drawn_only_where_rounds_were_measured(
    rounds: int, measured: tuple[int, ...], drawn: bool
) -> None:
    history = [{"round": n, **({"accuracy": 0.8} if n in measured else {})} for n in range(1, rounds + 1)]
    page = render([additive(history=history)], title="x")
    assert ("after each round" in page) is drawn
    beside = render([additive(history=history), finished("fedavg")], title="x")
    assert ("measured at its end alone" in beside) is not drawn
