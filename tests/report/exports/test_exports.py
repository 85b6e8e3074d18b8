"""Exports of a run: their layouts, and that no value of a cell is in any of them, in a report or in an audit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.runs.config import load_plan
from kohort.runs.run import run

Call = Callable[..., tuple[int, str, str]]
FORMATS = ("evidence", "crate", "card", "annex")
METHODS = {
    "central": {},
    "masks": {"name": "fedavg", "secure": {"sum": "masks"}},
    "partial": {"gate": {"rule": "k-anonymity", "k": 5, "count": "local", "release_k": 5}},
    "additive": {},
    "syntactic": {"anonymise": {"k": 5}},
}


_NETWORK = {"model": {"kind": "logistic"}, "train": {"rounds": 2, "optimizer": "sgd", "lr": 0.1}}


def canaries() -> tuple[pl.DataFrame, list[str]]:
    """A table of 500 rows with an identifier each, rare wards and extreme doses, and the texts of all of these."""
    random = np.random.default_rng(5)
    ids = [f"canary{number:04d}id" for number in range(500)]
    ward = random.choice(["north", "south", "west"], 500).astype(object)
    rare = [f"canaryward{number}" for number in range(5)]
    ward[:5] = rare
    dose = random.integers(1, 9, 500).astype(float)
    dose[5:10] = [9481726.25 + number for number in range(5)]
    age = random.choice([20, 30, 40, 50], 500)
    outcome = np.where(random.random(500) < 0.5, "ill", "well")
    frame = pl.DataFrame({"patient": ids, "ward": ward.tolist(), "dose": dose, "age": age, "outcome": outcome})
    return frame, [*ids, *rare, *(f"{9481726 + number}" for number in range(5))]


@pytest.fixture(scope="module", params=list(METHODS))
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(f"exports-{request.param}")
    frame, _ = canaries()
    frame.write_csv(folder / "table.csv")
    method = {"name": request.param, **METHODS[request.param]}
    plan = load_plan(
        {
            "data": {
                "table": str(folder / "table.csv"), "target": "outcome", "identifiers": ["patient"],
                "quasi": ["age", "ward"], "sensitive": ["outcome"], "features": ["ward", "dose", "age"], "test": 0.3,
            },
            "sites": {"count": 3},
            "policy": {"min_rows": 1, "raw": True},
            "method": method,
            **({} if request.param == "additive" else _NETWORK),
        }
    )  # fmt: skip
    run(plan, out=folder / "run", seed=1)
    return folder / "run"


def test_no_canary_is_in_any_export_report_or_audit(finished: Path, tmp_path: Path, kohort_here: Call) -> None:
    _, secrets = canaries()
    code, table, said = kohort_here("audit", finished, "--shadows", 0, "--out", tmp_path / "audit.json")
    assert code == 0, said
    for name in FORMATS:
        code, _, err = kohort_here(
            "export", finished, "--as", name, "--out", tmp_path / name, "--audit", tmp_path / "audit.json"
        )
        assert code == 0, err
    for edition in ([], ["--external"]):
        page = tmp_path / f"page{len(edition)}.html"
        code, _, err = kohort_here("report", finished, *edition, "--out", page, "--audit", tmp_path / "audit.json")
        assert code == 0, err
        assert "<svg" in page.read_text()  # pictures are drawn as text in the page
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) == 1 + 3 + 4 + 2 * 2
    kept = [*finished.glob("ledger/*"), finished / "run.json", finished / "plan.json"]
    everything = "\n".join([table, said, *(path.read_bytes().decode(errors="replace") for path in [*written, *kept])])
    assert [secret for secret in secrets if secret in everything] == []
    assert len(secrets) >= 500
    outside = "\n".join((tmp_path / f"page1.{ending}").read_text() for ending in ("html", "json"))
    assert str(finished.parent) not in outside  # no path
    assert "site-" not in outside  # no site by name
    assert str(finished.parent) not in (tmp_path / "card").read_text()[:800]  # no path of the table in the metadata


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    plan = load_plan(
        {
            "data": {
                "table": "memory",
                "target": "outcome",
                "features": ["ward", "age"],
                "quasi": ["age"],
                "test": 0.3,
            },
            "sites": {"count": 3},
            "model": {"kind": "logistic"},
            "train": {"rounds": 1, "optimizer": "sgd", "lr": 0.1},
            "policy": {"min_rows": 1},
            "method": {"name": "fedavg"},
        }
    )
    run(plan, out=folder / "run", seed=1, tables={"": canaries()[0].drop("patient", "dose")})
    return folder / "run"


def test_evidence_has_a_record_for_every_kind_of_release(plain: Path, tmp_path: Path, kohort_here: Call) -> None:
    kohort_here("export", plain, "--as", "evidence", "--out", tmp_path / "e.json")
    found = json.loads((tmp_path / "e.json").read_text())
    shown = json.loads((plain / "run.json").read_text())["disclosed"]
    assert len(found["results"]) == len(shown)
    by_kind = {one["properties"]["kind"]: one["status"] for one in found["results"].values()}
    assert by_kind["public"] == "pass"
    assert by_kind["aggregate"] == "review"
    assert found["ledger_head"] == json.loads((plain / "run.json").read_text())["ledger_head"]


def test_raw_rows_fail(plain: Path) -> None:
    from tests.report.test_verdict import item, run_with

    from kohort.report.exports.evidence import evidence_records

    kinds = ("raw", "k-anonymous", "secure-sum", "domain")
    records = evidence_records(run_with(*(item(kind) for kind in kinds)), {})["results"].values()
    assert [one["status"] for one in records] == ["fail", "review", "pass", "review"]  # no k is claimed as verified
    assert plain.is_dir()


def test_the_crate_names_files_that_exist_and_hashes_that_hold(plain: Path, tmp_path: Path, kohort_here: Call) -> None:
    kohort_here("export", plain, "--as", "crate", "--out", tmp_path / "crate")
    graph = json.loads((tmp_path / "crate" / "ro-crate-metadata.json").read_text())["@graph"]
    by_id = {entity["@id"]: entity for entity in graph}
    assert by_id["ro-crate-metadata.json"]["about"] == {"@id": "./"}
    for part in by_id["./"]["hasPart"]:
        content = (tmp_path / "crate" / part["@id"]).read_bytes()
        assert by_id[part["@id"]]["sha256"] == hashlib.sha256(content).hexdigest()
    model = hashlib.sha256((plain / "model" / "model.json").read_bytes()).hexdigest()
    assert by_id["#model/model.json"]["identifier"] == f"sha256:{model}"
    named = [
        value["@id"] for entity in graph for value in entity.values() if isinstance(value, dict) and "@id" in value
    ]
    assert {name for name in named if name.startswith("#")} <= set(by_id)


def test_the_annex_claims_nothing_and_says_what_was_not_measured(
    plain: Path, tmp_path: Path, kohort_here: Call
) -> None:
    kohort_here("export", plain, "--as", "annex", "--out", tmp_path / "annex.md")
    text = (tmp_path / "annex.md").read_text()
    assert "claim compliance with none" in text
    assert text.count("not measured: run kohort audit") >= 3
    for heading in ("WP216", "164.514(b)(1)", "ISO/IEC 27559", "singling out", "linkability", "inference"):
        assert heading in text


def test_the_card_has_the_block_that_hugging_face_reads(plain: Path, tmp_path: Path, kohort_here: Call) -> None:
    kohort_here("export", plain, "--as", "card", "--out", tmp_path / "card.md")
    block = (tmp_path / "card.md").read_text().split("---\n")[1]
    assert "pipeline_tag: tabular-classification" in block
    assert "- type: accuracy" in block
    assert 'name: "memory"' in block


def test_an_altered_run_and_an_unknown_format_are_refused(plain: Path, tmp_path: Path, kohort_here: Call) -> None:
    assert kohort_here("export", plain, "--as", "pdf", "--out", tmp_path / "x")[0] == 2
    card = plain / "model" / "README.md"
    before = card.read_text()
    card.write_text(before + "changed")
    try:
        assert kohort_here("export", plain, "--as", "card", "--out", tmp_path / "x")[0] == 6
    finally:
        card.write_text(before)


def test_the_annex_of_an_audited_run_does_not_call_a_risk_unmeasured(plain: Path, tmp_path: Path) -> None:
    from kohort.report.exports.annex import assessment_annex
    from kohort.report.runs import check_run

    raw = json.loads((plain / "run.json").read_text())
    found = {"attack": "membership: loss threshold", "family": "membership", "on": "the model", "by": "anyone"}
    audited = check_run(
        {**raw, "attacks": [{**found, "success": 0.5, "guess": 0.5, "verdict": "no better"}]}, where="x"
    )
    text = assessment_annex(audited, {})
    assert "audited: no attack of this kind applies to what left" in text
    assert "not measured: run kohort audit" not in text
    assert tmp_path.is_dir()


def test_the_annex_names_each_release_once_and_says_when_only_public_facts_left(plain: Path) -> None:
    from kohort.report.exports.annex import assessment_annex
    from kohort.report.runs import check_run

    raw = json.loads((plain / "run.json").read_text())
    secure = {**raw["disclosed"][0], "kind": "secure-sum", "recipient": "hub"}
    public = {**secure, "kind": "public"}

    def said(*disclosed: dict[str, Any]) -> str:
        run = check_run({**raw, "disclosed": disclosed}, where="x")
        lines = assessment_annex(run, {}).splitlines()
        (answer,) = [line.split(" | ")[1] for line in lines if line.startswith("| what left | ")]
        return answer.removesuffix(" |")

    assert said(public) == "public facts alone"
    assert said(public, secure) == said(secure, {**secure, "what": "another task"})
    assert said(secure).count("hub") == 1
