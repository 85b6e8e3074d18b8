"""Maker against checker against brute force: every rule and technique, on tables of persons with several rows each."""

from __future__ import annotations

import datetime

import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from tests.reference.releases import broken_rules, candidates, covers, presence
from tests.support.examples import examples

from kohort.anonymity.checker.measures import unmet
from kohort.anonymity.checker.population import in_population
from kohort.anonymity.relational.anonymise import anonymise
from kohort.errors import RefusedError

QUASI = ["age", "town", "born"]
SENSITIVE = ["illness", "stay"]
RULES = (
    {"k": 2},
    {"k": 3},
    {"k": 2, "l": 2},
    {"k": 2, "l": 3},
    {"k": 2, "l": 1.7, "l_kind": "entropy"},
    {"k": 2, "l": 2, "l_kind": "recursive", "c": 2.5},
    {"k": 2, "t": 0.25},
    {"k": 2, "t": 0.3, "t_kind": "kl"},
    {"k": 2, "alpha": 0.7},
    {"k": 2, "beta": 1.0},
    {"k": 2, "beta": 1.0, "beta_kind": "enhanced"},
    {"k": 2, "delta": 1.5},
    {"k": 2, "l": 2, "t": 0.4, "alpha": 0.8},
    {"k": 2, "risk": 0.34},
)
WAYS = (
    {},
    {"algorithm": "mondrian"},
    {"algorithm": "cluster"},
    {"algorithm": "mdav"},
    {"hierarchies": "intervals"},
    {"suppression_limit": 0.3},
    {"suppression_limit": 0.3, "balance": 0.5},
    {"hierarchies": "intervals", "suppression_limit": 0.3, "balance": 0.5},
    {"means": ["age"]},
    {"algorithm": "mdav", "means": ["age"]},
    {"rounding": {"age": 5, "stay": 2}},
    {"top": {"age": 60}, "bottom": {"age": 20}},
    {"weights": {"age": 3.0}},
    {"keep_exact": False},
)


@st.composite
def visits(draw: st.DrawFn) -> pl.DataFrame:
    """Persons with one to three visits each, who keep their age, town and date of birth; some are missing."""
    age = st.one_of(st.none(), st.integers(0, 90))
    town = st.one_of(st.none(), st.sampled_from(["ash", "bree", "cove", "dell"]))
    born = st.one_of(st.none(), st.dates(datetime.date(1930, 1, 1), datetime.date(2010, 12, 31)))
    people = draw(st.lists(st.tuples(age, town, born, st.integers(1, 3)), min_size=1, max_size=25))
    rows = [(f"p{who}", *person[:3]) for who, person in enumerate(people) for _ in range(person[3])]
    illness = draw(st.lists(st.sampled_from(["flu", "gout", "hiv"]), min_size=len(rows), max_size=len(rows)))
    stay = draw(st.lists(st.integers(1, 6), min_size=len(rows), max_size=len(rows)))
    types = {"person": pl.String, "age": pl.Int64, "town": pl.String, "born": pl.Date}
    frame = pl.DataFrame(rows, schema=types, orient="row")
    return frame.with_columns(pl.Series("illness", illness, dtype=pl.String), pl.Series("stay", stay, dtype=pl.Int64))


def asked_of(rule: dict) -> dict:
    """The rule with a bound on risk as what it means: a size of classes."""
    found = {name: value for name, value in rule.items() if name != "risk"}
    return {**found, "k": max(found["k"], 3)} if "risk" in rule else found


@examples(40, 500)
@given(frame=visits(), rule=st.sampled_from(RULES), way=st.sampled_from(WAYS), counted=st.booleans())
def test_every_rule_and_technique_hold_by_brute_force(frame, rule, way, counted) -> None:
    person = "person" if counted else None
    given = frame if counted else frame.drop("person")
    asked = asked_of(rule)
    try:
        made = anonymise(given, quasi=QUASI, sensitive=SENSITIVE, person=person, **rule, **way)
    except RefusedError:
        persons = frame["person"].to_list() if counted else list(range(frame.height))
        step = way.get("rounding", {}).get("stay")
        stays = [round(stay / step) * step if step else stay for stay in frame["stay"].to_list()]
        private = {"illness": frame["illness"].to_list(), "stay": stays}
        assert broken_rules([()] * frame.height, persons, private, asked)
        return
    released = made.frame
    assert made.report.verified
    assert released.columns == [name for name in frame.columns if name != "person"]
    assert made.report.suppressed_rows <= way.get("suppression_limit", 0.0) * frame.height
    rows = made.kept.tolist()
    persons = [frame["person"][row] for row in rows] if counted else rows
    keys = list(released.select(QUASI).iter_rows())
    private = {name: released[name].to_list() for name in SENSITIVE}
    assert broken_rules(keys, persons, private, asked) == []
    judged = released.with_columns(pl.Series("person", persons))
    assert unmet(judged, quasi=QUASI, sensitive=SENSITIVE, persons="person", **asked) == ()
    if not {"means", "rounding", "top"} & set(way) and "hierarchies" not in way:
        texts = released["age"].to_list()
        assert all(covers(text, frame["age"][row]) for text, row in zip(texts, rows, strict=True))


@st.composite
def drawn(draw: st.DrawFn) -> tuple[pl.DataFrame, pl.DataFrame]:
    """A population, one row per person, and the table of some of them."""
    people = draw(
        st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["ash", "bree", "cove"])), min_size=4, max_size=40)
    )
    inside = draw(st.sets(st.integers(0, len(people) - 1), min_size=2))
    population = pl.DataFrame(people, schema={"age": pl.Int64, "town": pl.String}, orient="row")
    return population, population[sorted(inside)]


@examples(25, 500)
@given(
    tables=drawn(),
    rule=st.sampled_from(({"risk": 0.25}, {"risk": 0.1}, {"presence": (0.0, 0.6)}, {"presence": (0.2, 0.8)})),
    way=st.sampled_from(({}, {"algorithm": "mondrian"}, {"suppression_limit": 0.2})),
)
def test_rules_about_a_population_hold_by_brute_force(tables, rule, way) -> None:
    population, frame = tables
    names = ["age", "town"]
    share = frame.height / population.height
    low, high = rule.get("presence", (0.0, 1.0))
    needed = round(1 / rule["risk"]) if "risk" in rule else 0
    try:
        made = anonymise(frame, quasi=names, k=2, population=population, **rule, **way)
    except RefusedError:
        assert population.height < needed or not low <= share <= high
        return
    keys, people = list(made.frame.iter_rows()), list(population.iter_rows())
    fewest = min(len(found) for found in candidates(keys, people).values())
    least, most = presence(keys, list(range(len(keys))), people)
    assert fewest >= needed
    assert low - 1e-9 <= least
    assert most <= high + 1e-9
    found = in_population(made.frame, population, quasi=names)
    assert (found.k_map, found.short) == (fewest, 0)
    assert abs(found.presence_low - least) < 1e-9
    assert abs(found.presence_high - most) < 1e-9
