"""A site's policy: which releases may leave, and under which guarantees.

The policy belongs to the site. A plan can tighten it, never loosen it. `judge` is total: a guarantee this file does not
know is refused.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le

from kohort.errors import counted
from kohort.privacy.guarantee import (
    DP,
    Aggregate,
    Cells,
    DomainClaim,
    Encrypted,
    Guarantee,
    KAnonymous,
    KKm,
    Pairs,
    Public,
    Raw,
    SecureSum,
)

__all__ = ["DEFAULT_EPSILON", "Policy", "after_refusal"]

DEFAULT_EPSILON = 10.0
# Above a total of about 10 the bound promises little: an outcome may become e^10, some 22,000 times, likelier because
# of one person. Below it there is room for a few runs with the epsilons between 0.5 and 3 that plans use. A site that
# wants a stronger promise lowers it; one that raises it does so by name, and its ledger's first line shows the value.
_ROUNDING = 1 + 1e-12
"""Tolerance for rounding errors in sums of floating-point numbers."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A site's disclosure rules. Simulated sites may relax the strict defaults; their ledgers then show it."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field

    raw: bool = False
    """Whether rows may leave as they are (pooled baselines, the paper's partial mode)."""
    domain: bool = True
    """Whether the values and ranges that occur may be disclosed when the schema does not declare them."""
    min_cell: Annotated[int, Ge(1)] = 10
    """Minimum number of persons, over all sites, who share a value that becomes part of a learned domain in a plan with
    a secure sum."""
    min_rows: Annotated[int, Ge(1)] = 100
    """Minimum number of rows behind an update that has no noise and is not part of a secure sum."""
    min_k: Annotated[int, Ge(2)] = 5
    min_l: Annotated[int, Ge(1)] = 1
    max_t: Annotated[float, Gt(0), Le(1)] = 1.0
    min_sum_sites: Annotated[int, Ge(2)] = 3
    min_sum_cell: Annotated[int, Ge(1)] = 1
    """Minimum number of persons, over all sites, in a filled cell of a total that is a table, such as the histograms of
    a growing tree. Above 1, plans whose totals may have smaller cells are refused."""
    pairs: Literal["rounded", "open"] = "rounded"
    """Whether counts of pairs of categories that fewer than `min_cell` persons share may open as they are ("open"),
    where totals are products of columns. Otherwise a key-holder rounds them, noise covers them, or plans are
    refused."""
    epsilon: Annotated[float, Gt(0)] = DEFAULT_EPSILON
    """Largest total epsilon of this data set over all runs and recipients. It can be raised, not removed."""
    delta: Annotated[float, Gt(0), Le(1)] = 1e-3
    """Largest total delta of this data set over all runs and recipients."""
    void_dp: bool = False
    """Whether a claim of differential privacy that is void by its delta may leave; for simulated sites of a study."""
    min_gate_k: Annotated[int, Ge(1)] = 1
    """Minimum number of the site's own rows per gate key before the gate shares them, even if the plan's k is lower."""
    public: tuple[str, ...] = ("rows", "new", "shared", "kept")
    """Metrics the operator declares public; others need the guarantee of the release they travel in."""
    tasks: tuple[str, ...] = ("*",)
    """Patterns of the task names this site answers."""
    trust_counts: bool = False
    """Whether counts reported by other sites may justify a release of raw rows."""
    overlapping_releases: bool = False
    """Whether rows may be released in classes that cross those of an earlier release, which can isolate persons."""

    def judge(
        self,
        guarantee: Guarantee,
        *,
        task: str,
        total: tuple[float, float] | None = None,
        paid: tuple[float, float] = (0.0, 0.0),
    ) -> str | None:
        """Decide whether a release may leave.

        Args:
            guarantee: What the release claims.
            task: The task that made it.
            total: Epsilon and delta of the data set over all runs, this release included, as `Budget.after` composes
                them; what the release itself spends where nothing was spent before.
            paid: Epsilon and delta already paid into the account that a DP claim names.

        Returns:
            None when the release may leave, otherwise the reason why not (columns and counts only, never a cell).
        """
        if not _answers(self.tasks, task):
            return f"the policy does not answer the task {task!r}"
        if isinstance(guarantee, DP):  # depends on what was spent before, so it is never cached
            return self._judge_dp(guarantee, total, paid)
        judge = _JUDGES.get(type(guarantee))
        if judge is None:
            return f"the policy knows no guarantee of kind {guarantee.kind!r}"
        return judge(self, guarantee)

    def _judge_dp(self, claim: DP, total: tuple[float, float] | None, paid: tuple[float, float]) -> str | None:
        epsilon, delta = claim.spent
        # NaN and negative claims would refill a budget
        if not (0 <= claim.epsilon < inf and 0 <= claim.delta <= 1 and 0 <= epsilon < inf and 0 <= delta <= 1):
            return f"epsilon {claim.epsilon:g} (charged {epsilon:g}) and delta {claim.delta:g} are no guarantee"
        if claim.void and not self.void_dp:
            return f"delta {claim.delta:g} is too large for the units behind it, so the claim is void"
        if (paid[0] + epsilon) * _ROUNDING < claim.epsilon or (paid[1] + delta) * _ROUNDING < claim.delta:
            return (
                f"a charge of {epsilon:g} on top of {paid[0]:g} paid does not cover epsilon {claim.epsilon:g} "
                f"and delta {claim.delta:g}"
            )
        if not claim.spends:
            return None
        whole = total or claim.spent
        if whole[1] > self.delta * _ROUNDING:
            return f"delta {delta:g} makes {whole[1]:g} in all runs, above the policy's {self.delta:g} (policy.delta)"
        if whole[0] > self.epsilon * _ROUNDING:
            return (
                f"epsilon {epsilon:g} makes {whole[0]:.4g} in all runs, which exceeds the policy's {self.epsilon:g} "
                "(policy.epsilon)"
            )
        return None

    def tightened(self, other: Policy) -> Policy:
        """Combine two policies, taking the stricter value of every field.

        Args:
            other: The other policy, such as the one a plan asks for.

        Returns:
            A policy that allows only what both allow.
        """
        return Policy(
            raw=self.raw and other.raw,
            domain=self.domain and other.domain,
            min_cell=max(self.min_cell, other.min_cell),
            min_rows=max(self.min_rows, other.min_rows),
            min_k=max(self.min_k, other.min_k),
            min_l=max(self.min_l, other.min_l),
            min_gate_k=max(self.min_gate_k, other.min_gate_k),
            max_t=min(self.max_t, other.max_t),
            min_sum_sites=max(self.min_sum_sites, other.min_sum_sites),
            min_sum_cell=max(self.min_sum_cell, other.min_sum_cell),
            pairs="open" if self.pairs == other.pairs == "open" else "rounded",
            epsilon=min(self.epsilon, other.epsilon),
            delta=min(self.delta, other.delta),
            void_dp=self.void_dp and other.void_dp,
            public=tuple(name for name in self.public if name in other.public),
            tasks=_common_tasks(self.tasks, other.tasks),
            trust_counts=self.trust_counts and other.trust_counts,
            overlapping_releases=self.overlapping_releases and other.overlapping_releases,
        )

    def answers(self, task: str) -> bool:
        """Whether the policy lets the site answer a task.

        Args:
            task: The task's name.

        Returns:
            True when one of the patterns in `tasks` matches it.
        """
        return _answers(self.tasks, task)

    def to_mapping(self) -> dict[str, Any]:
        """Plain values for the ledger's first line."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in vars(self).items()
            if not name.startswith("_")
        }


@lru_cache(maxsize=1024)
def _answers(patterns: tuple[str, ...], task: str) -> bool:
    return any(fnmatch.fnmatchcase(task, pattern) for pattern in patterns)


def _common_tasks(mine: tuple[str, ...], theirs: tuple[str, ...]) -> tuple[str, ...]:
    """The patterns of either side that a pattern of the other side covers, so that nothing new is allowed."""
    both = [task for task in mine if any(_covers(pattern, task) for pattern in theirs)]
    both += [task for task in theirs if task not in both and any(_covers(pattern, task) for pattern in mine)]
    return tuple(both)


def _covers(pattern: str, other: str) -> bool:
    """Whether `pattern` matches every name that `other` matches; False when this is not certain."""
    if pattern == other:
        return True
    if not set(other) & set("*?["):
        return fnmatch.fnmatchcase(other, pattern)
    prefix = pattern[:-1]
    return pattern.endswith("*") and not set(prefix) & set("*?[") and other.startswith(prefix)


def _judge_domain(policy: Policy, claim: DomainClaim) -> str | None:
    return None if policy.domain else f"the policy keeps the domain of {len(claim.columns)} columns private"


def _judge_raw(policy: Policy, claim: Raw) -> str | None:
    if not policy.raw:
        return "the policy forbids raw rows"
    if claim.counted_by and not policy.trust_counts:
        return f"raw rows would leave on the word of {claim.counted_by}, and the policy does not trust counts"
    return None


def _judge_aggregate(policy: Policy, claim: Aggregate) -> str | None:
    if claim.rows >= policy.min_rows:
        return None
    return f"an update from {claim.rows} rows is below the policy's min_rows {policy.min_rows}"


def _judge_item_classes(policy: Policy, claim: KKm) -> str | None:
    if not claim.verified:
        return "the (k, k^m) claim was not verified"
    return None if claim.k >= policy.min_k else f"k = {claim.k} is below the policy's min_k {policy.min_k}"


def _judge_sum(policy: Policy, claim: SecureSum) -> str | None:
    least = policy.min_sum_sites
    return None if claim.sites >= least else f"a secure sum over {claim.sites} sites is below the policy's {least}"


def _judge_cells(policy: Policy, claim: Cells) -> str | None:
    least = policy.min_sum_cell
    if claim.least >= least:
        return None
    return f"totals may have cells of {counted(claim.least, 'person')}, below the policy's min_sum_cell {least}"


def _judge_pairs(policy: Policy, claim: Pairs) -> str | None:
    if policy.pairs == "open" or claim.least >= max(policy.min_cell, 2):
        return None
    if claim.least > 1:
        return (
            f"counts of pairs of categories would open from {claim.least} persons on, below the policy's min_cell "
            f'{policy.min_cell}, and the policy does not say pairs = "open"'
        )
    return (
        'counts of pairs of categories would open as they are, and the policy does not say pairs = "open"; '
        'with sum = "bfv" and one round a key-holder rounds small ones, and a budget covers them'
    )


def _judge_encrypted(policy: Policy, claim: Encrypted) -> str | None:
    del policy
    return None if claim.opens not in {"", "hub"} else "ciphertext that the hub itself can open is not protected"


def _judge_classes(policy: Policy, claim: KAnonymous) -> str | None:
    if not claim.verified:
        return "the k-anonymity claim was not verified"
    if claim.k < policy.min_k:
        return f"k = {claim.k} is below the policy's min_k {policy.min_k}"
    if claim.l < policy.min_l:
        return f"l = {claim.l} is below the policy's min_l {policy.min_l}"
    if policy.max_t < 1 and (claim.t is None or not claim.t <= policy.max_t):
        return f"t = {claim.t} is above the policy's max_t {policy.max_t}"
    return None


_JUDGES: dict[type[Guarantee], Callable[[Policy, Any], str | None]] = {
    Public: lambda *_: None,
    DomainClaim: _judge_domain,
    Raw: _judge_raw,
    Aggregate: _judge_aggregate,
    KAnonymous: _judge_classes,
    KKm: _judge_item_classes,
    SecureSum: _judge_sum,
    Cells: _judge_cells,
    Pairs: _judge_pairs,
    Encrypted: _judge_encrypted,
}
"""One check per kind of guarantee that spends no budget; a kind that is not listed is refused."""


def after_refusal(reason: str, *, rows: int | None = None) -> str:
    """What to do where sites refuse a plan.

    Args:
        reason: What `judge` says.
        rows: The rows of the smallest site that refuses, where the caller knows them.

    Returns:
        A hint that names the key of the policy, where the reason is about one.
    """
    keys = {"raw rows": "raw", "secure sum over": "min_sum_sites", 'pairs = "open"': "pairs"}
    keys |= {name: name for name in ("min_rows", "min_k", "min_l", "max_t", "min_sum_cell")}
    key = next((key for words, key in keys.items() if words in reason), None)
    if key is None:
        return "Lower what the plan asks for, or relax [policy] at sites you own"
    values = {"raw": "true", "pairs": '"open"'} | ({} if rows is None else {"min_rows": str(max(rows, 1))})
    setting = f"policy.{key} = {values[key]}" if key in values else f"policy.{key}"
    return f"Simulated sites allow it with {setting}, real ones in their own site.toml; or choose another method"
