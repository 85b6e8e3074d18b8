"""A contract in plain words: what a plan may ever ask of a site, for people who decide whether to approve it.

Guarantee: every step of the contract is in the explanation with its largest number of answers, its recipient and its
weakest claim. Nothing is taken from rows, so the same plan gives the same text everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from textwrap import fill
from typing import Any, Final

from kohort.privacy.contract import ATTEMPTS, Contract, Step
from kohort.privacy.guarantee import (
    DP,
    Aggregate,
    Cells,
    Domain,
    Encrypted,
    Guarantee,
    KAnonymous,
    KKm,
    Public,
    Raw,
    SecureSum,
)

__all__ = ["ExplainedStep", "Explanation", "claim_in_words", "explain"]

_WIDTH: Final = 116
_READ_BY_HUB: Final = "unprotected aggregate: rows can be read from it by a lying hub"
_KEY_HOLDER: Final = "key-holder"
_NOTHING_ELSE: Final = (
    "Nothing else. Numbers are upper limits. Each step is answered to one request only; the same request gets the same "
    f"answer again. A step that fails may be asked for {ATTEMPTS} times in all. A refusal or failure carries one word "
    "of a fixed list. Every answer, refusal and failure is a line of your ledger."
)


@dataclass(frozen=True, kw_only=True)
class ExplainedStep:
    """One step for people."""

    task: str
    times: int
    """How often it is answered at most."""
    at_most: bool
    """Whether it may be answered less often."""
    what: str
    to: str
    claims: tuple[Guarantee, ...]
    sites: int
    """Fewest sites of a sum; 0 for a step that is no sum."""
    rows: bool = False
    """Whether the answer holds rows, or classes of rows."""
    booked: bool = False
    """Whether its totals are in the book of openings."""
    grouped: bool = False
    """Whether its totals leave out whole public groups, or nobody."""
    per_sum: bool = False
    """Whether it is answered once for each secure sum, as the key-holder's steps are."""

    @property
    def often(self) -> str:
        """How often, in words: "once", "at most 3 times"."""
        if self.per_sum:
            return "once per secure sum"
        number = "once" if self.times == 1 else f"{self.times} times"
        return f"at most {number}" if self.at_most else number

    @property
    def recipient(self) -> str:
        """To whom, in words."""
        return "to the hub" if self.to == "hub" else "to the sites you train with, sealed from the hub"

    @property
    def protection(self) -> str:
        """Under which claim, in words; the weakest first."""
        if self.per_sum and self.sites:
            return f"over at least {self.sites} sites, never a part of it"
        return "; or ".join(dict.fromkeys(claim_in_words(claim, to=self.to) for claim in self.claims))

    @property
    def line(self) -> str:
        """The whole step as one sentence."""
        return f"{self.often}: {self.what}. {self.recipient[0].upper()}{self.recipient[1:]}; {self.protection}."

    def to_mapping(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return {
            "task": self.task,
            "times": self.times,
            "at_most": self.at_most,
            "what": self.what,
            "to": self.to,
            "claims": [{"kind": claim.kind, **asdict(claim)} for claim in self.claims],
            "protection": self.protection,
            "sites": self.sites,
            "rows": self.rows,
        }


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """A contract for people: `text` prints it, `to_mapping` gives the same as data."""

    method: str
    plan_hash: str
    steps: tuple[ExplainedStep, ...]
    set_up: tuple[ExplainedStep, ...]
    key_holder: tuple[ExplainedStep, ...]
    """What the key-holder is asked, where the plan has one."""
    opens: tuple[str, ...]
    lying_hub: tuple[str, ...]
    kept: str
    paid: str
    epsilon: float
    delta: float
    keep_days: int | None

    @property
    def text(self) -> str:
        """The explanation as `kohort plan explain` and `kohort site approve` print it."""
        parts = [
            f"Plan {self.plan_hash}",
            f"Method {self.method}. This is everything the plan may ever ask of your site:",
            "",
            *_listed(self.set_up, "Set-up, once per run, before the first sum that needs it"),
            *(_item(step.line) for step in self.steps),
            "",
            fill(_NOTHING_ELSE, width=_WIDTH),
            "",
            *_listed(self.key_holder, "The key-holder, which has no rows, is asked for"),
            *_paragraphs("Who opens what", self.opens),
            *_paragraphs("What a lying hub can learn at most", self.lying_hub),
            *_paragraphs("How long received rows are kept", (self.kept,)),
            *_paragraphs("What is paid", (self.paid,)),
        ]
        return "\n".join(parts).rstrip()

    def to_mapping(self) -> dict[str, Any]:
        """The same as plain values for `--json`."""
        return {
            "method": self.method,
            "plan_hash": self.plan_hash,
            "set_up": [step.to_mapping() for step in self.set_up],
            "steps": [step.to_mapping() for step in self.steps],
            "nothing_else": True,
            "attempts": ATTEMPTS,
            "key_holder": [step.to_mapping() for step in self.key_holder],
            "opens": list(self.opens),
            "lying_hub": list(self.lying_hub),
            "kept": self.kept,
            "keep_days": self.keep_days,
            "paid": self.paid,
            "epsilon": self.epsilon,
            "delta": self.delta,
        }


def explain(
    contract: Contract,
    *,
    method: str,
    plan_hash: str,
    keep_days: int | None = None,
    key_holder: Contract | None = None,
    optional: Iterable[str] = (),
) -> Explanation:
    """Put a contract into words.

    Args:
        contract: What the plan may ask of a site.
        method: The method's name.
        plan_hash: The hash that a site approves.
        keep_days: How many days the hub may keep rows it receives; None when the plan says nothing about it.
        key_holder: What the plan may ask of the key-holder, where it has one.
        optional: Tasks that may not be asked for at all, such as a domain that turns out to be declared.

    Returns:
        The explanation.
    """
    maybe = frozenset(optional)
    found = tuple(_explained(step, at_most=step.task in maybe) for step in contract if step.ordered)
    budget = [claim for step in found for claim in step.claims if isinstance(claim, DP)]
    return Explanation(
        method=method,
        plan_hash=plan_hash,
        steps=found,
        set_up=tuple(dict.fromkeys(_explained(step) for step in contract if not step.ordered)),
        key_holder=() if key_holder is None else tuple(_explained(step) for step in key_holder),
        opens=_who_opens(found),
        lying_hub=_worst_case(found),
        kept=_kept(found, keep_days),
        paid=_paid(budget),
        epsilon=max((claim.epsilon for claim in budget), default=0.0),
        delta=max((claim.delta for claim in budget), default=0.0),
        keep_days=keep_days if _holds_rows(found) else None,
    )


def claim_in_words(claim: Guarantee, *, to: str = "hub") -> str:
    """A guarantee as a data protection officer reads it.

    Args:
        claim: The guarantee of a step.
        to: Who gets the release: "hub" or "peers".

    Returns:
        One clause, without a full stop.
    """
    if isinstance(claim, Aggregate) and to != "hub":
        return "unprotected aggregate: rows can be read from it by a lying peer"
    words = _IN_WORDS.get(type(claim))
    return claim.shown if words is None else words(claim)


def _sum_in_words(claim: SecureSum) -> str:
    opener = claim.opens.partition(":")[0]
    how = "encrypted" if opener == _KEY_HOLDER else "masked"
    verb = "colludes" if claim.colluders == 1 else "collude"
    hides = f"your part is hidden while at most {_number(claim.colluders, 'site')} {verb} with the hub"
    return f"{how} sum over at least {claim.sites} sites: {hides}"


def _classes_in_words(claim: KAnonymous) -> str:
    said = f"k-anonymous with k = {claim.k}"
    said += f", l = {claim.l}" if claim.l > 1 else ""
    said += f", t = {claim.t:g}" if claim.t is not None else ""
    return f"{said}, verified before it leaves" if claim.verified else f"{said}, not verified"


def _raw_in_words(claim: Raw) -> str:
    by = f", released on the counts of {claim.counted_by}" if claim.counted_by else ""
    return f"raw rows, no protection{by}"


_IN_WORDS: dict[type[Guarantee], Callable[[Any], str]] = {
    Public: lambda claim: f"public ({claim.what})",
    Domain: lambda _: "a disclosure in clear: values and ranges of your rows, without counts",
    Aggregate: lambda _: _READ_BY_HUB,
    SecureSum: _sum_in_words,
    Cells: lambda claim: f"totals whose filled cells have at least {_number(claim.least, 'person')}",
    DP: lambda claim: f"within epsilon {claim.epsilon:g} and delta {claim.delta:g} per {claim.unit} over the whole run",
    KAnonymous: _classes_in_words,
    KKm: lambda claim: f"(k, k^m)-anonymous with k = {claim.k} and m = {claim.m}, verified before it leaves",
    Raw: _raw_in_words,
    Encrypted: lambda claim: f"encrypted; opened by {claim.opens}",
}


def _explained(step: Step, *, at_most: bool = False) -> ExplainedStep:
    return ExplainedStep(
        task=step.task,
        times=step.times,
        at_most=at_most or step.every > 1,
        what=f"{step.says}, in {step.parts} messages" if step.parts > 1 else step.says,
        to=step.to,
        claims=tuple(sorted(step.claims, key=lambda claim: isinstance(claim, Public | Encrypted))),
        sites=max([step.sites, *(claim.sites for claim in step.claims if isinstance(claim, SecureSum))]),
        rows=step.rows,
        booked=step.booked,
        grouped=step.grouped,
        per_sum=step.repeats,
    )


def _holds_rows(steps: Sequence[ExplainedStep]) -> bool:
    return any(step.rows and step.to == "hub" for step in steps)


def _who_opens(steps: Sequence[ExplainedStep]) -> tuple[str, ...]:
    claims = [claim for step in steps for claim in step.claims]
    openers = {claim.opens.partition(":")[0] for claim in claims if isinstance(claim, SecureSum)}
    said = []
    if "hub" in openers:
        said.append(
            "The hub opens each masked total, once, with shares that the sites hand out. No party opens a part."
        )
    if _KEY_HOLDER in openers:
        said.append(
            "The key-holder, a party apart from the hub, opens each encrypted total once, destroys the key, and gives "
            "the total to the hub. Hub and key-holder together could open your part: they must not collude."
        )
    if any(step.to != "hub" for step in steps):
        said.append("What is sealed to other sites is opened by them, and by nobody else.")
    if any(step.to == "hub" and _in_clear(step) for step in steps):
        said.append("Everything that is neither summed nor sealed is read by the hub as it is sent.")
    return tuple(said)


def _in_clear(step: ExplainedStep) -> bool:
    return not any(isinstance(claim, SecureSum | Encrypted) for claim in step.claims)


def _worst_case(steps: Sequence[ExplainedStep]) -> tuple[str, ...]:
    """What a hub that sends anything to anybody can learn, the worst first."""
    claims = [claim for step in steps if step.to == "hub" for claim in step.claims if step.rows or not _is_class(claim)]
    kinds = {type(claim) for claim in claims}
    said = [sentence for kind, sentence in _LEARNED.items() if kind in kinds]
    said += _from_totals(steps, noisy=DP in kinds)
    if any(step.to != "hub" for step in steps):
        said.append("Of sealed messages: who writes to whom, when, and a size class. Peers read them in full.")
    said.append("When your site answers, and how large answers are: timing and sizes are not defended.")
    return tuple(said)


def _is_class(claim: Guarantee) -> bool:
    return isinstance(claim, KAnonymous | KKm)


def _from_totals(steps: Sequence[ExplainedStep], *, noisy: bool) -> list[str]:
    """What totals leave to a lying hub."""
    sums = [(step, claim) for step in steps for claim in step.claims if isinstance(claim, SecureSum)]
    if not sums:
        return []
    least, colluders = min(claim.sites for _, claim in sums), min(claim.colluders for _, claim in sums)
    said = [
        f"Totals over at least {least} sites, each once; with {_number(colluders, 'site')} on its side, the total "
        "over the others. All sites of a sum see the same public inputs, or nothing opens."
    ]
    if noisy:
        return [*said, "The totals are noisy, within the budget below, so comparing them shows no more."]
    if any(step.booked for step, _ in sums):
        keyed = any(claim.opens.startswith(_KEY_HOLDER) for _, claim in sums)
        said.append(_BOOK.format(least=least, keepers="the key-holder keeps" if keyed else "every site keeps"))
    if any(step.grouped for step, _ in sums):
        said.append(_ROUNDS.format(least=least))
    return said


_BOOK: Final = (
    "Totals of the same rows are in a book that {keepers} over all runs: none opens that, together with earlier "
    "ones, would show fewer than {least} sites."
)
_ROUNDS: Final = (
    "Totals of training rounds leave out whole public groups of at least {least} sites, or nobody, so two rounds of a "
    "run show no single site; rounds of different runs are in the book, too."
)
_LEARNED: Final[dict[type[Guarantee], str]] = {
    Raw: "Every row that is released as it is.",
    Aggregate: (
        "Your rows: it chooses what an unprotected aggregate is computed from, such as the weights you train from. In "
        "a test, 598 of 600 rows of a site were read this way. Use it where you would trust the hub with the rows."
    ),
    KAnonymous: "The released classes: which class a person is in, for whoever knows the person's quasi-identifiers.",
    KKm: "The released classes: which class a person is in, for whoever knows the quasi-identifiers and m items.",
    Domain: "Which values occur in your rows, and the smallest and largest number of a column.",
    DP: "What noisy results allow: one unit more or less changes any outcome's probability by e^epsilon, plus delta.",
}
"""What each claim leaves to a lying hub, the worst first."""


def _kept(steps: Sequence[ExplainedStep], keep_days: int | None) -> str:
    if not _holds_rows(steps):
        return "The plan sends no rows to the hub, so none are kept. Models and opened totals stay."
    if keep_days is None:
        return "The plan sets no date: the hub keeps received rows until its operator deletes them."
    return (
        f"The hub deletes received rows after {_number(keep_days, 'day')}. No site can check that. Models trained on "
        "them stay."
    )


def _paid(budget: Sequence[DP]) -> str:
    if not budget:
        return "Nothing is taken from your privacy budget, because no step of this plan adds noise at your site."
    most, least = max(budget, key=lambda claim: claim.epsilon), min(budget, key=lambda claim: claim.epsilon)
    first = ""
    if least.epsilon < most.epsilon:
        first = f" Of it, epsilon {least.epsilon:.3g} and delta {least.delta:.3g} are paid with a first noisy answer."
    return (
        f"Epsilon {most.epsilon:g} and delta {most.delta:g} per {most.unit}, reserved before the first noisy answer, "
        f"in full even if the run stops early.{first} Your policy's epsilon limits the sum over all runs."
    )


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _item(text: str) -> str:
    return fill(text, width=_WIDTH, initial_indent="  - ", subsequent_indent="    ")


def _listed(steps: Sequence[ExplainedStep], title: str) -> list[str]:
    return [f"{title}:", *(_item(step.line) for step in steps), ""] if steps else []


def _paragraphs(title: str, sentences: Sequence[str]) -> list[str]:
    return [f"{title}:", *(_item(sentence) for sentence in sentences), ""] if sentences else []
