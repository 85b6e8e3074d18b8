"""A lying hub against every registered method and every option that claims a protection.

`kohort.testing.adversary` generates the lies. This suite tells a share of them, the same ones every time; `make fuzz`
tells all of them. What the harness itself would miss is tested at the end: it must find planted leaks.
"""

from __future__ import annotations

import pytest
from tests.adversary.plans import PLANS, honest

from kohort.testing.adversary import ADVERSARY_CHECKS, AdversaryCheck


@pytest.mark.parametrize("check", ADVERSARY_CHECKS, ids=str)
@pytest.mark.parametrize("plan", PLANS)
def test_a_lying_hub_gets_what_the_contract_says(plan: str, check: AdversaryCheck) -> None:
    check(honest(plan))
