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
"""

from __future__ import annotations

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
from kohort.testing.runs import VARIANTS, MethodRuns

__all__ = [
    "CHECKS",
    "SITE_SIZES",
    "VARIANTS",
    "Carried",
    "Check",
    "ContractViolation",
    "MethodRuns",
    "RecordedRun",
    "carry_out",
    "check_method",
    "listening",
    "plan_of",
    "tables",
]
