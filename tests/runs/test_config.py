"""Plans: unknown keys name the nearest, wrong values are said, overrides are TOML, and the hash covers every key."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from kohort.errors import ConfigError
from kohort.methods.registry import methods
from kohort.runs.config import Plan, apply_overrides, json_schema, load_plan, read_plan

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.toml"))
SMALL: dict[str, Any] = {"data": {"table": "t.csv", "target": "y"}}


def with_override(*overrides: str) -> Plan:
    return load_plan(apply_overrides(SMALL, overrides))


def sections_and_keys() -> Iterator[tuple[str, str]]:
    for section, values in load_plan(SMALL).to_mapping().items():
        for key in values:
            yield section, key


@pytest.mark.parametrize(("section", "key"), list(sections_and_keys()))
def test_a_misspelt_key_names_the_nearest(section: str, key: str) -> None:
    wrong = f"{key}x"
    with pytest.raises(ConfigError) as caught:
        load_plan({**SMALL, section: {**SMALL.get(section, {}), wrong: 1}})
    assert f"'{section}.{wrong}'" in caught.value.message
    if (section, key) != ("method", "name"):  # the method's own keys are listed, its name is not one of them
        assert key in caught.value.hint


@pytest.mark.parametrize(
    ("raw", "hint"),
    [
        ({**SMALL, "tarin": {}}, "'train'"),
        ({**SMALL, "train": {"ronds": 1}}, "'rounds'"),
        ({**SMALL, "train": {"stop": {"patince": 1}}}, "'patience'"),
        ({**SMALL, "sites": {"qourum": 1}}, "'quorum'"),
        ({**SMALL, "policy": {"min_row": 1}}, "'min_rows'"),
        ({**SMALL, "method": {"name": "fedavgg"}}, "'fedavg'"),
        ({"dta": {}}, "'data'"),
    ],
)
def test_nearest_by_hand(raw: dict[str, Any], hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_plan(raw)
    assert hint in caught.value.hint
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("override", "place"),
    [
        ("train.rounds=0", "train.rounds"),
        ("train.rounds=1.5", "train.rounds"),
        ("train.rounds=many", "train.rounds"),
        ("train.rounds=[1]", "train.rounds"),
        ("train.lr=-1", "train.lr"),
        ("train.lr=inf", "train.lr"),
        ("train.lr=nan", "train.lr"),
        ("train.lr=2024-01-01", "train.lr"),
        ("train.optimizer=adamm", "train.optimizer"),
        ("train.fraction=1.01", "train.fraction"),
        ("train.stop=soon", "train.stop"),
        ("train.stop.patience=0", "train.stop.patience"),
        ("sites.count=0", "sites.count"),
        ("sites.alpha=x", "sites.alpha"),
        ("sites.alpha=[1.0, -1.0]", "sites.alpha"),
        ("sites.quorum=0", "sites.quorum"),
        ("data.test=2.0", "data.test"),
        ("data.missing=ignore", "data.missing"),
        ("data.quasi=5", "data.quasi"),
        ("data.bounds={a=[0, inf]}", "data.bounds.a"),
        ("data.bounds={a=[0]}", "data.bounds.a"),
        ("model.hidden=[0]", "model.hidden"),
        ("policy.epsilon=0", "policy.epsilon"),
        ("policy.epsilon=inf", "policy.epsilon"),
        ("policy.min_k=1", "policy.min_k"),
        ("costs.watts=0", "costs.watts"),
    ],
)
def test_a_wrong_value_names_its_place(override: str, place: str) -> None:
    with pytest.raises(ConfigError) as caught:
        with_override(override)
    assert f"'{place}" in caught.value.message
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"data": 5},
        {"data": []},
        {"data": {}},
        {**SMALL, "method": "fedavg"},
        {**SMALL, "train": None},
        {**SMALL, "method": {"name": 5}},
    ],
)
def test_a_plan_of_the_wrong_shape_is_refused(raw: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        load_plan(raw)


def test_overrides_are_toml_and_bare_words_are_text() -> None:
    made = apply_overrides(
        SMALL,
        ["train.rounds=7", "train.lr = 1e-2", "data.table=adult:train", 'data.drop=["a", "b"]', "model.kind=mlp",
         "train.stop={patience = 3}", "a.b.c=x=y", "policy.raw=true", "data.target="],
    )  # fmt: skip
    assert made["train"] == {"rounds": 7, "lr": 0.01, "stop": {"patience": 3}}
    assert made["data"] == {"table": "adult:train", "target": "", "drop": ["a", "b"]}
    assert made["a"] == {"b": {"c": "x=y"}}
    assert made["policy"] == {"raw": True}
    assert SMALL == {"data": {"table": "t.csv", "target": "y"}}, "the plan that was read must not change"


@pytest.mark.parametrize(
    ("override", "place"),
    [
        ("sites.count=true", "sites.count"),
        ("data.test=false", "data.test"),
        ("model.hidden=[true]", "model.hidden.1"),
        ("method.dp={epsilon = true, delta = 1e-5}", "method.dp.epsilon"),
    ],
)
def test_true_and_false_are_no_numbers(override: str, place: str) -> None:
    method = "method.name=fedavg" if override.startswith("model") else "method.name=additive"
    with pytest.raises(ConfigError, match=f"'{place}' in the plan should be a number, not true or false"):
        with_override(method, override)


def test_true_and_false_stay_where_a_key_takes_them() -> None:
    assert with_override("method.name=partial", "method.gate.strict=true").config.gate.strict is True


def test_entries_of_a_list_of_sections_are_numbered_from_one() -> None:
    raw = {"method": {"phases": [{"lr": 1.0}, {"lr": 2.0, "dp": {"clip": 1.0}}]}}
    made = apply_overrides(raw, ["method.phases.2.lr=3", "method.phases.2.dp.clip=0.5"])
    assert made == {"method": {"phases": [{"lr": 1.0}, {"lr": 3, "dp": {"clip": 0.5}}]}}
    assert raw["method"]["phases"][1] == {"lr": 2.0, "dp": {"clip": 1.0}}, "the plan that was given stays as it was"
    for place in ("method.phases.0.lr=1", "method.phases.3.lr=1", "method.phases.first.lr=1"):
        with pytest.raises(ConfigError, match="no entry of the list"):
            apply_overrides(raw, [place])
    with pytest.raises(ConfigError, match="it names a list"):
        apply_overrides(raw, ["method.phases.2=1"])


@pytest.mark.parametrize("override", ["", "x", "=5", ".a=5", "a.=5", "a..b=5", " =1"])
def test_an_unreadable_override_is_refused(override: str) -> None:
    with pytest.raises(ConfigError, match="--set"):
        apply_overrides(SMALL, [override])


def test_an_override_below_a_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="not a section"):
        apply_overrides(SMALL, ["data.table.name=5"])


def test_choosing_another_method_leaves_the_keys_of_the_former() -> None:
    assert with_override("method.name=central").method == "central"
    with pytest.raises(ConfigError):
        with_override("method.name=nothing")
    with pytest.raises(ConfigError, match="unknown key 'method"):
        with_override("method.name=central", "method.rounds=5")


def test_plans_from_files(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    with pytest.raises(ConfigError, match="no plan"):
        read_plan(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_plan(tmp_path)
    for content in (b"[data", b"a = ", b"\xff\xfe", b"a = 1\na = 2"):
        path.write_bytes(content)
        with pytest.raises(ConfigError):
            read_plan(path)
    path.write_text('[data]\ntable = "x"\n')
    assert read_plan(path, overrides=["train.rounds=3"]).train.rounds == 3


CHANGED: dict[str, Any] = {
    "data.table": "u.csv", "data.target": "z", "data.quasi": ["q"], "data.sensitive": ["s"], "data.identifiers": ["i"],
    "data.items": ["m"], "data.features": "rest", "data.drop": ["d"], "data.kinds": {"a": "number"},
    "data.bins": {"a": [1.0]}, "data.bounds": {"a": [0.0, 1.0]}, "data.categories": {"a": ["b"]}, "data.other": ["o"],
    "data.hierarchies": {"m": "icd9"}, "data.ancestors": ["m"], "data.ordered": ["a"],
    "data.person": "p", "data.weight": "w", "policy.pairs": "open", "data.keep": ["k"],
    "data.task": "regression", "data.unseen": "error", "data.preflight": "first",
    "data.reading": {"delimiter": ";"}, "data.nullable": ["n"],
    "data.missing": "category", "data.encoding": "onehot", "data.test": 0.4,
    "sites.split": "sorted", "sites.clusters": 3, "sites.alpha": 2.0, "sites.low_risk": 0.4,
    "model.kind": "logistic", "model.activation": "tanh", "model.dtype": "float64", "model.init": "glorot",
    "train.optimizer": "sgd",
    "train.state": "keep", "train.stop": {"patience": 4}, "train.aggregate": "median", "train.hub": "momentum",
    "train.correction": "fedprox:0.1", "train.select": "poisson", "policy.tasks": ["train"], "policy.public": [],
    "method.name": "central", "sites.faults": {"drop": 0.5}, "sites.deadline": 3.0, "train.reject": 2.0,
    "data.validation": 0.1, "policy.epsilon": 2.0, "method.link": "log",
    "method.metric": "gram", "method.monotone": {"a": "up"},
    "method.dp": {"epsilon": 2.0, "delta": 1e-6}, "method.secure": {"sum": "bfv"},
}  # fmt: skip
CHOSEN: dict[str, Any] = {
    "sites.alpha": {"sites": {"split": "dirichlet"}}, "sites.low_risk": {"method": {"name": "hybrid"}},
    "data.validation": {"train": {"reject": 3.0}}, "train.state": {"train": {"optimizer": "momentum"}},
    "train.momentum": {"train": {"optimizer": "momentum"}},
}  # fmt: skip
"""What else a plan must say for a key to be read."""


def test_the_hash_is_stable_and_covers_every_key() -> None:
    plan = load_plan(SMALL)
    assert plan.digest() == load_plan(json.loads(json.dumps(SMALL))).digest()
    assert load_plan(plan.to_mapping(), complete=True) == plan
    assert load_plan(plan.in_effect()) == plan
    assert load_plan(plan.to_mapping(), complete=True).digest() == plan.digest()
    seen = {plan.digest()}
    places = {
        (section, key): value for section, values in plan.to_mapping().items() for key, value in values.items()
    } | dict.fromkeys(tuple(place.split(".", 1)) for place in CHANGED)
    for (section, key), value in places.items():
        place = f"{section}.{key}"
        if place in CHANGED:
            new = CHANGED[place]
        elif isinstance(value, bool):
            new = not value
        elif isinstance(value, int):
            new = value + 1
        elif isinstance(value, float):
            new = value * 0.5 or 0.25
        elif isinstance(value, list) and value and isinstance(value[0], int):
            new = [7, 7]
        else:
            raise AssertionError(f"say in CHANGED how {place} can change")
        raw = {**SMALL, section: {**SMALL.get(section, {}), key: new}}
        chosen = {**CHOSEN.get(place, {}), section: {**CHOSEN.get(place, {}).get(section, {}), **raw[section]}}
        digest = load_plan({**raw, **chosen}).digest()
        assert digest not in seen, f"{place} is not part of the plan's hash"
        seen.add(digest)
    assert len(seen) > 45


# ---- the JSON Schema --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = json.loads(json.dumps(json_schema()))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_schema_accepts_every_example(path: Path, validator: jsonschema.Draft202012Validator) -> None:
    raw = tomllib.loads(path.read_text(encoding="utf-8"))
    validator.validate(raw)
    load_plan(raw)


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.parametrize("method", sorted(methods()))
def test_the_schema_knows_every_method(method: str, validator: jsonschema.Draft202012Validator) -> None:
    validator.validate({**SMALL, "method": {"name": method}})


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"method": {}},
        {"method": {"bins": 16}},
        {"method": {"steps": 2}, "model": {"kind": "trees"}},
        {"train": {"stop": {"metric": "loss", "patience": 3, "min_delta": 0.1}}},
        {"sites": {"split": "dirichlet", "alpha": [5.0, 5.0, 1.0], "clusters": "labels"}},
        {"data": {"table": ["a.csv", "b.csv"], "test": "c.csv", "bounds": {"a": [0, 1]}}},
    ],
)
def test_the_schema_accepts_what_the_loader_accepts(
    extra: dict[str, Any], validator: jsonschema.Draft202012Validator
) -> None:
    raw = {**SMALL, **extra}
    load_plan(raw)
    validator.validate(raw)


@pytest.mark.parametrize(
    "extra",
    [
        {"tarin": {}},
        {"train": {"ronds": 3}},
        {"train": {"rounds": 0}},
        {"train": {"stop": {"patience": 0}}},
        {"train": {"stop": {"patince": 3}}},
        {"method": {"name": "nothing"}},
        {"method": {"name": "fedavg", "more": 1}},
        {"policy": {"min_rows": "few"}},
        {"data": {}},
    ],
)
def test_the_schema_refuses_what_the_loader_refuses(
    extra: dict[str, Any], validator: jsonschema.Draft202012Validator
) -> None:
    raw = {**SMALL, **extra}
    with pytest.raises(ConfigError):
        load_plan(raw)
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(raw)
