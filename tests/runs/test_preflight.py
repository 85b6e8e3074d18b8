"""A pre-flight over messages: real sites that disagree are told so, and nothing that few persons have leaves them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

pytest.importorskip("flwr")

from tests.support.deployed import Deployed
from tests.support.hospitals import NAMES, clean_hospital, messy_hospital

from kohort.errors import ConfigError, DataError, SiteError
from kohort.runs.agreed import approved_plan_for
from kohort.runs.config import Plan, load_plan, read_plan
from kohort.runs.preflight import SitesCompared, run_preflight
from kohort.runs.run import run
from kohort.tables.harmonise.compare import compare_profiles
from kohort.tables.harmonise.mapping import SiteTableMapping, TableMapping
from kohort.tables.harmonise.profiles import profile_table
from kohort.tables.schema import Schema
from kohort.transport.deployment.hub import HubFolder
from kohort.transport.deployment.site import SiteFolder

RARE = "ward-of-one-patient"
PLAN = """
[data]
table = "at the sites"
target = "outcome"
features = ["age", "sex", "weight", "smoker", "ward"]
preflight = "only"

[sites]
split = "files"

[method]
name = "additive"
"""
COLUMNS = ["age", "sex", "weight", "smoker", "ward", "outcome"]


def hospitals() -> dict[str, pl.DataFrame]:
    """Three hospitals that disagree in six ways, a ward of one patient, and 14 rows without an outcome."""
    made = {name: messy_hospital(name, clean_hospital(seed)) for seed, name in enumerate(NAMES)}
    made["west"] = made["west"].rename({"Gender": "sex"})
    first = pl.int_range(pl.len())
    made["north"] = made["north"].with_columns(ward=pl.when(first == 5).then(pl.lit(RARE)).otherwise("ward"))
    for name, rows in (("north", 6), ("south", 8)):
        made[name] = made[name].with_columns(outcome=pl.when(first < rows).then(None).otherwise("outcome"))
    return made


class Listening:
    """Carries messages to the sites' servers, and keeps all of them."""

    def __init__(self, sites: Mapping[str, SiteFolder]) -> None:
        self.servers = {name: site.site_server() for name, site in sites.items()}
        self.heard: list[bytes] = []

    def carry(self, messages: Mapping[str, bytes], *, deadline: float) -> tuple[dict[str, bytes], dict[str, str]]:
        del deadline
        came = {name: self.servers[name].reply(message) for name, message in messages.items()}
        self.heard += [*messages.values(), *came.values()]
        return came, {}


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[SitesCompared, Listening, Deployed]:
    deployed = Deployed.make(tmp_path_factory.mktemp("sites"), plan=PLAN, tables=hospitals())
    servers = Listening(deployed.sites)
    return run_preflight(_plan(deployed), backend=deployed.backend(servers), seed=1), servers, deployed


def _plan(deployed: Deployed) -> Plan:
    return read_plan(deployed.folder / "plan.toml")


def test_all_disagreements_are_named(compared: tuple[SitesCompared, Listening, Deployed]) -> None:
    found = compared[0].comparison
    kinds = {(one.kind, one.column) for one in found.disagreements}
    assert kinds == {
        ("type", "age"), ("unit", "weight"), ("yes/no", "smoker"), ("spelling", "sex"), ("spelling", "ward"),
        ("missing marker", "ward"),
    }  # fmt: skip
    assert all(one.mended for one in found.disagreements)


def test_the_mapping_is_that_of_tables_at_hand(compared: tuple[SitesCompared, Listening, Deployed]) -> None:
    tables = {name: pl.read_csv(compared[2].folder / f"{name}.csv") for name in NAMES}
    profiles = [profile_table(frame, site=name) for name, frame in tables.items()]
    at_hand = compare_profiles(profiles, columns=COLUMNS, target="outcome")
    assert compared[0].comparison.mapping == at_hand.mapping


def test_no_rare_value_and_no_site_of_a_value_is_told(compared: tuple[SitesCompared, Listening, Deployed]) -> None:
    found, servers, _ = compared
    heard = b"".join(servers.heard)
    assert b'"quantiles"' in heard  # the search finds what is there
    assert RARE.encode() not in heard
    assert b"INTENSIVE" not in heard  # frequent ones are named in a sum, never in a message
    missing = {profile.site: profile.columns["outcome"].missing for profile in found.answers.profiles}
    assert missing == dict.fromkeys(NAMES, "none")  # six and eight rows lack it: too few to say so
    assert RARE not in {one.text for several in found.answers.counted.values() for one in several}
    assert all(not one.sites for one in found.comparison.disagreements if one.kind in ("spelling", "yes/no"))


