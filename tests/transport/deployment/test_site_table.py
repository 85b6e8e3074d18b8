"""A real site's table: from a database, mapped at home, and its profile through the door."""

from __future__ import annotations

import json
import sqlite3
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

pytest.importorskip("flwr")

from tests.support.hospitals import clean_hospital, messy_hospital

from kohort.crypto.identity.roster import Roster
from kohort.crypto.sealed import Identity
from kohort.errors import ConfigError, RefusedError
from kohort.privacy.policy import Policy
from kohort.rng import Streams
from kohort.runs.config import load_plan
from kohort.runs.simulation import populate
from kohort.tables.harmonise.mapping import TableMapping
from kohort.tables.schema import Schema
from kohort.transport.deployment.backend import FlowerBackend
from kohort.transport.deployment.files import Invitation
from kohort.transport.deployment.hub import HubFolder
from kohort.transport.deployment.site import SiteFolder
from kohort.transport.deployment.site_run import SiteResources, hub_schema, require_mapping
from kohort.transport.deployment.site_table import read_site_table
from kohort.transport.flower.run import FlowerRun

Here = Callable[..., tuple[int, str, str]]
MAPPING = {"columns": {"sex": {"from": ["Gender"]}}, "values": {"sex": {"F": ["female"], "M": ["male"]}}}


@pytest.fixture
def site(tmp_path: Path) -> SiteFolder:
    hub = HubFolder.init(tmp_path / "hub", address="127.0.0.1:9092", insecure=True)
    table = messy_hospital("west", clean_hospital(2)).with_row_index("patient").with_columns(rare=None)
    table[0, "ward"] = "canary-4711"
    table.write_csv(tmp_path / "west.csv")
    plan = load_plan({"data": {"table": "adult", "target": "outcome", "features": "rest", "mapping": MAPPING}})
    invitation = Invitation.read(hub.path / "invitation.json")
    made = SiteFolder.init(
        tmp_path / "west", name="west", table=tmp_path / "west.csv", invitation=invitation, plan=plan
    )
    declare(made, 'identifiers = ["patient"]\ndrop = ["rare"]')
    return made


def declare(site: SiteFolder, roles: str = "", policy: str = "") -> None:
    path = site.path / "site.toml"
    text = path.read_text().replace("[data]  #", f"[data]\n{roles}\n#")
    path.write_text(text.replace("[policy]  #", f"[policy]\n{policy}\n#"))


def lines_of(site: SiteFolder) -> list[dict[str, object]]:
    return [json.loads(line) for line in (site.path / "ledger" / "ledger.jsonl").read_text().splitlines()]


def test_init_hands_the_plans_mapping_over_and_the_site_applies_it(site: SiteFolder) -> None:
    assert TableMapping.load(site.path / "mapping.toml").to_plain() == MAPPING
    settings = tomllib.loads((site.path / "site.toml").read_text())["site"]
    assert settings["mapping"] == "mapping.toml"
    frame = read_site_table(site.path, name="west", table=settings["table"], mapping="mapping.toml")
    assert set(frame["sex"]) == {"F", "M"}
    site.site_server().close()  # the roles fit the mapped table
    (site.path / "mapping.toml").write_text("[values]\nsex = 1\n")
    with pytest.raises(ConfigError, match="is not a section"):
        site.site_server()


def test_a_mapping_that_others_may_change_is_refused(site: SiteFolder) -> None:
    (site.path / "mapping.toml").chmod(0o666)
    with pytest.raises(RefusedError):
        site.site_server()


def test_a_plan_for_mapped_tables_is_refused_where_nothing_is_mapped() -> None:
    frame = clean_hospital(1)
    resources = SiteResources(
        identity=Identity.generate("west"),
        frame=frame,
        schema=Schema(),
        policy=Policy(),
        roster=Roster(),
        streams=lambda _: Streams.seeded(0),
    )
    data = {"table": "adult", "target": "outcome"}
    require_mapping(resources, load_plan({"data": data}))
    with pytest.raises(RefusedError, match=r"site.toml names none"):
        require_mapping(resources, load_plan({"data": {**data, "mapping": MAPPING}}))
    require_mapping(replace(resources, is_mapped=True), load_plan({"data": {**data, "mapping": MAPPING}}))


def test_a_site_reads_sets_and_missing_values_as_the_plan_does(tmp_path: Path) -> None:
    rows = "\n".join(f"{20 + number},a|b,{number % 2},x,{'-999' if number % 3 else 5}" for number in range(30))
    (tmp_path / "west.csv").write_text(f"age,jobs,ill,first,dose\n{rows}\n")
    roles = {"target": "ill", "features": ["age", "dose"], "items": ["jobs", "wards=first"]}
    data = {"table": str(tmp_path / "west.csv"), **roles, "reading": {"null_values": ["-999"]}, "test": 0}
    plan = load_plan({"data": data})
    hub = HubFolder.init(tmp_path / "hub", address="127.0.0.1:9092", insecure=True)
    invitation = Invitation.read(hub.path / "invitation.json")
    made = SiteFolder.init(
        tmp_path / "west", name="west", table=tmp_path / "west.csv", invitation=invitation, plan=plan
    )
    assert made.settings().schema.items == ("jobs", "wards")
    assert hub_schema(plan, None).items == ("jobs", "wards")
    made.site_server().close()
    here = read_site_table(
        made.path, name="west", table="../west.csv", items=plan.data.items, reading=plan.data.reading
    )
    simulated = populate(replace(plan, data=replace(plan.data, missing="category")), Streams.seeded(0)).frame
    assert here.sort("age")["jobs"].to_list() == simulated.sort("age")["jobs"].to_list() == [["a", "b"]] * 30
    assert here["dose"].null_count() == simulated["dose"].null_count() == 20
    assert here["wards"].to_list() == [["x"]] * 30


