"""Every mutant of the two lists still fits the source: one that does not would end the whole run of them."""

from __future__ import annotations

import pytest
from tests.adversary.mutants import MUTANTS
from tests.statistical.mutants import BUGS
from tests.support.mutation import ROOT, Mutant, mutated


@pytest.mark.parametrize("mutant", [*MUTANTS, *BUGS], ids=lambda mutant: mutant.name)
def test_its_text_occurs_once_and_its_tests_exist(mutant: Mutant) -> None:
    text = (ROOT / "src" / "kohort" / mutant.file).read_text(encoding="utf-8")
    assert mutated(text, mutant) != text
    assert all((ROOT / file).exists() for file in mutant.tests.split())
