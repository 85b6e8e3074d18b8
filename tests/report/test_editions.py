"""The external edition: nothing of single sites, machines or files; and PDF by an installed browser."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from tests.report.test_report_page import Reader
from tests.support.run_reports import disclosure, failed, finished

from kohort.errors import ConfigError, ResourceError
from kohort.report.editions import edited, edited_plan
from kohort.report.page import render, write_report
from kohort.report.plan_keys import shown_plan
from kohort.report.printing import find_browser, print_pdf

SECRETS = ("secret-site", "/secret/table.csv", "7771", "8882", "secret note", "secret reason", "secret warning")


def made() -> dict[str, Any]:
    run = finished(
        site_rows={"secret-site": 7771},
        notes=["secret note"],
        warnings=["secret warning"],
        refused={"secret-site": "secret reason"},
        received="/secret/table.csv",
        left_out=[{"what": "secret note", "why": "x", "count": 3}],
        anything_new="secret note",
        baselines={
            "majority": {"accuracy": 0.75},
            "best_site": {"site": "secret-site", "accuracy": 0.8},
            "pooled": {"accuracy": 0.81},
        },
        disclosed=[disclosure("k-anonymous", "k-anonymous(k=5, rows=8882)", in_words="k-anonymous with k = 5")],
    )
    run["metrics"]["by_site"] = {"secret-site": {"rows": 8882, "accuracy": 0.5}}
    return run


def test_the_external_edition_holds_nothing_of_single_sites_and_machines(tmp_path: Path) -> None:
    plan = {"data": {"table": "/secret/table.csv", "target": "y"}, "policy": {"min_k": 8882}, "train": {"rounds": 3}}
    twin = write_report(
        tmp_path / "x.html", [made(), failed(error="secret reason")], title="x", plan=plan, edition="external"
    )
    for content in ((tmp_path / "x.html").read_text(), twin.read_text()):
        assert [one for one in SECRETS if one in content and one != "7771"] == []
    shown = json.loads(twin.read_text())
    assert shown["edition"] == "external"
    assert shown["runs"][0]["rows_held"] == 7771  # the total over all sites stays
    text = Reader((tmp_path / "x.html").read_text()).text
    for kept in ("External edition", "0.8125", "k-anonymous with k = 5", "6fbb47392e457dee7e0a3c47efb72346", "7,771"):
        assert kept in text
    assert "1 took no part" in text
    assert "always the commonest class, accuracy 0.7500; a regression on the rows of all sites, accuracy 0.8100" in text
    assert "secret-site" in render([made()], title="x")


def test_no_count_of_few_rows_can_be_read_from_the_external_edition(tmp_path: Path) -> None:
    found = {
        "attack": "reconstruction: gradient inversion", "family": "reconstruction", "on": "updates of one site",
        "by": "a lying hub", "measure": "share of unique rows read whole", "success": 2 / 39, "guess": 0.0,
        "interval": [0.0142, 0.1698], "verdict": "better than guessing", "note": "secret note",
        "details": {"rows": 2.0, "sites_whole": 0.0},
    }  # fmt: skip
    missed = {**found, "success": None, "guess": None, "interval": None, "verdict": "not attacked", "note": "no rows"}
    calibration = {"of": "the positive class", "bins": [[0.1, 3 / 977, 977]], "gap": 0.01234, "brier": 0.2}
    risk = {
        "rows": 100,
        "quasi": ["age"],
        "before": None,
        "after": {"rows": 90, "largest": 0.2, "mean": 1 / 7, "unique": 3 / 90},
    }
    run = finished(attacks=[found, missed], calibration=calibration, risk={**risk, "why": ""})
    shown = edited(run, "external")
    made = json.dumps(shown)
    assert not [
        one for one in (str(2 / 39), str(3 / 977), str(1 / 7), str(3 / 90), "secret note", "details") if one in made
    ]
    assert shown["attacks"][0]["success"] == 0.051
    assert shown["attacks"][1]["note"] == "no rows"
    assert shown["risk"]["after"] == {"rows": 90, "largest": 0.2, "mean": 0.143, "unique": 0.033}
    assert "confusion" not in shown["metrics"]
    text = Reader(render([run], title="x", edition="external")).text
    assert "mean gap 0.0120" in text
    assert "secret note" in Reader(render([run], title="x")).text


def test_the_internal_edition_is_the_run_itself() -> None:
    assert edited(made(), "internal") == made()
    assert edited_plan({"data": {"table": "t"}}, "internal") == {"data": {"table": "t"}}
    assert edited_plan(None, "external") is None


def test_warnings_and_what_was_left_out_are_on_the_page() -> None:
    run = finished(
        warnings=["one class is never predicted"], left_out=[{"what": "rows", "why": "no target", "count": 12}]
    )
    text = Reader(render([run], title="x")).text
    assert "Warning: one class is never predicted" in text
    assert "Left out: rows (12): no target" in text


def test_the_signer_of_a_ledger_that_is_not_known_is_told_before_anything_else() -> None:
    ledger = {"lines": 3, "releases": 2, "refusals": 0, "notes": []}
    page = render([finished(ledger=ledger)], title="x")
    assert page.index('class="alarm"') < page.index("Summary for data protection")
    assert 'class="alarm"' not in render([finished(ledger={**ledger, "signed_by": "this user"})], title="x")
    several = render([finished(ledger=ledger), finished("b", ledger={**ledger, "signed_by": "u"})], title="x")
    assert "1 of 2 ledgers" in several


def test_every_key_of_a_plan_is_shown_and_no_declared_value() -> None:
    plan = {
        "data": {"table": "t", "categories": {"ward": ["rare"]}, "bounds": {"age": [1, 99]}, "drop": []},
        "method": {"name": "hybrid", "phases": [{"kind": "peers", "rounds": 6}, {"kind": "server", "rounds": 2}]},
    }
    found = dict(shown_plan(plan))
    assert found["data.categories"] == "declared for 1 column"
    assert found["method.phases.2.rounds"] == "2"
    assert "data.drop" not in found
    assert "rare" not in str(found)
    assert "99" not in str(found)


def program(folder: Path, body: str) -> str:
    path = folder / "chromium"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_page_is_printed_by_the_browser_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = 'for a in "$@"; do case $a in --print-to-pdf=*) printf %s "%PDF-1" > "${a#--print-to-pdf=}";; esac; done'
    monkeypatch.setenv("KOHORT_BROWSER", program(tmp_path, body))
    print_pdf(tmp_path / "x.html", tmp_path / "x.pdf", browser=find_browser())
    assert (tmp_path / "x.pdf").read_bytes() == b"%PDF-1"


def test_a_browser_that_fails_leaves_no_file_and_none_at_all_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ResourceError, match="could not print"):
        print_pdf(tmp_path / "x.html", tmp_path / "x.pdf", browser=program(tmp_path, "exit 1"))
    assert not (tmp_path / "x.pdf").exists()
    monkeypatch.delenv("KOHORT_BROWSER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match="none is installed") as error:
        find_browser()
    assert "apt install chromium" in error.value.hint
