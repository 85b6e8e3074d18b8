"""Contracts for tests of other parts: they allow every request and every claim."""

from __future__ import annotations

from dataclasses import replace

from kohort.privacy.contract import Asked, Contract, Position, Step
from kohort.privacy.guarantee import Guarantee
from kohort.protocol.plan.approved import ApprovedPlan

__all__ = ["ANY_STEP", "open_contract", "opened"]


class _AnyStep(Step):
    def allows(self, guarantee: Guarantee, to: str, site: str = "") -> bool:
        del guarantee, to, site
        return True


ANY_STEP = _AnyStep(task="any", says="anything", claims=(), rounds=range(1000), ordered=False, repeats=True, sites=1)


class OpenContract(Contract):
    """Every request is an allowed next step."""

    def find(self, asked: Asked) -> tuple[Step, Position]:
        return ANY_STEP, (0, asked.round, 0, asked.round, asked.part)

    def sum_step(self, task: str, round_number: int) -> Step:
        del task, round_number
        return ANY_STEP


def open_contract() -> Contract:
    """A contract that allows everything."""
    return OpenContract(((ANY_STEP,),))


def opened(approved: ApprovedPlan) -> ApprovedPlan:
    """The plan, with a contract that allows everything."""
    return replace(approved, contract=open_contract())
