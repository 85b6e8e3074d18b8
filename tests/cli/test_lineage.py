"""`kohort lineage`: what a site contributed, from ledgers that verify."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.conftest import PLAN, small_table

from kohort.privacy.releases import ReleaseAccount, units_of
from kohort.runs.config import read_plan
from kohort.runs.lineage import lineage_of
from kohort.runs.run import run

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lineage")
    small_table().write_csv(folder / "table.csv")
    (folder / "plan.toml").write_text(
        PLAN.format(table=folder / "table.csv") + '[method]\nname = "fedavg"\n', encoding="utf-8"
    )
    run(read_plan(folder / "plan.toml"), out=folder / "out", seed=1)
    return folder / "out"


def test_releases_rounds_and_models_are_those_of_the_ledger(finished: Path, kohort_here: Call) -> None:
    lines = [json.loads(line) for line in (finished / "ledger" / "ledger.jsonl").read_text().splitlines()]
    site = lines[0]["site"]
    code, shown, said = kohort_here("lineage", site, finished, "--json")
    assert code == 0, said
    found = json.loads(shown)
    own = [line for line in lines if line["site"] == site and line["event"] == "release"]
    (traced,) = found["runs"]
    assert Counter({item["what"]: item["releases"] for item in traced["contributions"]}) == Counter(
        line["what"] for line in own
    )
    assert sum(item["size"] for item in traced["contributions"]) == sum(line["size"] for line in own)
    trained = next(item for item in traced["contributions"] if item["kind"] == "aggregate")
    rounds = [line["round"] for line in own if line["guarantee"]["kind"] == "aggregate"]
    assert trained["rounds"] == [min(rounds), max(rounds)]
    assert len(set(rounds)) == 2
    assert "model/model.json" in traced["models"]
    assert any("train again without" in text for text in traced["forgetting"])
    assert any("cannot be called back" in text for text in traced["forgetting"])


def test_an_unknown_site_is_named_with_those_there_are(finished: Path, kohort_here: Call) -> None:
    code, _, said = kohort_here("lineage", "nobody", finished)
    assert code == 2
    assert "knows no site 'nobody'" in said


@pytest.mark.parametrize("file", ["model/model.json", "ledger/ledger.jsonl"])
def test_a_changed_run_is_not_traced(finished: Path, tmp_path: Path, kohort_here: Call, file: str) -> None:
    site = json.loads((finished / "ledger" / "ledger.jsonl").read_text().splitlines()[0])["site"]
    copied = tmp_path / "out"
    shutil.copytree(finished, copied)
    content = bytearray((copied / file).read_bytes())
    content[len(content) // 2] ^= 1
    (copied / file).write_bytes(bytes(content))
    code, shown, _ = kohort_here("lineage", site, copied, "--json")
    assert (code, shown) == (6, "")


def test_a_site_that_sent_counts_alone_is_in_no_model(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kohort.runs import lineage as subject

    lines = [json.loads(line) for line in (finished / "ledger" / "ledger.jsonl").read_text().splitlines()]
    site = lines[0]["site"]
    public = [line for line in lines if line["event"] != "release" or line["guarantee"]["kind"] == "public"]
    monkeypatch.setattr(subject, "read_lines", lambda path: iter(public))
    found = lineage_of(site, finished)
    assert found.contributions
    assert not found.models
    assert not found.forgetting


def test_a_person_is_looked_up_by_digest(finished: Path, tmp_path: Path, kohort_here: Call) -> None:
    frame = small_table(6).with_columns(patient=np.array(["p1", "p1", "p2", "p2", "p3", "p3"]))
    account = tmp_path / "account.jsonl"
    releases = ReleaseAccount(account)
    releases.admit("first.csv", units_of(frame[:4], "patient"), np.array([0, 0, 0, 0]), meets=lambda rows: True)
    releases.admit("second.csv", units_of(frame[4:], "patient"), np.array([0, 0]), meets=lambda rows: True)
    site = json.loads((finished / "ledger" / "ledger.jsonl").read_text().splitlines()[0])["site"]
    code, shown, _ = kohort_here("lineage", site, finished, "--person", "p2", "--account", account, "--json")
    assert (code, json.loads(shown)["person_in"]) == (0, ["first.csv"])
    code, shown, _ = kohort_here("lineage", site, finished, "--person", "p4", "--account", account, "--json")
    assert json.loads(shown)["person_in"] == []
    assert "p2" not in account.read_text()
    code, _, said = kohort_here("lineage", site, finished, "--person", "p2")
    assert code == 2
    assert "no release account" in said


def test_without_a_site_the_sites_of_the_run_are_named(finished: Path, kohort_here: Call) -> None:
    site = json.loads((finished / "ledger" / "ledger.jsonl").read_text().splitlines()[0])["site"]
    code, _, err = kohort_here("lineage", finished)
    assert code == 2
    assert "needs the name of a site" in err
    assert site in err
    code, _, err = kohort_here("lineage", site)
    assert code == 2
    assert f"kohort lineage {site} DIR" in err.replace("\n", " ")
