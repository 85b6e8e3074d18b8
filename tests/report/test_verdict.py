"""The first page of a report: derived from what left, never rosier than it."""

from __future__ import annotations

import pytest
from tests.report.test_report_page import HOSTILE, Reader, without_own_script
from tests.support.run_reports import disclosure, finished

from kohort.report.flow import flow_picture
from kohort.report.page import render
from kohort.report.runs import Run, check_run
from kohort.report.verdict import verdict_on

RISK = {
    "rows": 9,
    "quasi": ["age"],
    "before": {"rows": 9, "largest": 1.0, "mean": 0.4, "unique": 0.0031},
    "after": None,
}
NOISE = {"epsilon": 0.5, "delta": 1e-5, "unit": "row"}


def run_with(*disclosed: dict[str, object], **more: object) -> Run:
    return check_run(finished("fedavg", disclosed=list(disclosed), **more), where="a test")


def item(kind: str, *, rows: int = 100, size: int = 4000, recipient: str = "hub") -> dict[str, object]:
    return {**disclosure(kind, f"{kind}(rows={rows})", recipient=recipient, what="task"), "rows": rows, "size": size}


@pytest.mark.parametrize(
    ("kinds", "headline", "tone"),
    [
        (("raw", "dp"), "Raw rows left the sites", "open"),
        (("k-anonymous", "secure-sum"), "Generalised rows left the sites", "guarded"),
        (("k-km", "aggregate"), "Generalised rows and numbers of single sites left the sites", "partial"),
        (("aggregate", "dp", "secure-sum"), "Numbers of single sites left them", "partial"),
        (("cells", "secure-sum"), "Only totals can be read, some over few persons", "partial"),
        (("dp", "secure-sum"), "Noisy results left the sites", "guarded"),
        (("secure-sum", "encrypted"), "Only totals over several sites can be read", "guarded"),
        ((), "Nothing but public facts left the sites", "guarded"),
        (("from a plug-in",), "See what left below", "partial"),
    ],
)
def test_the_headline_is_the_weakest_release(kinds: tuple[str, ...], headline: str, tone: str) -> None:
    verdict = verdict_on(run_with(item("public"), *(item(kind) for kind in kinds)))
    assert (verdict.headline, verdict.tone) == (headline, tone)


def test_a_few_bytes_about_anonymous_rows_are_counts() -> None:
    verdict = verdict_on(run_with({**item("k-anonymous", rows=22_793, size=880), "releases": 10}, item("aggregate")))
    assert verdict.headline == "Numbers of single sites left them"
    counts = run_with({**item("k-anonymous", rows=22_793, size=880), "releases": 10}).disclosed[0]
    assert counts.label == "counts of k-anonymous rows"
    assert run_with(item("k-anonymous", rows=100, size=100)).disclosed[0].label == "k-anonymous rows"


def test_less_than_a_byte_per_row_is_classes_and_no_page_says_that_no_row_left() -> None:
    classes = {**item("k-km", rows=22_793, size=14_496), "releases": 10}
    run = run_with(classes, item("aggregate"), risk=RISK)
    verdict = verdict_on(run)
    assert run.disclosed[0].label == "classes of (k, k^m)-anonymous rows"
    assert verdict.headline == "Classes of generalised rows and numbers of single sites left the sites"
    assert verdict.sentences[2].startswith("Classes that left cannot be called back")
    assert any("intersecting their classes" in text for text in verdict.unprotected)
    page = finished("syntactic", disclosed=[classes], risk=RISK)
    assert "classes of at least k rows left, and no row by itself" in Reader(render([page], title="x")).text
    several = Reader(render([page, finished("fedavg", risk=RISK)], title="x")).text
    assert "before 0.31 %, classes left, no single row" in several
    assert "before 0.31 %, no row left" in several  # fedavg's


def test_a_table_beside_classes_is_rows() -> None:
    classes = {**item("k-km", rows=22_793, size=14_496), "releases": 10}
    run = run_with(classes, item("k-anonymous", rows=100, size=100))
    assert verdict_on(run).headline == "Generalised rows left the sites"
    assert not run.only_classes_left


def test_releases_from_no_rows_show_a_dash_and_no_name_of_a_task_among_the_results() -> None:
    page = render(
        [finished("fedavg", disclosed=[item("encrypted", rows=0, size=11_800), item("secure-sum")])], title="x"
    )
    results, left = page.split('id="left"')
    assert "to <bdi>hub</bdi>, 10 releases" in results
    assert 'data-label="rows">–</td>' in left  # noqa: RUF001 - an en dash
    assert 'data-label="rows">0</td>' not in left


