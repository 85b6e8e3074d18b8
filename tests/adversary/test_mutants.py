"""Every mutant of the two lists still fits the source: one that does not would end the whole run of them."""

from __future__ import annotations

import json

import pytest
from tests.adversary.mutants import MUTANTS
from tests.statistical.mutants import BUGS
from tests.support.mutation import REMEMBERED, ROOT, Mutant, mutated


@pytest.mark.parametrize("mutant", [*MUTANTS, *BUGS], ids=lambda mutant: mutant.name)
def test_its_text_occurs_once_and_its_tests_exist(mutant: Mutant) -> None:
    text = (ROOT / "src" / "kohort" / mutant.file).read_text(encoding="utf-8")
    assert mutated(text, mutant) != text
    assert all((ROOT / file).exists() for file in mutant.tests.split())


def test_mutants_have_names_of_their_own_and_only_they_are_remembered() -> None:
    names = [mutant.name for mutant in (*MUTANTS, *BUGS)]
    assert len(names) == len(set(names))
    assert set(json.loads(REMEMBERED.read_text(encoding="utf-8"))) <= set(names)