def test_rows_without_a_target_and_classes_are_secure_totals(
    compared: tuple[SitesCompared, Listening, Deployed],
) -> None:
    found = compared[0]
    outcomes = pl.concat([frame.select("outcome") for frame in hospitals().values()])["outcome"]
    counts = dict(outcomes.drop_nulls().value_counts().iter_rows())
    assert dict(found.answers.classes) == counts
    weights = {text: round(sum(counts.values()) / (2 * count), 4) for text, count in sorted(counts.items())}
    assert found.balanced_weights() == weights
    split = {"ill": counts["ill"] - 3, "ILL": 3, "well": counts["well"]}
    spelt = TableMapping(general=SiteTableMapping(values={"outcome": {"ill": ("ILL",)}}))
    mapped = replace(
        found, answers=replace(found.answers, classes=split), comparison=replace(found.comparison, mapping=spelt)
    )
    assert mapped.balanced_weights() == weights
    (entry,) = found.left_out("outcome", missing="impute", min_cell=10)
    assert entry.count == 14


def test_the_command_asks_the_sites_of_a_hub(
    compared: tuple[SitesCompared, Listening, Deployed], tmp_path: Path, kohort_here: Any, monkeypatch: Any
) -> None:
    deployed = compared[2]

    @contextmanager
    def reached(self: HubFolder, *, wait: float) -> Iterator[Any]:
        assert self.path == deployed.hub.path
        assert wait == 60.0
        yield deployed.backend(Listening(deployed.sites))

    monkeypatch.setattr(HubFolder, "backend", reached)
    plan, hub = deployed.folder / "plan.toml", deployed.hub.path
    code, out, _ = kohort_here("harmonise", plan, "--hub", hub, "--out", tmp_path / "mapping.toml", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["mapping"] == compared[0].comparison.mapping.to_plain()
    assert found["left_out"] == [{"what": "rows", "why": "the target outcome is missing", "count": 14}]
    assert found["class_weights"] == compared[0].balanced_weights()
    assert TableMapping.load(tmp_path / "mapping.toml") == compared[0].comparison.mapping
    (tmp_path / "plan.toml").write_text(LEARNING)
    code, _, err = kohort_here("harmonise", tmp_path / "plan.toml", "--hub", hub)
    assert (code, "the plan has no pre-flight" in err) == (2, True)
    code, _, err = kohort_here("harmonise", plan, "--hub", hub, "--target", "outcome")
    assert (code, "--target is for tables at hand" in err) == (2, True)


def test_few_rows_without_a_target_are_not_told(tmp_path: Path) -> None:
    tables = {name: frame.with_columns(pl.col("outcome").fill_null("well")) for name, frame in hospitals().items()}
    tables["north"] = tables["north"].with_columns(
        outcome=pl.when(pl.int_range(pl.len()) < 9).then(None).otherwise("outcome")
    )
    deployed = Deployed.make(tmp_path, plan=PLAN, tables=tables)
    found = run_preflight(_plan(deployed), backend=deployed.backend(Listening(deployed.sites)), seed=1)
    (entry,) = found.left_out("outcome", missing="impute", min_cell=10)
    assert entry.count == "<10"


def test_a_policy_that_keeps_domains_private_refuses(tmp_path: Path) -> None:
    deployed = Deployed.make(tmp_path, plan=PLAN, tables=hospitals())
    place = deployed.sites["south"].path / "site.toml"
    place.write_text(place.read_text().replace("domain = true", "domain = false"))
    servers = Listening(deployed.sites)
    with pytest.raises(SiteError, match="south refused or failed"):
        run_preflight(_plan(deployed), backend=deployed.backend(servers), seed=1)
    assert b"".join(servers.heard).count(b'"quantiles"') == 2 * 2  # age and weight at the two other sites


def test_a_site_with_a_pre_flight_alone_trains_nothing(
    compared: tuple[SitesCompared, Listening, Deployed],
) -> None:
    with pytest.raises(ConfigError, match="learns nothing"):
        run(_plan(compared[2]), backend=compared[2].backend(), seed=1)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ({"name": "additive", "dp": {"epsilon": 1.0, "delta": 1e-5}}, "budget does not cover"),
        ({"name": "fedavg", "secure": {"sum": "none"}}, "by a secure sum, and this plan has none"),
    ],
)
def test_a_plan_that_could_not_keep_it_private_is_refused(method: dict[str, Any], words: str) -> None:
    data = {"table": "at the sites", "target": "outcome", "features": ["age"], "preflight": "only"}
    plan = load_plan({"data": data, "method": method})
    with pytest.raises(ConfigError, match=words):
        approved_plan_for(plan, schema=Schema.of(target="outcome", features=["age"]), run="00")