def test_a_budget_is_a_headline_and_its_absence_too() -> None:
    assert verdict_on(run_with(item("dp"), **NOISE)).budget == "Epsilon 0.5, delta 1e-05, for each row"
    bare = verdict_on(run_with(item("secure-sum")))
    assert bare.budget.startswith("No privacy budget")
    assert any("kohort audit" in text for text in bare.unprotected)


@pytest.mark.parametrize(
    ("ledger", "said"),
    [
        (None, "no ledger"),
        ({"lines": 3, "releases": 1, "refusals": 0}, "signer is not known"),
        ({"lines": 3, "releases": 1, "refusals": 0, "signed_by": "this user"}, None),
    ],
)
def test_an_unknown_signer_is_said_on_the_first_page(ledger: dict[str, object] | None, said: str | None) -> None:
    texts = " ".join(verdict_on(run_with(item("secure-sum"), ledger=ledger)).unprotected)
    assert said is None or said in texts
    assert said is not None or ("ledger" not in texts and "signer" not in texts)


def test_totals_without_noise_may_be_over_few_persons_on_every_page() -> None:
    run = finished("trees", disclosed=[item("secure-sum")])
    for runs in ([run], [run, finished("other")]):
        assert "may be over few persons" in Reader(render(runs, title="x")).text
    noisy = finished("additive", disclosed=[item("secure-sum")], **NOISE)
    assert "may be over few persons" not in Reader(render([noisy], title="x")).text


def test_a_simulation_and_the_sites_that_took_no_part_are_said() -> None:
    verdict = verdict_on(run_with(item("secure-sum"), refused={"north": "policy"}, dropped={"south": "late"}))
    assert "2 took no part or dropped out" in verdict.sentences[0]
    assert any("one process" in text for text in verdict.unprotected)
    served = verdict_on(run_with(item("secure-sum"), engine="flower"))
    assert not any("one process" in text for text in served.unprotected)


def test_the_picture_has_an_arrow_per_recipient_and_kind_and_wider_ones_for_more_bytes() -> None:
    drawn = flow_picture(
        run_with(item("dp", size=10), item("dp", size=20), item("aggregate", size=9000, recipient="peers"))
    )
    assert drawn is not None
    assert drawn.count("<line") == 2
    widths = [float(part.split('"')[0]) for part in drawn.split('stroke-width="')[1:]]
    assert widths[1] > widths[0]
    assert flow_picture(run_with()) is None


def test_hostile_names_are_text_in_the_picture_too() -> None:
    page = render([finished(HOSTILE, disclosed=[item(HOSTILE, recipient=HOSTILE)])], title="x")
    calm = render([finished(disclosed=[item("dp")])], title="x")
    assert set(Reader(page).tags) <= set(Reader(calm).tags)
    assert "<script" not in without_own_script(page)


def test_what_rows_and_sums_leave_open_is_on_page_one() -> None:
    rows = verdict_on(run_with(item("k-anonymous", size=4000)))
    assert any("intersecting their classes" in text for text in rows.unprotected)
    counts = verdict_on(run_with(item("k-anonymous", size=8)))
    assert not any("intersecting" in text for text in counts.unprotected)
    sums = verdict_on(run_with(item("secure-sum")))
    assert any("collude" in text for text in sums.unprotected)


def test_a_budget_that_leaves_something_out_does_not_claim_to_bound_everything() -> None:
    part = {**NOISE, "dp": {"scope": "rows of high risk; rows of low risk: no guarantee", "whom": "row"}}
    verdict = verdict_on(run_with(item("dp"), item("aggregate"), **part))
    assert "what else left has no noise" in verdict.sentences[2]
    assert "rows of low risk: no guarantee" in verdict.budget
    exact = verdict_on(run_with(item("dp"), item("aggregate"), **NOISE))
    assert "what else left has no noise" in exact.sentences[2]
    counted = verdict_on(run_with(item("dp"), item("secure-sum"), **NOISE))  # such as exact counts for the domain
    assert "what else left has no noise" in counted.sentences[2]
    whole = verdict_on(run_with(item("dp"), item("encrypted"), **NOISE, dp={"scope": "all rows"}))
    assert whole.sentences[2] == "Noise bounds what any result tells of one row."
    assert whole.budget.endswith("for each row")


def test_raw_rows_are_not_called_generalised() -> None:
    assert "generalised" not in verdict_on(run_with(item("raw"))).sentences[2]
    assert "generalised" in verdict_on(run_with(item("k-anonymous"))).sentences[2]
