"""`kohort plan explain` and `kohort site approve`: one text, from the plan alone, before anything is approved."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kohort.runs.config import read_plan
from kohort.transport.deployment.files import Invitation
from kohort.transport.deployment.hub import HubFolder
from kohort.transport.deployment.site import SiteFolder

Call = Callable[..., tuple[int, str, str]]
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.toml"))


@pytest.fixture
def site(tmp_path: Path, table_file: Path, plan_file: Path) -> SiteFolder:
    hub = HubFolder.init(tmp_path / "hub", address="127.0.0.1:9092", insecure=True)
    invitation = Invitation.read(hub.path / "invitation.json")
    return SiteFolder.init(
        tmp_path / "north", name="north", table=table_file, invitation=invitation, plan=read_plan(plan_file)
    )


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_explained_without_its_table(
    example: Path, kohort_here: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KOHORT_DATA", "/nowhere")
    code, shown, said = kohort_here("plan", "explain", example)
    assert code == 0, said
    assert "Nothing else." in shown
    assert "What a lying hub can learn at most" in shown
    assert read_plan(example).digest() in shown


def test_json_holds_the_same(plan_file: Path, kohort_here: Call) -> None:
    code, shown, _ = kohort_here("plan", "explain", plan_file, "--json")
    assert code == 0
    found = json.loads(shown)
    assert found["plan_hash"] == read_plan(plan_file).digest()
    assert [(step["task"], step["times"], step["to"]) for step in found["steps"]] == [
        ("describe", 1, "hub"),
        ("prepare", 1, "hub"),
        ("train", 2, "hub"),
    ]
    assert found["steps"][2]["claims"][0]["kind"] == "aggregate"
    assert found["nothing_else"] is True


def test_a_declared_domain_is_not_asked_for(tmp_path: Path, plan_file: Path, kohort_here: Call) -> None:
    plan = tmp_path / "declared.toml"
    declared = (
        'bounds = {age = [18, 90], dose = [0, 20]}\ncategories = {ward = ["a"], outcome = ["ill", "well"]}\n[sites]'
    )
    plan.write_text(plan_file.read_text().replace("[sites]", declared))
    _, shown, _ = kohort_here("plan", "explain", plan, "--json")
    assert [step["task"] for step in json.loads(shown)["steps"]] == ["prepare", "train"]
    _, shown, _ = kohort_here("plan", "explain", plan, "--json", "--set", "data.features=rest")
    assert [step["task"] for step in json.loads(shown)["steps"]] == ["describe", "prepare", "train"]


def test_approving_shows_the_same_text_first(plan_file: Path, site: SiteFolder, kohort_here: Call) -> None:
    _, explained, _ = kohort_here("plan", "explain", plan_file)
    code, shown, said = kohort_here("site", "approve", site.path, plan_file)
    assert code == 0, said
    plan_hash = read_plan(plan_file).digest()
    assert shown == f"{explained}{plan_hash}\n"
    assert plan_hash in site.approvals.listed()


def test_the_text_follows_what_is_set(plan_file: Path, site: SiteFolder, kohort_here: Call) -> None:
    changed = ("--set", "train.rounds=7")
    _, explained, _ = kohort_here("plan", "explain", plan_file, *changed)
    _, shown, _ = kohort_here("site", "approve", site.path, plan_file, *changed)
    assert "7 times: weights" in explained
    assert shown.startswith(explained)


def test_a_plan_that_cannot_be_explained_is_not_approved(
    plan_file: Path, site: SiteFolder, kohort_here: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kohort.errors import ConfigError

    def refuse(_: object) -> None:
        raise ConfigError("the plan contradicts itself", hint="Correct it")

    monkeypatch.setattr("kohort.runs.explain.explain_plan", refuse)
    code, _, _ = kohort_here("site", "approve", site.path, plan_file)
    assert code == 2
    assert not site.approvals.listed()


def test_a_hash_alone_says_where_to_read_the_plan(site: SiteFolder, kohort_here: Call) -> None:
    code, _, said = kohort_here("site", "approve", site.path, "ab" * 32)
    assert code == 0
    assert "kohort plan explain" in said