def test_a_run_that_compares_first_says_what_differs() -> None:
    data = {"table": "memory", "target": "outcome", "features": COLUMNS[:-1], "preflight": "first", "test": 0.2}
    plan = load_plan({"data": data, "sites": {"count": 3}, "method": {"name": "additive"}})
    frame = clean_hospital(3, rows=400)
    lower = pl.col("sex").str.to_lowercase()
    mixed = frame.with_columns(sex=pl.when(pl.int_range(pl.len()) < 150).then(lower).otherwise("sex"))
    found = run(plan, seed=1, tables={"": mixed})
    assert any("sites disagree: spelling of sex" in note for note in found.notes)
    assert not any("'f'" in note for note in found.notes)


def test_a_run_that_compares_first_ends_where_types_do_not_fit(tmp_path: Path) -> None:
    deployed = Deployed.make(tmp_path, plan=PLAN.replace('"only"', '"first"'), tables=hospitals())
    with pytest.raises(DataError, match=r"type of age \(south\).*unit of weight \(south\)"):
        deployed.run("out", seed=1, servers=Listening(deployed.sites))


LEARNING = PLAN.replace('preflight = "only"\n', "").replace(
    'features = ["age", "sex", "weight", "smoker", "ward"]',
    'features = ["age", "sex"]\ndrop = ["weight", "smoker", "ward"]',
)


def _clean(rows_without_target: Mapping[str, int]) -> dict[str, pl.DataFrame]:
    made = {}
    for seed, name in enumerate(NAMES):
        frame, few = clean_hospital(seed, rows=150), rows_without_target.get(name, 0)
        made[name] = frame.with_columns(outcome=pl.when(pl.int_range(pl.len()) < few).then(None).otherwise("outcome"))
    return made


@pytest.mark.parametrize(("few", "count"), [({"north": 7, "south": 9}, 16), ({"north": 4, "south": 5}, "<10")])
def test_a_real_hub_tells_rows_left_out_as_secure_totals(few: dict[str, int], count: int | str, tmp_path: Path) -> None:
    deployed = Deployed.make(tmp_path, plan=LEARNING, tables=_clean(few))
    outcome = deployed.run("out", seed=1, servers=Listening(deployed.sites))
    answers = {entry.why: entry.count for entry in outcome.left_out}
    assert answers["the target outcome is missing"] == count
    assert answers["a class of outcome that fewer than 10 persons share"] == "<10"


def test_a_real_hub_says_where_nothing_is_counted(tmp_path: Path) -> None:
    declared = 'bounds = {age = [0, 120]}\ncategories = {sex = ["F", "M"], outcome = ["ill", "well"]}\n[sites]'
    deployed = Deployed.make(tmp_path, plan=LEARNING.replace("[sites]", declared), tables=_clean({"north": 20}))
    outcome = deployed.run("out", seed=1, servers=Listening(deployed.sites))
    assert any("counted in their own logs alone" in note for note in outcome.notes)
    assert not outcome.left_out
    log = (deployed.sites["north"].path / "log" / "table.log").read_text()
    assert "20 rows have no value of outcome and take no part" in log


def test_balanced_classes_are_refused_before_real_sites_are_asked(tmp_path: Path) -> None:
    plan = LEARNING.replace('name = "additive"', 'name = "fedavg"\n[train]\nclass_weights = "balanced"')
    deployed = Deployed.make(tmp_path, plan=plan, tables=_clean({}))
    servers = Listening(deployed.sites)
    with pytest.raises(ConfigError, match="needs the counts of classes") as caught:
        deployed.run("out", seed=1, servers=servers)
    assert "train.class_weights = {ill = 2.1, well = 0.7}" in str(caught.value.hint)
    assert not servers.heard


def test_the_contract_says_what_a_hub_reads_of_one_site(
    compared: tuple[SitesCompared, Listening, Deployed], kohort_here: Any
) -> None:
    code, out, _ = kohort_here("plan", "explain", compared[2].folder / "plan.toml")
    said = " ".join(out.split())
    assert code == 0
    assert "Of your site alone a hub gets types of columns, and ranges and classes that several of your persons" in said
    assert "does not get numbers of your site alone" not in said
    assert "three quantiles of numbers as ranges" in said
    assert "additive.total" not in said
