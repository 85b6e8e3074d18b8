"""The contract suite: the laws that every registered method is held to, for methods in other packages too.

Check a method in one call, which raises `ContractViolation` when a law is broken:

    from kohort.testing import check_method

    check_method("my-method", folder)

Or let pytest report each law by itself; the runs are shared between the checks:

    import pytest
    from kohort.testing import CHECKS, MethodRuns

    @pytest.fixture(scope="module")
    def runs(tmp_path_factory):
        return MethodRuns("my-method", tmp_path_factory.mktemp("contract"))

    @pytest.mark.parametrize("check", CHECKS, ids=str)
    def test_contract(check, runs):
        check(runs)

The runs take place in this process, over four small tables made for the purpose, with the keys that the method's
`example` names. A method that passes keeps the laws on these tables; the suite does not prove that its claims are true.
That a guarantee such as differential privacy holds needs tests of the method's own.

What a lying hub, site or key-holder gets is checked by a second suite (`kohort.testing.adversary`), for any plan:

    from kohort.testing import check_trust, plan_of

    check_trust(plan_of("my-method"))
"""

from __future__ import annotations

from kohort.testing.adversary import ADVERSARY_CHECKS, AdversaryCheck, check_trust
from kohort.testing.checks import CHECKS, Check, ContractViolation, check_method
from kohort.testing.federation import (
    SITE_SIZES,
    Carried,
    RecordedRun,
    carry_out,
    listening,
    plan_of,
    tables,
)
from kohort.testing.recorded import Exchange, HonestRun, few_rows, record
from kohort.testing.runs import VARIANTS, MethodRuns
from kohort.testing.site_servers import ServedSites
from kohort.testing.watch import Victim

__all__ = [
    "ADVERSARY_CHECKS",
    "CHECKS",
    "SITE_SIZES",
    "VARIANTS",
    "AdversaryCheck",
    "Carried",
    "Check",
    "ContractViolation",
    "Exchange",
    "HonestRun",
    "MethodRuns",
    "RecordedRun",
    "ServedSites",
    "Victim",
    "carry_out",
    "check_method",
    "check_trust",
    "few_rows",
    "listening",
    "plan_of",
    "record",
    "tables",
]
