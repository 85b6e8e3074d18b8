"""Keys that nothing reads are refused before anything runs; what is printed of a plan is what ran."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.api import Federation
from kohort.errors import ConfigError
from kohort.methods.registry import find_method, methods
from kohort.protocol.plan.approved import ModelSection, TrainSection
from kohort.runs.agreed import approved_plan_for
from kohort.runs.config import Plan, load_plan, only_read, read_plan
from kohort.runs.run import run
from kohort.runs.sweeps import Sweep, variants_of
from kohort.tables.schema import Schema

Call = Callable[..., tuple[int, str, str]]
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.toml"))
VALUES: dict[str, str] = {
    "train.rounds": "3", "train.local_epochs": "2", "train.batch": "8", "train.optimizer": "sgd", "train.lr": "0.5",
    "train.momentum": "0.5", "train.l2": "0.1", "train.class_weights": "{a = 2.0}", "train.state": "keep",
    "train.fraction": "0.1", "train.select": "poisson", "train.stop": "{patience = 3}", "train.aggregate": "krum",
    "train.hub": "momentum", "train.correction": "fedprox:0.1", "train.average": "0.5", "train.reject": "2.0",
    "model.kind": "svm", "model.hidden": "[3]", "model.activation": "tanh", "model.dtype": "float64",
    "model.init": "glorot", "model.loss": "softmax",
}  # fmt: skip
EVERY_KEY = [f"{section}.{item.name}" for section, cls in (("train", TrainSection), ("model", ModelSection))
             for item in fields(cls)]  # fmt: skip


def unread_by_examples() -> Iterator[tuple[Path, str]]:
    for path in EXAMPLES:
        read = read_plan(path).reads()
        if path.stem == "hybrid":  # its private phase takes these from [train] where the plan gives them
            read |= {"train.local_epochs", "train.batch", "train.optimizer", "train.lr", "train.average"}
        for key in EVERY_KEY:
            if key not in read:
                yield path, key


DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if re.search(r"```toml\n[^`]*\[data\]", path.read_text()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_plans_in_the_docs_hold_only_keys_that_are_read(page: Path) -> None:
    blocks = re.findall(r"```toml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    plans = [tomllib.loads(block) for block in blocks if "[data]" in block]
    assert plans
    for raw in plans:
        load_plan(raw)


def small(method: dict[str, Any], **sections: Any) -> dict[str, Any]:
    return {"data": {"table": "t.csv", "target": "y"}, "method": method, **sections}


def rows() -> pl.DataFrame:
    random = np.random.default_rng(2)
    x = random.normal(size=300).round(3)
    return pl.DataFrame({"x": x, "y": np.where(x > 0, "yes", "no")})


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    rows().write_csv(tmp_path / "rows.csv")
    path = tmp_path / "plan.toml"
    path.write_text(
        f'[data]\ntable = "{tmp_path / "rows.csv"}"\ntarget = "y"\nfeatures = ["x"]\nbounds = {{x = [-9, 9]}}\n'
        "[sites]\ncount = 3\n[model]\nhidden = [3]\n[train]\nrounds = 2\nfraction = 0.7\n"
        '[method]\nname = "fedavg"\n[policy]\nmin_rows = 1\nraw = true\npairs = "open"\n'
    )
    return path


def test_every_key_of_train_and_model_has_a_value_to_try() -> None:
    assert sorted(VALUES) == sorted(EVERY_KEY)
    assert len(list(unread_by_examples())) > 30


@pytest.mark.parametrize(("path", "key"), list(unread_by_examples()), ids=lambda part: getattr(part, "stem", part))
def test_an_example_with_a_key_that_is_not_read_is_refused(path: Path, key: str) -> None:
    raw = tomllib.loads(path.read_text(encoding="utf-8"))
    section, _, name = key.partition(".")
    raw.setdefault(section, {})[name] = tomllib.loads(f"value = {_quoted(VALUES[key])}")["value"]
    with pytest.raises(ConfigError, match=f"does not read .*{key}") as caught:
        load_plan(raw)
    assert caught.value.exit_code == 2
    with pytest.raises(ConfigError, match=f"does not read .*{key}"):
        read_plan(path, overrides=[f"{key}={VALUES[key]}"])


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_with_a_key_of_another_method_or_split_is_refused(path: Path) -> None:
    plan = read_plan(path)
    own = {item.name for item in fields(find_method(plan.method).config)}
    others = {item.name for method in methods().values() for item in fields(method.config)} - own
    unread = [f"method.{name}" for name in others] + [
        key for key in ("sites.alpha", "sites.arrive") if key not in plan.reads()
    ]
    assert len(unread) > 10
    for key in unread:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
        section, _, name = key.partition(".")
        raw.setdefault(section, {})[name] = "20%/10 rounds" if name == "arrive" else 1
        with pytest.raises(ConfigError, match=rf"\b{name}\b") as caught:
            load_plan(raw)
        assert caught.value.exit_code == 2


def _quoted(text: str) -> str:
    return text if text[0] in "[{" or text.replace(".", "").isdecimal() else json.dumps(text)


@pytest.mark.parametrize("override", ["train.aggregate=krum", "train.fraction=0.1", "train.hub=momentum"])
def test_the_command_ends_with_2_names_the_key_and_writes_nothing(
    override: str, tmp_path: Path, kohort_here: Call
) -> None:
    example = next(path for path in EXAMPLES if path.stem == "oneshot")
    code, printed, said = kohort_here("run", example, "--out", tmp_path / "out", "--json", "--set", override)
    assert code == 2
    assert printed == ""
    assert f"method 'oneshot' does not read {override.partition('=')[0]}" in said
    assert not (tmp_path / "out").exists()


def test_all_keys_that_are_not_read_are_named_at_once_and_the_namesake_is_offered() -> None:
    raw = small({"name": "oneshot"}, train={"rounds": 5, "hub": "momentum"}, sites={"alpha": 2.0})
    with pytest.raises(ConfigError) as caught:
        load_plan(raw)
    assert caught.value.message == (
        "split 'iid' does not read sites.alpha; method 'oneshot' does not read train.hub, train.rounds"
    )
    assert "method.oneshot.rounds instead of train.rounds" in caught.value.hint


@pytest.mark.parametrize(
    ("method", "sections", "key"),
    [
        ({"name": "fedavg", "secure": {}}, {"train": {"fraction": 0.5}}, "with method.secure does not read train.fr"),
        ({"name": "fedavg", "dp": {}}, {"train": {"stop": {}}}, "does not read train.stop"),
        ({"name": "fedavg", "dp": {"mechanism": "statistics"}}, {"train": {"rounds": 3}}, "does not read train.rounds"),
        ({"name": "fedavg", "dp": {"mechanism": "hub", "unit": "site"}}, {"train": {"aggregate": "mean"}}, "train.agg"),
        ({"name": "hybrid", "phases": [{"kind": "peers", "lr": 0.1}]}, {"train": {"lr": 0.1}}, "train.lr"),
        ({"name": "hybrid", "phases": [{"kind": "peers"}]}, {"train": {"hub": "momentum"}}, "train.hub"),
        ({"name": "silo"}, {"sites": {"arrive": "20%/10 rounds"}}, "method 'silo' does not read sites.arrive"),
        ({"name": "fedavg"}, {"model": {"kind": "logistic", "hidden": [3]}}, "model 'logistic' does not read model"),
        ({"name": "fedavg"}, {"model": {"kind": "torch:a:b", "init": "he"}}, "does not read model.init"),
        ({"name": "fedavg"}, {"sites": {"split": "files", "count": 3}}, "split 'files' does not read sites.count"),
    ],
)  # fmt: skip
def test_what_is_read_depends_on_the_config(method: dict[str, Any], sections: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        load_plan(small(method, **sections))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("aggregate", name) for name in ("median", "trimmed:0.1", "krum", "multi-krum", "clip")),
        ("correction", "scaffold"),
        ("select", "reliable"),
        ("fraction", 0.5),
        ("stop", {"metric": "loss"}),
        ("reject", 3.0),
    ],
)
@pytest.mark.parametrize("secure", [{}, {"sum": "masks"}, {"sum": "bfv"}])
def test_what_needs_each_sites_update_is_refused_with_a_secure_sum(
    key: str, value: object, secure: dict[str, str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_plan(small({"name": "fedavg", "secure": secure}, train={key: value}))
    assert f"train.{key}" in caught.value.message
    assert "method.secure" in caught.value.message
    assert "a secure sum hides each site's own update" in caught.value.message
    assert caught.value.exit_code == 2
    load_plan(small({"name": "fedavg"}, train={key: value}))  # either alone is a plan


def test_a_default_that_is_given_counts_and_one_that_is_spelt_out_by_kohort_does_not() -> None:
    with pytest.raises(ConfigError, match=r"train\.aggregate"):
        load_plan(small({"name": "oneshot"}, train={"aggregate": "mean"}))
    made = load_plan(small({"name": "oneshot"}))
    assert load_plan(made.to_mapping(), complete=True).digest() == made.digest()
    changed = made.to_mapping()
    changed["train"]["aggregate"] = "krum"
    with pytest.raises(ConfigError, match=r"train\.aggregate"):
        load_plan(changed, complete=True)


def test_the_python_face_is_as_strict() -> None:
    with pytest.raises(ConfigError, match=r"does not read train\.rounds"):
        Federation(rows(), target="y", sites=3).plan("oneshot", rounds=5)
    assert Federation(rows(), target="y", sites=3).plan("oneshot").given >= {"sites.count", "data.target"}


@pytest.mark.parametrize("method", sorted(methods()))
def test_what_is_in_effect_is_a_plan_with_the_same_hash(method: str) -> None:
    made = load_plan(small(find_method(method).example_keys()["method"]))
    shown = made.in_effect()
    assert load_plan(shown) == made
    assert load_plan(shown).digest() == made.digest()
    assert {f"{section}.{key}" for section in ("sites", "model", "train") for key in shown[section]} <= made.reads()


# Another method, model kind or split on the command line


def test_what_another_method_leaves_out_is_said_on_screen(plan_file: Path, kohort_here: Call, tmp_path: Path) -> None:
    chosen = ["--set", "method.name=oneshot", "--set", "method.secure.sum=none", "--set", "train.rounds=1"]
    code, _, told = kohort_here("run", plan_file, *chosen, "--out", tmp_path / "refused")
    assert code == 2  # given here, and not only in the file
    code, shown, told = kohort_here("run", plan_file, *chosen[:4], "--out", tmp_path / "out")
    assert code == 0, told
    assert "note: not read by oneshot, ignored: model.hidden, train.fraction, train.rounds" in told
    assert "1 round, ended by" in shown


def test_another_method_leaves_out_what_it_does_not_read_and_says_so(plan_file: Path, tmp_path: Path) -> None:
    plan = read_plan(plan_file, overrides=["method.name=oneshot", "method.secure.sum=none"])
    assert plan.ignored == ("model.hidden", "train.fraction", "train.rounds")
    assert plan.train == TrainSection()
    plan_file.write_text(plan_file.read_text().replace("[policy]", '[method.secure]\nsum = "masks"\n[policy]'))
    plan_file.write_text(plan_file.read_text().replace("fraction = 0.7\n", ""))
    outcome = run(read_plan(plan_file, overrides=["method.name=central"]), out=tmp_path / "out", seed=1)
    assert "not read by central, ignored: method.secure" in outcome.notes
    assert json.loads((tmp_path / "out" / "run.json").read_bytes())["notes"][0].endswith("ignored: method.secure")


def test_what_the_command_line_itself_gives_is_not_left_out(plan_file: Path) -> None:
    for overrides in (["method.name=oneshot", "train.hub=momentum"], ["train.hub=momentum", "method.name=oneshot"]):
        with pytest.raises(ConfigError, match=r"does not read train\.hub"):
            read_plan(plan_file, overrides=overrides)


def test_the_same_method_again_leaves_nothing_out(plan_file: Path) -> None:
    plan_file.write_text(plan_file.read_text().replace("hidden = [3]", 'kind = "svm"\nhidden = [3]'))
    with pytest.raises(ConfigError, match=r"model\.hidden"):
        read_plan(plan_file, overrides=["method.name=fedavg"])


def test_another_model_kind_or_split_leaves_out_its_sections_keys(plan_file: Path) -> None:
    assert read_plan(plan_file, overrides=["model.kind=logistic"]).ignored == ("model.hidden",)
    assert read_plan(plan_file, overrides=["sites.split=files"]).ignored == ("sites.count",)


def test_a_model_kind_that_is_trained_otherwise_leaves_out_the_keys_of_training() -> None:
    found = read_plan(DOCS.parent / "examples" / "silo.toml", overrides=["model.kind=additive"])
    assert {"train.batch", "train.lr", "train.rounds"} <= set(found.ignored)


def test_a_sweep_over_methods_leaves_out_what_each_does_not_read(plan_file: Path) -> None:
    sweeps = [Sweep("method.name", ("fedavg", "oneshot")), Sweep("train.hub", ("plain", "momentum"))]
    found = {(one.plan.method, one.plan.train.hub): one.plan.ignored for one in variants_of(plan_file, sweeps)}
    assert found == {
        ("fedavg", "plain"): (),
        ("fedavg", "momentum"): (),
        ("oneshot", "plain"): ("model.hidden", "train.fraction", "train.hub", "train.rounds"),
    }


# Engines


@pytest.mark.parametrize(
    "key", ["count = 3", 'split = "iid"', "faults = {drop = 0.1}", "low_risk = 0.5", "clusters = 2"]
)
def test_a_deployment_does_not_read_how_rows_are_dealt_out(
    key: str, plan_file: Path, tmp_path: Path, kohort_here: Call
) -> None:
    plan_file.write_text(plan_file.read_text().replace("count = 3", key))
    if key == "low_risk = 0.5":  # of the methods only hybrid reads it
        whole = plan_file.read_text().replace("fraction = 0.7\n", "").replace("rounds = 2\n", "")
        plan_file.write_text(whole.replace('"fedavg"', '"hybrid"\nclusters = "labels:2"'))
    read_plan(plan_file).require_read()
    words = ("run", plan_file, "--out", tmp_path / "out", "--engine", "flower", "--hub", tmp_path / "hub")
    code, _, said = kohort_here(*words)
    assert code == 2
    assert f"engine 'flower' does not read sites.{key.split(maxsplit=1)[0]}" in said


def test_a_deployment_reads_what_its_engine_does(plan_file: Path) -> None:
    lines = 'split = "files"\nquorum = 0.7\ndeadline = 3.0'
    plan_file.write_text(plan_file.read_text().replace("count = 3", lines))
    read_plan(plan_file).require_read("flower")


# What is printed


def test_card_and_stored_plan_hold_only_what_ran(plan_file: Path, tmp_path: Path) -> None:
    outcome = run(
        read_plan(plan_file, overrides=["method.name=oneshot", "method.secure.sum=none"]), out=tmp_path / "out"
    )
    stored = json.loads((tmp_path / "out" / "plan.json").read_bytes())
    assert stored["train"] == {}
    assert stored["model"] == {"dtype": "float32"}
    assert load_plan(stored).digest() == outcome.plan.digest()
    card = next((tmp_path / "out" / "model").glob("*.md")).read_text()
    assert "`model.dtype`" in card
    assert "`train." not in card
    assert "`model.kind`" not in card


# Keys that other keys of the same plan leave unread


@pytest.mark.parametrize(
    ("method", "sections", "key"),
    [
        ({"name": "partial", "gate": {"t": 0.2}}, {}, "method.gate.t"),
        ({"name": "partial", "gate": {"l": 2}}, {}, "method.gate.l"),
        ({"name": "partial", "gate": {"rule": "l-diversity", "l": 2, "t": 0.1}}, {}, "method.gate.t"),
        ({"name": "partial", "gate": {"rule": "paper-l", "l": 2, "k": 9}}, {}, "method.gate.k"),
        ({"name": "partial", "gate": {"count": "local", "overlap": 2}}, {}, "method.gate.overlap"),
        ({"name": "partial", "gate": {"count": "local"}, "secure": {"sum": "none", "colluders": 2}}, {}, "colluders"),
        ({"name": "additive"}, {"data": {"validation": 0.4}}, "data.validation"),
        ({"name": "central"}, {"data": {"validation": 0.4}}, "data.validation"),
        ({"name": "fedavg"}, {"data": {"validation": 0.4}}, "data.validation"),
        ({"name": "oneshot"}, {"sites": {"low_risk": 0.4}}, "method 'oneshot' does not read sites.low_risk"),
        ({"name": "trees"}, {"sites": {"low_risk": 0.4}}, "method 'trees' does not read sites.low_risk"),
        ({"name": "trees"}, {"sites": {"split": "column:a", "clusters": 2}}, "split 'column:a' does not read sites.cl"),
        ({"name": "hybrid", "phases": [{"kind": "server", "rows": "all"}]}, {"sites": {"low_risk": 0.4}}, "low_risk"),
        ({"name": "fedavg"}, {"train": {"momentum": 0.5}}, 'train.momentum, because train.optimizer is not "momentum"'),
        ({"name": "fedavg"}, {"train": {"momentum": 0.5, "optimizer": "sgd"}}, "train.momentum"),
        ({"name": "fedavg"}, {"train": {"state": "keep", "optimizer": "sgd"}}, "train.state, because sgd has no state"),
        ({"name": "oneshot", "oneshot": {"units": "tanh"}}, {}, "method.oneshot.units, because there are no random"),
        ({"name": "oneshot", "oneshot": {"patches": 2}}, {}, "method.oneshot.patches"),
        ({"name": "oneshot", "oneshot": {"scale": 2.0, "seed": 1, "columns": 3}}, {}, "columns, .*scale, .*seed"),
        ({"name": "oneshot", "oneshot": {"folds": 3}}, {}, "method.oneshot.folds"),
        ({"name": "oneshot", "oneshot": {"degree": 8192}}, {}, "method.oneshot.degree"),
        ({"name": "oneshot", "oneshot": {"features": "bins", "activation": "softplus"}}, {}, "oneshot.activation"),
        ({"name": "oneshot", "dp": {"average": 0.5}}, {}, "method.dp.average"),
        ({"name": "oneshot", "dp": {"lower_rate": True}}, {}, "method.dp.lower_rate"),
        ({"name": "additive", "dp": {"average": 0.5}}, {}, "method.dp.average"),
        ({"name": "additive", "dp": {"lower_rate": True}}, {}, "method.dp.lower_rate"),
        ({"name": "additive", "dp": {}, "smooth": 9.0}, {}, "method.smooth"),
        ({"name": "fedavg", "dp": {"mechanism": "after", "lower_rate": True}}, {}, "method.dp.lower_rate"),
        ({"name": "fedavg", "dp": {"mechanism": "statistics", "clip": 2.0}}, {}, "method.dp.clip"),
        ({"name": "fedavg", "dp": {"mechanism": "output", "delta": 0, "average": 0.5}}, {}, "method.dp.average"),
        ({"name": "fedavg", "secure": {"sum": "none", "colluders": 2}}, {}, "method.secure.colluders"),
        ({"name": "additive", "secure": {"sum": "none", "colluders": 1}}, {}, "method.secure.colluders"),
        ({"name": "silo", "additive": {"secure": {"sum": "none", "colluders": 2}}}, {"model": {"kind": "additive"}},
         "method.additive.secure.colluders"),
        ({"name": "silo", "anonymise": {"l_kind": "entropy"}}, {}, "method.anonymise.l_kind, because l is 0"),
        ({"name": "hybrid", "judge": {"rows": "low", "epsilon": 2.0}}, {}, "method.judge.epsilon"),
        ({"name": "hybrid", "phases": [{"kind": "server", "topology": "ring"}]}, {}, "does not read topology"),
        ({"name": "hybrid", "phases": [{"kind": "peers", "dp": {"average": 0.5}}]}, {}, "does not read dp.average"),
        ({"name": "fedavg"}, {"model": {"hidden": [], "activation": "tanh"}}, "model.activation"),
    ],
)  # fmt: skip
def test_keys_that_others_leave_unread_are_refused(method: dict[str, Any], sections: dict[str, Any], key: str) -> None:
    raw = small(method, **sections)
    raw["data"] = {"table": "t.csv", "target": "y", **sections.get("data", {})}
    with pytest.raises(ConfigError, match=key) as caught:
        load_plan(raw)
    assert caught.value.exit_code == 2


def test_keys_that_others_ask_for_are_read() -> None:
    for method, sections in (
        ({"name": "partial", "gate": {"rule": "t-closeness", "t": 0.2, "k": 9}}, {}),
        ({"name": "oneshot", "oneshot": {"features": 8, "units": "tanh", "patches": 2, "columns": 3}}, {}),
        ({"name": "oneshot", "oneshot": {"lambda": "folds", "folds": 3}}, {}),
        ({"name": "oneshot", "secure": {"sum": "none"}, "oneshot": {"min_rows": 9}}, {}),
        ({"name": "fedavg"}, {"train": {"optimizer": "momentum", "momentum": 0.5, "state": "keep"}}),
        ({"name": "hybrid", "phases": [{"kind": "peers", "optimizer": "momentum"}, {"kind": "server"}]},
         {"train": {"momentum": 0.5}}),
        ({"name": "fedavg", "secure": {"sum": "none", "colluders": 2}, "dp": {}}, {}),
        ({"name": "hybrid", "judge": {"rows": "high", "epsilon": 2.0}}, {"sites": {"low_risk": 0.4}}),
        ({"name": "fedavg"}, {"sites": {"clusters": 2}}),
        ({"name": "partial", "secure": {"sum": "none", "colluders": 2}}, {}),
        ({"name": "oneshot", "secure": {"sum": "none", "colluders": 2}}, {}),
        ({"name": "hybrid"}, {"sites": {"clusters": 2, "low_risk": 0.4, "alpha": [1.0, 2.0, 3.0]}}),
        ({"name": "hybrid"}, {"sites": {"split": "column:a", "clusters": 2}}),
    ):  # fmt: skip
        assert load_plan(small(method, **sections)).unread() == ()


@pytest.mark.parametrize("override", ["method.gate.t=0.2", "method.gate.l=2"])
def test_a_gates_rule_and_its_keys_are_compared_before_anything_runs(
    override: str, tmp_path: Path, kohort_here: Call
) -> None:
    example = next(path for path in EXAMPLES if path.stem == "partial")
    code, _, said = kohort_here("run", example, "--out", tmp_path / "out", "--set", override)
    assert code == 2
    assert f"does not read {override.partition('=')[0]}, because the rule 'k-anonymity' takes k" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("rule", ["l-diversity", "t-closeness", "paper-l"])
def test_a_gate_without_what_its_rule_needs_is_no_plan(rule: str) -> None:
    needed = "t" if rule == "t-closeness" else "l"
    with pytest.raises(ConfigError, match=f"the rule '{rule}' needs method.gate.{needed}"):
        load_plan(small({"name": "partial", "gate": {"rule": rule}}))


def test_what_is_printed_leaves_out_keys_that_others_leave_unread(plan_file: Path) -> None:
    plan = read_plan(plan_file, overrides=["method.name=oneshot", "method.secure.sum=none"])
    shown = plan.in_effect()["method"]
    assert not {"units", "scale", "seed", "patches", "columns", "folds", "degree"} & shown["oneshot"].keys()
    assert "min_rows" in shown["oneshot"]
    assert load_plan(plan.in_effect()).digest() == plan.digest()
    assert load_plan(plan.to_mapping(), complete=True).digest() == plan.digest()


def test_a_plan_without_a_name_is_as_strict(plan_file: Path) -> None:
    text = plan_file.read_text()
    bare = text[: text.index("[sites]")] + "[sites]\ncount = 4\nalpha = 2.0\n"
    plan_file.write_text(bare)
    for overrides in ([], ["sites.count=5"], ["method.name=additive"]):
        with pytest.raises(ConfigError, match=r"does not read sites\.alpha"):
            read_plan(plan_file, overrides=overrides)
    assert read_plan(plan_file, overrides=["method.name=trees"]).ignored == ("sites.alpha",)
    assert read_plan(plan_file, overrides=["sites.split=sorted"]).ignored == ("sites.alpha",)


def test_another_method_or_optimizer_leaves_out_what_only_the_old_one_asks_for(plan_file: Path) -> None:
    whole = plan_file.read_text()
    plan_file.write_text(whole.replace("rounds = 2", 'rounds = 2\noptimizer = "momentum"\nmomentum = 0.5'))
    assert read_plan(plan_file, overrides=["train.optimizer=sgd"]).ignored == ("train.momentum",)
    with pytest.raises(ConfigError, match=r"train\.momentum"):
        read_plan(plan_file, overrides=["train.optimizer=sgd", "train.momentum=0.4"])
    plan_file.write_text(
        whole.replace("rounds = 2", "rounds = 2\nreject = 3.0").replace("[sites]", "validation = 0.2\n[sites]")
    )
    assert read_plan(plan_file).data.validation == 0.2
    plan = read_plan(plan_file, overrides=["method.name=oneshot"])
    assert {"data.validation", "train.reject"} <= set(plan.ignored)
    assert plan.data.validation is None


def test_what_a_method_fills_in_is_no_choice_of_the_command_line(plan_file: Path) -> None:
    whole = plan_file.read_text().replace("rounds = 2", "rounds = 2\nstop = {patience = 3}")
    plan_file.write_text(whole.replace("[policy]", "[method.dp]\nepsilon = 1.0\n[policy]"))
    for overrides in ([], ["train.rounds=3"]):  # the rule for budgets chooses an optimizer
        with pytest.raises(ConfigError, match=r"does not read train\.stop"):
            read_plan(plan_file, overrides=overrides)


def test_a_comparison_reads_which_rows_are_of_low_risk(plan_file: Path) -> None:
    plan_file.write_text(plan_file.read_text().replace("count = 3", "count = 3\nlow_risk = 0.4"))
    with pytest.raises(ConfigError, match=r"does not read sites\.low_risk"):
        read_plan(plan_file)
    plan = variants_of(plan_file, [])[0].plan
    assert plan.sites.low_risk == 0.4
    assert load_plan(plan.in_effect(), complete=True).digest() == plan.digest()  # as a folder's plan is read again


# Deprecated names


def described(old: bool) -> dict[str, Any]:
    average, faults, byzantine = ("tail", "trouble", "hostile") if old else ("average", "faults", "byzantine")
    phases = [{"kind": "server", "rows": "all", "dp": {"epsilon": 1.0, average: 0.5}}]
    attack = {"kind": "sign-flip", "share": 0.2}
    return small({"name": "hybrid", "phases": phases}, sites={"count": 3, faults: {"drop": 0.1, byzantine: attack}})


def test_deprecated_names_warn_and_make_the_same_plan() -> None:
    with pytest.warns(FutureWarning) as caught:
        old = load_plan(described(old=True))
    said = {str(one.message).partition(" ")[0] for one in caught}
    assert said == {"sites.trouble", "sites.faults.hostile", "method.phases.1.dp.tail"}
    assert old.digest() == load_plan(described(old=False)).digest()


def test_the_deprecated_name_of_an_averaged_budget_warns_too() -> None:
    with pytest.warns(FutureWarning, match=r"method\.dp\.tail is deprecated; write method\.dp\.average"):
        old = load_plan(small({"name": "fedavg", "dp": {"tail": 0.3}}))
    assert old.digest() == load_plan(small({"name": "fedavg", "dp": {"average": 0.3}})).digest()


# The one section of sums


@pytest.mark.parametrize(("method", "scheme"), [("fedavg", "masks"), ("oneshot", "bfv"), ("partial", "masks")])
def test_the_scheme_of_a_sum_is_the_methods_own_when_absent(method: str, scheme: str) -> None:
    own = {"secure": {}} if method == "fedavg" else {}
    made: Plan = load_plan(small({"name": method, **own}))
    approved = approved_plan_for(made, schema=Schema(columns={}), run="00")
    assert approved.secure is not None
    assert approved.secure.sum == scheme
    assert "colluders" in made.to_mapping()["method"]["secure"]


def test_only_read_keeps_what_is_read() -> None:
    raw = small({"name": "oneshot"}, train={"rounds": 3}, model={"kind": "mlp", "dtype": "float64"})
    assert only_read(raw) == {**raw, "train": {}, "model": {"dtype": "float64"}}
    assert raw["train"] == {"rounds": 3}