def test_a_hub_reads_its_test_table_as_the_sites_read_theirs(tmp_path: Path) -> None:
    rows = "\n".join(f"{20 + number},a|b,{number % 2},x,{'-999' if number % 3 else 5}" for number in range(30))
    (tmp_path / "test.csv").write_text(f"age,jobs,ill,first,dose\n{rows}\n")
    roles = {"target": "ill", "features": ["age", "dose"], "items": ["jobs", "wards=first"], "missing": "category"}
    reading = {"null_values": ["-999"]}
    plan = load_plan({"data": {"table": "adult", **roles, "reading": reading, "test": str(tmp_path / "test.csv")}})
    hub = HubFolder.init(tmp_path / "hub", address="127.0.0.1:9092", insecure=True)
    backend = FlowerBackend(hub=hub, run=cast(FlowerRun, None), identity=Identity.generate("hub"), everyone={})
    test = backend.populate(plan, Streams.seeded(0)).test
    assert test["jobs"].to_list() == [["a", "b"]] * 30
    assert test["wards"].to_list() == [["x"]] * 30
    assert test["dose"].null_count() == 20


def test_a_plan_with_marks_of_missing_values_is_refused_where_the_site_says_nothing_of_them() -> None:
    resources = SiteResources(
        identity=Identity.generate("west"),
        frame=clean_hospital(1),
        schema=Schema(),
        policy=Policy(),
        roster=Roster(),
        streams=lambda _: Streams.seeded(0),
    )
    plan = load_plan({"data": {"table": "adult", "target": "outcome", "reading": {"null_values": ["-999"]}}})
    with pytest.raises(RefusedError, match=r"site.toml does not"):
        require_mapping(resources, plan)
    require_mapping(replace(resources, is_read=True), plan)
    require_mapping(resources, load_plan({"data": {"table": "adult", "reading": {"delimiter": ";"}}}))


def test_a_site_reads_from_a_database_in_its_folder_and_counts_what_is_lost(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "clinic.db") as connection:
        connection.execute("CREATE TABLE visits (age text)")
        connection.executemany("INSERT INTO visits VALUES (?)", [("45 years",), ("old",), ("50",)])
    connection.close()
    (tmp_path / "m.toml").write_text('[columns.age]\ntype = "number"\n')
    found = read_site_table(tmp_path, name="s", table="sqlite:///clinic.db#visits", mapping="m.toml")
    assert sorted(found["age"].drop_nulls()) == [45, 50]
    assert (
        tmp_path / "log" / "table.log"
    ).read_text() == "1 cells of age of site 's' are no number and count as missing\n"
    found = read_site_table(tmp_path, name="s", table="sqlite:///clinic.db", query="SELECT count(*) AS n FROM visits")
    assert found["n"].to_list() == [3]
    with pytest.raises(ConfigError, match="needs the address of a database"):
        read_site_table(tmp_path, name="s", table="x.csv", query="SELECT 1")


def test_a_profile_passes_the_door_and_stands_in_the_ledger(
    site: SiteFolder, tmp_path: Path, kohort_here: Here
) -> None:
    out = tmp_path / "west.json"
    code, _, said = kohort_here("site", "profile", site.path, "--out", out)
    assert code == 0, said
    profile = json.loads(out.read_text())
    assert profile["least"] == 10
    assert set(profile["columns"]) == {"age", "sex", "weight", "smoker", "ward", "outcome"}
    assert "canary" not in out.read_text()
    release = [line for line in lines_of(site) if line["event"] == "release"]
    assert [(line["what"], line["to"]) for line in release] == [("harmonise.profile", "hub")]
    assert release[0]["size"] == len(out.read_bytes())
    code, _, said = kohort_here("ledger", "verify", site.path)
    assert code == 0, said
    site.site_server().close()  # the ledger goes on


def test_a_policy_that_keeps_domains_lets_no_profile_out(site: SiteFolder, tmp_path: Path, kohort_here: Here) -> None:
    text = (site.path / "site.toml").read_text()
    (site.path / "site.toml").write_text(text.replace("domain = true", "domain = false"))
    code, _, said = kohort_here("site", "profile", site.path, "--out", tmp_path / "west.json")
    assert code == 4
    assert "may not leave" in said
    assert not (tmp_path / "west.json").exists()
    assert "refusal" in {line["event"] for line in lines_of(site)}


def test_profiles_count_towards_a_sites_limits(site: SiteFolder) -> None:
    text = (site.path / "site.toml").read_text()
    (site.path / "site.toml").write_text(
        text.replace("# tasks = {", "# {").replace("[limits]", '[limits]\ntasks = {"harmonise.*" = 1}\n#')
    )
    site.profile()
    with pytest.raises(RefusedError, match="the limit is 1"):
        site.profile()


def test_a_table_that_changed_is_told_anew(site: SiteFolder, tmp_path: Path) -> None:
    first = site.profile()
    clean_hospital(9, rows=300).with_row_index("patient").with_columns(rare=None).write_csv(tmp_path / "west.csv")
    assert site.profile() != first
    assert len([line for line in lines_of(site) if line["event"] == "release"]) == 2


def test_the_minimum_cell_is_the_sites_own(site: SiteFolder) -> None:
    text = (site.path / "site.toml").read_text()
    (site.path / "site.toml").write_text(text.replace("min_cell = 10", "min_cell = 150"))
    profile = json.loads(site.profile())
    assert profile["least"] == 150
    assert profile["columns"]["sex"]["values"] == []
