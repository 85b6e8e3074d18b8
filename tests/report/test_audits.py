"""Attacks on page one, the recommendation at the end: of the runs they are about, and no rosier than their figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.report.test_verdict import item
from tests.support.run_reports import finished

from kohort.errors import ConfigError, IntegrityError
from kohort.report.audits import with_audits, write_audits
from kohort.report.page import render
from kohort.report.recommend import recommendation
from kohort.report.runs import check_run

FOUND = {
    "attack": "membership: loss threshold", "family": "membership", "on": "the model", "by": "anyone with the model",
    "measure": "area under the curve", "success": 0.7125, "guess": 0.5, "interval": [0.69, 0.73],
    "verdict": "better than guessing", "note": "", "details": {},
}  # fmt: skip


def run_of(name: str, *kinds: str, accuracy: float = 0.8, attack: float | None = None, **more: Any) -> dict[str, Any]:
    made = finished(name, disclosed=[item(kind) for kind in kinds], ledger_head=name, **more)
    made["metrics"]["accuracy"] = accuracy
    if attack is not None:
        verdict = FOUND["verdict"] if attack > 0.55 else "no better than guessing"
        made["attacks"] = [{**FOUND, "success": attack, "verdict": verdict}]
    return made


def test_attacks_stand_on_page_one_beside_a_guess() -> None:
    page = render([run_of("fedavg", "secure-sum", attack=0.7125)], title="A run")
    first = page[: page.index('id="runs-1"')]
    assert "Attacks beside guessing" in first
    assert "0.7125" in first
    assert "0.5000" in first
    assert "which no ledger signs" in first
    assert "the audit reaches 0.713" in first


def test_what_was_not_attacked_is_told_with_its_reason() -> None:
    made = run_of("fedavg", "secure-sum", attack=0.5)
    made["attacks"].append({**FOUND, "success": None, "verdict": "not attacked", "note": "ciphertexts alone"})
    page = render([made], title="A run")
    assert "What was not attacked, and why" in page
    assert "ciphertexts alone" in page


def test_an_audit_is_shown_beside_its_own_run_alone(tmp_path: Path) -> None:
    write_audits(tmp_path / "a.json", [{"ledger_heads": ["one"], "findings": [FOUND]}])
    runs = with_audits([run_of("one", "secure-sum"), run_of("two", "secure-sum")], tmp_path / "a.json")
    assert [len(run["attacks"]) for run in runs] == [1, 0]
    with pytest.raises(ConfigError, match="other runs"):
        with_audits([run_of("two", "secure-sum")], tmp_path / "a.json")


def test_findings_on_two_runs_together_belong_to_neither(tmp_path: Path) -> None:
    write_audits(tmp_path / "a.json", [{"ledger_heads": ["one", "two"], "findings": [FOUND]}])
    with pytest.raises(ConfigError, match="other runs"):
        with_audits([run_of("one", "secure-sum")], tmp_path / "a.json")


@pytest.mark.parametrize(
    "content", ["[]", "{", '{"audits": [{}]}', '{"audits": [{"ledger_heads": ["a"], "findings": [1]}]}']
)
def test_a_damaged_audit_is_exit_6(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(IntegrityError):
        with_audits([run_of("a", "secure-sum")], tmp_path / "a.json")


def trade_off_of(*runs: dict[str, Any]) -> str:
    return " ".join(recommendation([check_run(run, where="a test") for run in runs]))


def test_the_best_score_does_not_win_when_rows_left() -> None:
    said = trade_off_of(
        run_of("central", "raw", accuracy=0.9),
        run_of("partial", "k-anonymous", accuracy=0.89),
        run_of("fedavg", "secure-sum", accuracy=0.8, attack=0.5),
    )
    assert "fedavg has the best accuracy: 0.8000" in said
    assert "central has 0.9000; raw rows left the sites" in said


def test_a_run_whose_members_show_is_not_recommended() -> None:
    said = trade_off_of(
        run_of("leaky", "secure-sum", accuracy=0.9, attack=0.7), run_of("other", "secure-sum", accuracy=0.8)
    )
    assert "other has the best accuracy" in said
    assert "leaky has 0.9000; a membership attack on it is better than guessing" in said


def test_where_the_hub_reads_totals_the_best_run_in_which_sites_alone_do_is_named() -> None:
    sealed = run_of("additive", "secure-sum", accuracy=0.8, attack=0.5)
    sealed["disclosed"] = [{**one, "shown_as": "sealed totals"} for one in sealed["disclosed"]]
    said = trade_off_of(sealed, run_of("trees", "secure-sum", accuracy=0.9, attack=0.5))
    assert "trees has the best accuracy: 0.9000" in said
    assert "The hub reads the totals of trees, and a cell of them may be over few persons." in said
    assert "Of additive, sites alone read the totals; it has 0.8000" in said
    assert "kohort audit tries stronger attacks" in said
    alone = trade_off_of(sealed, run_of("central", "raw", accuracy=0.9))
    assert "additive has the best accuracy" in alone
    assert "The hub reads" not in alone


def test_a_budget_that_leaves_rows_out_bounds_not_every_attack() -> None:
    part = run_of(
        "hybrid",
        "dp",
        epsilon=2.0,
        delta=1e-5,
        unit="row",
        dp={"scope": "rows of high risk; rows of low risk: no guarantee"},
    )
    whole = run_of("fedavg", "dp", epsilon=1.0, delta=1e-5, unit="row", accuracy=0.7)
    assert "No run has a budget over all rows" in trade_off_of(part, run_of("other", "secure-sum"))
    assert "fedavg has 0.7000 with epsilon 1" in trade_off_of(part, whole)


def test_one_run_is_no_choice() -> None:
    assert trade_off_of(run_of("fedavg", "secure-sum")) == ""


def test_the_twin_of_a_report_holds_the_attacks(tmp_path: Path) -> None:
    from kohort.report.page import write_report

    twin = write_report(tmp_path / "page.html", [run_of("fedavg", "secure-sum", attack=0.6)], title="A run")
    assert json.loads(twin.read_text())["runs"][0]["attacks"][0]["success"] == 0.6


RISK = {
    "rows": 6000,
    "quasi": ["age", "sex"],
    "before": {"rows": 6000, "largest": 1.0, "mean": 0.4321, "unique": 0.0717},
    "after": {"rows": 5500, "largest": 0.2, "mean": 0.0613, "unique": 0.0},
    "why": "",
}


def audited(tmp_path: Path, **measured: Any) -> dict[str, Any]:
    write_audits(tmp_path / "a.json", [{"ledger_heads": ["one"], "findings": [FOUND], **measured}])
    return with_audits([run_of("one", "k-anonymous")], tmp_path / "a.json")[0]


def test_risk_before_and_after_stands_on_page_one(tmp_path: Path) -> None:
    page = render([audited(tmp_path, risk=RISK)], title="A run")
    first = page[: page.index('id="runs-1"')]
    for shown in ("before and after", "7.2 %", "43.2 %", "6.1 %", "20.0 %", "counted inside the sites and left none"):
        assert shown in first
    assert "Not counted. <code>kohort audit" in render([run_of("one", "k-anonymous")], title="A run")
    several = render([audited(tmp_path, risk=RISK), run_of("two", "secure-sum")], title="Two")
    assert "before 7.2 %, after 0.0 %" in several


def test_the_external_edition_tells_the_risk_of_what_the_hub_received_alone(tmp_path: Path) -> None:
    from kohort.report.page import write_report

    groups = [{"column": "ward", "groups": [{"name": "west wing", "rows": 60, "score": 0.5}], "unnamed": 0}]
    run = audited(tmp_path, risk=RISK, groups=groups)
    twin = write_report(tmp_path / "x.html", [run, run], title="x", edition="external")
    one = write_report(tmp_path / "y.html", [run], title="x", edition="external")
    for text in (
        twin.read_text(),
        (tmp_path / "x.html").read_text(),
        one.read_text(),
        (tmp_path / "y.html").read_text(),
    ):
        assert not [shown for shown in ("7.2 %", "43.2 %", "0.4321", "0.0717", "west wing") if shown in text]
    assert "counted inside the sites, and not opened" in (tmp_path / "y.html").read_text()
    assert "6.1 %" in (tmp_path / "y.html").read_text()
    assert json.loads(one.read_text())["runs"][0]["risk"]["after"]["mean"] == 0.061  # to thousandths


def test_no_row_left_is_said_instead_of_a_figure(tmp_path: Path) -> None:
    page = render([audited(tmp_path, risk={**RISK, "after": None})], title="A run")
    assert "no row left the sites: there is none to pick" in page
    closed = render([audited(tmp_path, risk={**RISK, "before": None, "why": "no quasi-identifiers"})], title="A run")
    assert "Not counted: no quasi-identifiers." in closed


def test_calibration_and_groups_are_shown_to_the_modeller(tmp_path: Path) -> None:
    calibration = {
        "of": "the positive class",
        "bins": [[0.25, 0.31, 500], [0.75, 0.68, 500]],
        "gap": 0.065,
        "brier": 0.3,
    }
    groups = [{"column": "ward", "groups": [{"name": "west wing", "rows": 60, "score": 0.5}], "unnamed": 12}]
    page = render([audited(tmp_path, calibration=calibration, groups=groups)], title="A run")
    for shown in ("mean gap 0.0650", "0.310", "west wing", "smaller groups are not named"):
        assert shown in page


@pytest.mark.parametrize("key", ["risk", "calibration", "groups"])
def test_a_damaged_measure_of_an_audit_is_exit_6(tmp_path: Path, key: str) -> None:
    with pytest.raises(IntegrityError):
        audited(tmp_path, **{key: {"rows": "many"}})


def test_page_one_has_purpose_date_and_parties() -> None:
    from kohort.report.about import About

    run = run_of("fedavg", "secure-sum", ledger={"lines": 1, "releases": 1, "refusals": 0, "signer": "f00d"})
    page = render([run], title="A run", about=About("readmission\u202e study", "2026-11-17"))
    first = page[: page.index("Summary for data protection</h2>")]
    for shown in (
        "readmission\\u202e study",
        "2026-11-17",
        "3 sites (site-00000, site-00001, site-00002)",
        "recipients: hub",
    ):
        assert shown in first
    assert "f00d" in page
    outside = render([run], title="A run", edition="external")
    assert "3 sites; recipients: hub" in outside
    assert "not stated (kohort report --purpose)" in outside
