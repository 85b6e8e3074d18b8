"""Classes of `syntactic`: what a hub learns by handing out classes that it invents, and what sites publish of items.

A class that one combination of values fits attracts the rows that have it. If a site counted its rows among the classes
it was handed, the hub would read off how many persons have any combination: down to one, and from raw rows.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from tests.adversary.plans import PLANS, honest

from kohort.anonymity.itemsets import generalise
from kohort.errors import KohortError
from kohort.methods.syntactic import exchange
from kohort.methods.syntactic.mapping.assign import map_rows
from kohort.methods.syntactic.mapping.build import union
from kohort.methods.syntactic.mapping.mapping import ItemGroups, SiteMapping
from kohort.protocol.wire import decode, encode
from kohort.rounds.peers import pack_boxes, unpack_boxes
from kohort.testing import HonestRun
from kohort.testing.recorded import CODES, VICTIM, Exchange, few_rows, record
from kohort.testing.watch import Victim
from kohort.transport.messages import RequestMessage

RECODED = "syntactic, recoded"
K = 5


def exchange_of(found: HonestRun, task: str) -> tuple[int, Exchange]:
    return next((at, one) for at, one in enumerate(found.script(VICTIM)) if one.asked.task == task)


def with_class(asked: RequestMessage, age: int, ward: str, items: tuple[str, ...]) -> RequestMessage:
    """The request with one class of one combination of values in place of all classes of the other sites."""
    payload = decode(asked.body)
    boxes = unpack_boxes(payload.blobs["mappings"])
    others = [name for name in boxes if name != VICTIM]
    of = SiteMapping.from_bytes(boxes[others[0]])
    groups = ItemGroups(labels=items, members=tuple((item,) for item in items), of_class=(tuple(range(len(items))),))
    cells = tuple((str(age) if column.name == "age" else ward,) for column in of.columns)
    made = replace(of, cells=cells, sizes=(99,), groups=groups).to_bytes()
    handed = pack_boxes({VICTIM: boxes[VICTIM], others[0]: made})
    return replace(asked, body=encode(replace(payload, blobs={**payload.blobs, "mappings": handed})))


def answers(found: HonestRun, wanted: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """What the victim says of classes of each of these combinations, in a run of its own each."""
    place, honest_one = exchange_of(found, "mappings.place")
    said = []
    for age, ward, *items in wanted:
        victim = Victim(found, VICTIM)
        victim.follow(found.script(VICTIM)[:place])
        lie = with_class(honest_one.asked, age, ward, tuple(items[0]) if items else ())
        said.append(dict(decode(victim.ask(lie, f"a class of age {age}").body).metrics))
    return said


@pytest.mark.parametrize("plan", ["syntactic", RECODED])
def test_an_invented_class_tells_nothing_of_the_rows_that_fit_it(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, items = honest(plan), plan == RECODED
    rows = few_rows(items=items)[VICTIM].select("age", "ward", *(["codes"] if items else []))
    present = [tuple(row) for row in rows.head(3).rows()]
    absent = [(int(rows["age"].max()) + 1, *row[1:]) for row in present[:1]]  # type: ignore[arg-type]
    usual = decode(exchange_of(found, "mappings.place")[1].reply.body).metrics
    assert all(said == usual for said in answers(found, present + absent))
    place = exchange.place_rows

    def among_all(frame: pl.DataFrame, own: Any, **options: Any) -> Any:
        return replace(place(frame, own, **options), own=_at_home(frame, known, options["tree"]))

    known: list[SiteMapping] = []
    monkeypatch.setattr(exchange, "read_mappings", _listening(known))
    monkeypatch.setattr(exchange, "place_rows", among_all)
    counts = [said["rows"] - said["own"] for said in answers(found, present[:1] + absent)]
    assert counts == [1, 0], "counted among all classes, one person is found"


def _listening(known: list[SiteMapping]) -> Any:
    read = exchange.read_mappings

    def listen(*given: Any, **options: Any) -> dict[str, SiteMapping]:
        found = read(*given, **options)
        known[:] = found.values()
        return found

    return listen


def _at_home(frame: pl.DataFrame, known: list[SiteMapping], tree: Any) -> int:
    """How many rows get a class of their own site's among those of all."""
    joint = union(known)
    place = joint.sites.index(VICTIM)
    return int((map_rows(frame, joint, tree=tree).site_of == place).sum())


def published(found: HonestRun) -> dict[str, Any]:
    reply = exchange_of(found, "mappings.publish")[1].reply
    return dict(json.loads(decode(reply.body).blobs["mapping"]))


def held_by_few(document: dict[str, Any]) -> list[str]:
    """The published labels of which fewer than k of the victim's rows hold an item, and at least one does."""
    held = few_rows(items=True)[VICTIM]["codes"].to_list()
    names = document["item_names"]
    found = []
    for label, members in zip(document["labels"], document["members"], strict=True):
        below = {names[place] for place in members}
        if 0 < sum(bool(below & set(codes)) for codes in held) < K:
            found.append(label)
    return found


def test_recoded_items_name_no_item_of_few_persons(monkeypatch: pytest.MonkeyPatch) -> None:
    document = published(honest(RECODED))
    assert any(label.startswith("<") for label in document["labels"]), "items were recoded"
    assert CODES[0] not in document["labels"]
    assert not held_by_few(document)
    recode = generalise.recode

    def blind(*given: Any, **options: Any) -> Any:
        """Recoding that believes that one row is enough."""
        return recode(*given, **{**options, "k": 1})

    monkeypatch.setattr(generalise, "recode", blind)
    with pytest.raises(KohortError):  # the checker, which shares nothing with it, finds it
        record(PLANS[RECODED]())
