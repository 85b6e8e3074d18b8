"""Groups of items by outcome: counts without small cells, groups that follow outcomes, runs, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.errors import ConfigError, IntegrityError, RefusedError
from kohort.methods.syntactic import outcome_groups
from kohort.methods.syntactic.mapped_encoder import MappedEncoder
from kohort.methods.syntactic.outcome_groups import (
    Nodes,
    OutcomeSection,
    grouped_schema,
    lines_of,
    read_groups,
    rolled_up,
)
from kohort.models.files import load_model
from kohort.runs.config import Plan, load_plan
from kohort.runs.run import run
from kohort.tables.codes import CodeTree
from kohort.tables.domain import ColumnDomain, Domain
from kohort.tables.schema import Schema

ILL = ["250.01", "250.40", "410", "486"]
"""Two of each chapter raise the risk and two do not, so that chapters say nothing about it."""
WELL = ["244", "272", "401", "493"]
CODES = (*ILL, *WELL)
TREE = CodeTree("codes", "icd9")
ICD = Nodes.of(TREE, tuple(sorted(CODES)))


def counts_of(given: dict[str, tuple[int, int]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    found = np.zeros((len(ICD.names), 2), np.int64)
    for name, pair in given.items():
        found[ICD.names.index(name)] = pair
    return found


def persons_of(counts: np.ndarray[Any, np.dtype[np.int64]]) -> list[list[np.ndarray[Any, np.dtype[np.int64]]]]:
    """As many persons, everybody with one code."""
    ends = counts.reshape(-1).cumsum()
    everybody = np.split(np.arange(ends[-1]), ends[:-1])
    return [everybody[place : place + 2] for place in range(0, len(everybody), 2)]


def shown(counts: np.ndarray[Any, np.dtype[np.int64]]) -> dict[str, tuple[int, int]]:
    return {name: (int(a), int(b)) for name, (a, b) in zip(ICD.names, counts, strict=True) if a or b}


def test_every_node_stands_before_the_one_above_it() -> None:
    assert ICD.names[-1] == TREE.declared("410")[-1]
    assert ICD.parent[-1] == -1
    for place, above in enumerate(ICD.parent[:-1]):
        assert above > place
    for code in CODES:
        at = ICD.names.index(code)
        chain = []
        while (at := ICD.parent[at]) >= 0:
            chain.append(ICD.names[at])
        assert tuple(chain) == TREE.declared(code)
    assert "250.x" in ICD.lowest
    assert not ICD.lowest & {*CODES}


def test_a_small_count_goes_to_the_label_above_it_and_no_further_than_needed() -> None:
    given = {"250.01": (20, 30), "250.40": (3, 40), "244": (2, 9), "410": (9, 9), "486": (0, 50)}
    found = shown(rolled_up(persons_of(counts_of(given)), ICD, 10))
    # 250.40 has three well persons and meets 244 in the chapter; 410 and 486 have nobody else in theirs.
    chapter, root = TREE.declared("244")[-2:]
    assert found == {"250.01": (20, 30), root: (14, 108)}
    given["244"] = (8, 9)
    found = shown(rolled_up(persons_of(counts_of(given)), ICD, 10))
    assert found == {"250.01": (20, 30), chapter: (11, 49)}, "nine and no well persons are too few at the root"


@pytest.mark.parametrize("seed", range(6))
def test_no_filled_cell_has_few_persons_and_nothing_is_counted_twice(seed: int) -> None:
    random = np.random.default_rng(seed)
    given = counts_of({code: tuple(random.integers(0, 25, 2)) for code in CODES})
    found = rolled_up(persons_of(given), ICD, 10)
    assert not ((found > 0) & (found < 10)).any()
    assert ((found > 0).all(axis=1) | (found == 0).all(axis=1)).all()
    lost = given.sum(axis=0) - found.sum(axis=0)
    assert (lost >= 0).all()
    assert not lost.any() or lost.min() < 10, "only a root that is too small is left out"


def test_a_person_with_many_rare_codes_is_one_person_at_the_label_above() -> None:
    nobody, six = np.zeros(0, np.int64), np.arange(6)
    held = [[nobody, nobody] for _ in ICD.names]
    for code in ("250.01", "250.40", "244"):  # the same six persons of either class have all three
        held[ICD.names.index(code)] = [six, six + 100]
    assert not rolled_up(held, ICD, 10).any()
    assert shown(rolled_up(held, ICD, 6)) == dict.fromkeys(("250.01", "250.40", "244"), (6, 6))
    held[ICD.names.index("410")] = [np.arange(10, 14), np.arange(200, 204)]
    assert shown(rolled_up(held, ICD, 10)) == {ICD.names[-1]: (10, 10)}


def test_groups_follow_the_outcome_and_are_nested() -> None:
    counts = counts_of(dict.fromkeys(ILL, (20, 80)) | dict.fromkeys(WELL, (80, 20)))
    lines = {name: above for name, *above in lines_of(counts, ICD, 4)}
    first = {code: lines[TREE.declared(code)[0]] for code in CODES}
    assert {first[code][-1] for code in ILL} == {"outcome group 2 of 2"}
    assert {first[code][-1] for code in WELL} == {"outcome group 1 of 2"}
    for above in lines.values():
        number = int(above[0].split()[2])
        assert above == [f"outcome group {number} of 4", f"outcome group {(number + 1) // 2} of 2"]


def test_what_few_persons_say_is_drawn_to_the_label_above() -> None:
    """Ten persons, all ill, of a category weigh less than a thousand of the same block that are mostly well."""
    counts = counts_of({"401": (0, 10), "410": (900, 100), "486": (500, 500), "244": (700, 300)})
    lines = {name: above for name, *above in lines_of(counts, ICD, 4)}
    share = {code: int(lines[TREE.declared(code)[0]][0].split()[2]) for code in ("401", "410", "486", "244")}
    assert share["401"] < share["486"]


def test_groups_stand_above_codes_that_no_site_has() -> None:
    lines = lines_of(counts_of(dict.fromkeys(CODES, (20, 80))), ICD, 4)
    tree = CodeTree("codes", "icd9", lines)
    assert tree.chain("250.99") == ("250.x", *tree.chain("250.01")[1:])
    above = {name: tuple(groups) for name, *groups in lines}
    assert tree.chain("251.3") == ("251.x", *above["250-259"], "*")
    assert tree.chain("V10") == ("V10.x", *above["*"], "*")
    tree.hierarchy(["250.99", "251.3", "V10", *CODES])  # refuses labels that stand above each other in two ways


def test_a_schema_with_groups_reads_back() -> None:
    schema = Schema.of(target="y", items=["codes"], hierarchies={"codes": "icd9"}, ancestors=["codes"])
    made = grouped_schema(schema, {"codes": (("250.x", "outcome group 1 of 2"),)})
    assert Schema.from_mapping(made.to_mapping()) == made
    assert made.fingerprint() != schema.fingerprint()


def the_schema() -> tuple[Schema, Domain]:
    schema = Schema.of(target="y", items=["codes"], hierarchies={"codes": "icd9"})
    return schema, Domain(columns={"codes": ColumnDomain(kind="items", categories=tuple(sorted(CODES)))})


@pytest.mark.parametrize(
    "wrong",
    [
        b"no JSON",
        b"[]",
        b'{"codes": []}',
        b'{"others": []}',
        b'{"codes": [["250.x", "outcome group 1 of 2"]]}',
    ],
)
def test_a_site_takes_no_other_groups(wrong: bytes) -> None:
    with pytest.raises(IntegrityError, match="groups of items"):
        read_groups(wrong, *the_schema(), OutcomeSection(groups=2))


def test_a_site_takes_groups_under_their_own_names_alone() -> None:
    lines = lines_of(counts_of(dict.fromkeys(CODES, (20, 80))), ICD, 2)
    assert read_groups(json.dumps({"codes": lines}).encode(), *the_schema(), OutcomeSection(groups=2))["codes"] == lines
    renamed = [[name, "persons with " + name] for name, *_ in lines]
    with pytest.raises(IntegrityError, match="groups of items"):
        read_groups(json.dumps({"codes": renamed}).encode(), *the_schema(), OutcomeSection(groups=2))


def tables(rows: int = 400, seed: int = 2) -> dict[str, pl.DataFrame]:
    random = np.random.default_rng(seed)
    made = {}
    for name in ("a", "b", "c"):
        sets = [sorted(random.choice(CODES, random.integers(1, 4), replace=False).tolist()) for _ in range(rows)]
        risk = np.array([sum(1 if code in ILL else -1 for code in held) for held in sets])
        made[name] = pl.DataFrame(
            {
                "age": random.choice(["young", "old"], rows),
                "codes": pl.Series(sets, dtype=pl.List(pl.String)),
                "dose": random.normal(0, 1, rows).round(2),
                "outcome": np.where(risk + random.normal(0, 1, rows) > 0, "ill", "well"),
            }
        )
    return made


def plan(outcome: dict[str, Any] | None, *, data: dict[str, Any] | None = None, **changes: Any) -> Plan:
    anonymise = {"k": 20, "m": 2, **({} if outcome is None else {"outcome": outcome})}
    return load_plan(
        {
            "data": {
                "table": "memory",
                "target": "outcome",
                "quasi": ["age"],
                "items": ["codes"],
                "categories": {"age": ["young", "old"], "outcome": ["ill", "well"], "codes": list(CODES)},
                "bounds": {"dose": [-5, 5]},
                "hierarchies": {"codes": "icd9"},
                "ancestors": ["codes"],
                "features": "rest",
                "encoding": "onehot",
                "test": 0.3,
                **(data or {}),
            },
            "sites": {"split": "files"},
            "model": {"kind": "logistic"},
            "train": {"rounds": 8, "batch": 32, "lr": 0.4, "optimizer": "sgd"},
            "method": {"name": "syntactic", "anonymise": anonymise},
            "policy": {"min_rows": 1, "min_k": 2},
            **changes,
        }
    )


@pytest.mark.parametrize("scheme", ["masks", "none"])
def test_rare_codes_become_groups_by_outcome_and_more_is_kept(scheme: str, tmp_path: Path) -> None:
    plain = run(plan(None), seed=1, tables=tables())
    found = run(plan({"groups": 4, "secure": {"sum": scheme}}), seed=1, tables=tables(), out=tmp_path / "run")
    assert found.metrics["auc"] > plain.metrics["auc"] + 0.02
    model = load_model(tmp_path / "run")
    assert isinstance(model.encoder, MappedEncoder)
    labels = {label for mapping in model.encoder.mappings for label in mapping.groups.labels}
    assert any("outcome group" in label for label in labels)
    assert not any("system" in label for label in labels), "no chapter stands above the codes"
    rows = tables(seed=9)["a"]
    x = model.encoder.transform(rows)
    assert (model.probabilities(x) == found.model.probabilities(found.model.encoder.transform(rows))).all()
    assert found.facts["dearer_class"] == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "ledger" / "ledger.jsonl").read_text().splitlines()]
    kinds = {line["guarantee"]["kind"] for line in lines if line.get("what") == "syntactic.outcomes"}
    assert ("secure-sum" if scheme == "masks" else "aggregate") in kinds
    assert ("aggregate" in kinds) == (scheme == "none")


def test_an_interrupted_run_goes_on_to_the_same_model(tmp_path: Path) -> None:
    made = plan({"groups": 4})
    whole = run(made, seed=1, tables=tables(rows=120))

    def stop(progress: Any) -> None:
        if progress.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(made, seed=1, tables=tables(rows=120), out=tmp_path / "run", watch=stop)
    resumed = run(made, seed=1, tables=tables(rows=120), out=tmp_path / "run", resume=True)
    rows = tables(seed=9)["a"]
    assert (resumed.model.predict_proba(rows) == whole.model.predict_proba(rows)).all()


def test_sites_that_share_classes_past_the_hub_predict_with_the_groups(tmp_path: Path) -> None:
    own = {"name": "syntactic", "anonymise": {"k": 20, "outcome": {"groups": 4}}}
    to_hub = run(plan(None, method=own), seed=1, tables=tables(rows=120))
    found = run(plan(None, method={**own, "share": "peers"}), seed=1, tables=tables(rows=120), out=tmp_path / "run")
    rows = tables(seed=9)["a"]
    assert (found.predict(rows, site="a") == to_hub.model.predict(rows)).all()


def test_an_additive_model_learns_from_the_groups() -> None:
    own = {"name": "syntactic", "anonymise": {"k": 20, "outcome": {"groups": 4}}}
    changes = {"method": own, "model": {"kind": "additive"}, "train": {}}
    found = run(plan(None, **changes), seed=1, tables=tables())
    assert found.metrics["auc"] > 0.7
    own["anonymise"] = {"k": 20, "outcome": {"groups": 4, "secure": {"sum": "none"}}}
    with pytest.raises(ConfigError, match=r"outcome\.secure is not read"):
        run(plan(None, **changes), seed=1, tables=tables(rows=60))


def test_a_total_has_no_cell_of_few_persons(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def watched(total: Any, nodes: Nodes, groups: int) -> Any:
        seen.append(total)
        return lines_of(total, nodes, groups)

    monkeypatch.setattr(outcome_groups, "lines_of", watched)
    run(plan({"groups": 4, "least": 30}), seed=1, tables=tables(rows=160))
    (total,) = seen
    assert total.any()
    assert not ((total > 0) & (total < 30)).any()
    seen.clear()
    monkeypatch.setattr(
        outcome_groups, "rolled_up", lambda held, *_: np.asarray([[len(own) for own in node] for node in held])
    )
    run(plan({"groups": 4, "least": 30}), seed=1, tables=tables(rows=30))
    (total,) = seen
    assert ((total > 0) & (total < 30)).any(), "without rolling up, this check fails"


@pytest.mark.parametrize(
    ("outcome", "data", "says"),
    [
        ({"groups": 6}, {}, "outcome.groups is 6"),
        ({}, {"hierarchies": {}, "ancestors": []}, "stand above a hierarchy"),
        ({}, {"categories": {"age": ["young", "old"], "outcome": ["ill", "well", "dead"]}}, "two classes"),
    ],
)
def test_plans_that_cannot_work_are_refused(outcome: dict[str, Any], data: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        run(plan(outcome, data=data), seed=1, tables=tables(rows=60))


def test_a_sum_of_two_sites_is_refused() -> None:
    two = {name: table for name, table in tables(rows=60).items() if name != "c"}
    with pytest.raises(RefusedError, match="three sites"):
        run(plan({}), seed=1, tables=two)
