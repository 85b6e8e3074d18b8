"""A contract in plain words: what a plan may ever ask of a site, for people who decide whether to approve it.

Guarantee: every step of the contract is in the explanation with its largest number of answers, its recipient and its
weakest claim. Nothing is taken from rows, so the same plan gives the same text everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from textwrap import fill
from typing import Any, Final

from kohort.privacy.claim_words import KEY_HOLDER, claim_in_words, number_of
from kohort.privacy.contract import ATTEMPTS, Contract, Step
from kohort.privacy.explain_terms import BOOK, LEARNED, ROUNDS, terms_in
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

__all__ = ["ExplainedStep", "Explanation", "explain"]

_WIDTH: Final = 116
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
    rows: bool
    """Whether the answer holds rows, or classes of rows."""
    booked: bool
    """Whether its totals are in the book of openings."""
    grouped: bool
    """Whether its totals leave out whole public groups, or nobody."""
    per_sum: bool
    """Whether it is answered once for each secure sum, as the key-holder's steps are."""
    per_site: tuple[tuple[str, tuple[Guarantee, ...]], ...]
    """Sites for which the plan has stricter rules, and what is claimed there instead."""
    read_by: str
    """Who can read it, where that is not what its claims say."""

    @property
    def often(self) -> str:
        """How often, in words: "once", "at most 3 times"."""
        if self.per_sum:
            return "once per sum"
        number = "once" if self.times == 1 else f"{self.times} times"
        return f"at most {number}" if self.at_most else number

    @property
    def recipient(self) -> str:
        """To whom, in words."""
        return (
            "to the hub" if self.to == "hub" else "to the sites you train with, sealed so that the hub cannot read it"
        )

    @property
    def protection(self) -> str:
        """Under which claim, in words; the weakest first. What only serves the protocol needs no words of its own."""
        if self.per_sum and self.sites:
            return f"over at least {self.sites} sites, never a part of it"
        if self.read_by:
            return self.read_by
        return "; ".join(
            [
                _claims_in_words(self.claims, self.to),
                *(f"at {site}: {_claims_in_words(claims, self.to)}" for site, claims in self.per_site),
            ]
        )

    @property
    def heading(self) -> str:
        """To whom and how it is protected: steps that have this in common are listed together."""
        return f"{_capital(self.recipient)}; {self.protection}"

    @property
    def line(self) -> str:
        """How often and what."""
        return f"{self.often}: {self.what}"

    def to_mapping(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return {
            "task": self.task,
            "times": self.times,
            "at_most": self.at_most,
            "what": self.what,
            "to": self.to,
            "claims": [_claim_mapping(claim) for claim in self.claims],
            "protection": self.protection,
            "sites": self.sites,
            "rows": self.rows,
            "per_site": {site: [_claim_mapping(claim) for claim in claims] for site, claims in self.per_site},
        }


def _claims_in_words(claims: Sequence[Guarantee], to: str) -> str:
    telling = [claim for claim in claims if not isinstance(claim, Public)] or claims
    return "; or ".join(dict.fromkeys(claim_in_words(claim, to=to) for claim in telling))


def _claim_mapping(claim: Guarantee) -> dict[str, Any]:
    return {"kind": claim.kind, **asdict(claim)}


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """A contract for people: `text` prints it, `to_mapping` gives the same as data."""

    method: str
    plan_hash: str
    in_short: tuple[str, ...]
    """The answers to three questions: does the hub see rows, can a lying hub get at them, what is paid."""
    words: tuple[str, ...]
    """What the terms of the text mean, those that occur in it."""
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
    consent: str | None = None
    """The column that says what may be done with a row; None where nobody is asked."""

    @property
    def text(self) -> str:
        """The explanation as `kohort plan explain` and `kohort site approve` print it."""
        parts = [
            f"Plan {self.plan_hash}",
            f"Method {self.method}",
            "",
            *_paragraphs("In short", self.in_short),
            "This is everything the plan may ever ask of your site.",
            "",
            *_grouped((*self.steps, *self.set_up)),
            _wrapped(_NOTHING_ELSE),
            "",
            *_paragraphs("Consent per row", _about_consent(self.consent)),
            *(["The key-holder, which has no rows, is asked for this.", ""] if self.key_holder else []),
            *_grouped(self.key_holder),
            *_paragraphs("Who opens what", self.opens),
            *_paragraphs("What a lying hub can learn at most", self.lying_hub),
            *_paragraphs("How long received rows are kept", (self.kept,)),
            *_paragraphs("What is paid", (self.paid,)),
            *_paragraphs("Words", self.words),
        ]
        return "\n".join(parts).rstrip()

    def to_mapping(self) -> dict[str, Any]:
        """The same as plain values for `--json`."""
        return {
            "method": self.method,
            "plan_hash": self.plan_hash,
            "set_up": [step.to_mapping() for step in self.set_up],
            "steps": [step.to_mapping() for step in self.steps],
            "in_short": list(self.in_short),
            "words": list(self.words),
            "nothing_else": True,
            "attempts": ATTEMPTS,
            "key_holder": [step.to_mapping() for step in self.key_holder],
            "opens": list(self.opens),
            "lying_hub": list(self.lying_hub),
            "kept": self.kept,
            "keep_days": self.keep_days,
            "consent": self.consent,
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
    planned: Sequence[Guarantee] = (),
    consent: str | None = None,
) -> Explanation:
    """Put a contract into words.

    Args:
        contract: What the plan may ask of a site.
        method: The method's name.
        plan_hash: The hash that a site approves.
        keep_days: How many days the hub may keep rows it receives; None when the plan says nothing about it.
        key_holder: What the plan may ask of the key-holder, where it has one.
        optional: Tasks that may not be asked for at all, such as a domain that turns out to be declared.
        planned: What the plan claims as a whole, besides its steps: how small cells of totals may be.
        consent: The column that says what may be done with a row, where the plan names one.

    Returns:
        The explanation.
    """
    maybe = frozenset(optional)
    found = tuple(_explained(step, at_most=step.task in maybe) for step in contract if step.ordered)
    budget = [claim for step in found for claim in step.claims if isinstance(claim, DP)]
    opens, lying_hub, paid = _who_opens(found), (*_cells(planned, found), *_worst_case(found)), _paid(budget)
    in_short = _in_short(found, planned, budget)
    return Explanation(
        method=method,
        plan_hash=plan_hash,
        in_short=in_short,
        words=terms_in(" ".join((*in_short, *(step.heading + step.line for step in found), *opens, *lying_hub, paid))),
        steps=found,
        set_up=tuple(dict.fromkeys(_explained(step) for step in contract if not step.ordered)),
        key_holder=() if key_holder is None else tuple(_explained(step) for step in key_holder),
        opens=opens,
        lying_hub=lying_hub,
        kept=_kept(found, keep_days),
        paid=paid,
        epsilon=max((claim.epsilon for claim in budget), default=0.0),
        delta=max((claim.delta for claim in budget), default=0.0),
        keep_days=keep_days if _holds_rows(found) else None,
        consent=consent,
    )


def _about_consent(column: str | None) -> tuple[str, ...]:
    """What each answer allows; nothing where nobody is asked."""
    if column is None:
        return ()
    return (
        f"Column {column!r} says what may be done with a row.",
        '"share": the row is learned from, and may leave your site as far as the steps above and your policy allow.',
        '"train": the row is learned from at your site, in sums too, and never leaves.',
        '"none" or nothing: the row takes no part. Any other word stops your site before anything leaves.',
    )


def _explained(step: Step, *, at_most: bool = False) -> ExplainedStep:
    return ExplainedStep(
        task=step.task,
        times=step.times,
        at_most=at_most or step.every > 1,
        what=step.says,
        to=step.to,
        claims=tuple(sorted(step.claims, key=lambda claim: isinstance(claim, Public | Encrypted))),
        sites=max([step.sites, *(claim.sites for claim in step.claims if isinstance(claim, SecureSum))]),
        rows=step.rows,
        booked=step.booked,
        grouped=step.grouped,
        per_sum=step.repeats,
        per_site=step.per_site,
        read_by=step.read_by,
    )


def _holds_rows(steps: Sequence[ExplainedStep]) -> bool:
    return any(step.rows and step.to == "hub" for step in steps)


def _who_opens(steps: Sequence[ExplainedStep]) -> tuple[str, ...]:
    claims = [claim for step in steps for claim in step.claims]
    openers = {claim.opens.partition(":")[0] for claim in claims if isinstance(claim, SecureSum)}
    said = []
    if "hub" in openers:
        said.append(
            "The hub opens each masked total, once, with the help of the sites. Nobody can open one site's part. A sum "
            "takes up to four messages of a site (keys, masked numbers, a confirmation, what unmasks the total): the "
            "ledger lists every one of them."
        )
    if KEY_HOLDER in openers:
        said.append(
            "The key-holder, a party apart from the hub, opens each encrypted total once, destroys the key, and gives "
            "the total to the hub. Hub and key-holder together could open your part: they must not collude."
        )
    if any(step.to != "hub" for step in steps):
        said.append("What is sealed to other sites is opened by them, and by nobody else.")
    if any(step.to == "hub" and _in_clear(step) for step in steps):
        said.append("Everything that is neither masked nor encrypted nor sealed is read by the hub as it is sent.")
    return tuple(said)


def _in_clear(step: ExplainedStep) -> bool:
    return not any(isinstance(claim, SecureSum | Encrypted) for claim in step.claims)


def _is_sealed(steps: Sequence[ExplainedStep]) -> bool:
    """Whether sites alone read totals that the model is learned from."""
    return any(step.read_by.startswith("sealed") for step in steps)


def _cells(planned: Sequence[Guarantee], steps: Sequence[ExplainedStep]) -> list[str]:
    """What small cells of totals leave to whoever reads the totals."""
    said = []
    small, sealed = any(isinstance(claim, Cells) and claim.least <= 1 for claim in planned), _is_sealed(steps)
    if sealed:
        said.append(
            "Of single persons by sealed totals: nothing, unless a site helps it. Every site reads these totals, over "
            "all sites, and from all of them together values of single persons, at any site, may be computed."
            + (" A policy with min_sum_cell above 1 refuses the plan." if small else "")
        )
    if small and not sealed:
        said.append(
            "Of single persons: cells of the totals may hold one person's numbers, from whatever site. Nobody is "
            "named, but who knows a person may recognise them. A policy with min_sum_cell above 1 refuses the plan."
        )
    if any(isinstance(claim, Pairs) and claim.least <= 1 for claim in planned):
        said.append(
            "Counts of pairs of categories, such as ward and diagnosis, also of pairs that one person has. Your policy "
            'refuses the plan unless it says pairs = "open".'
        )
    return said


def _in_short(steps: Sequence[ExplainedStep], planned: Sequence[Guarantee], budget: Sequence[DP]) -> tuple[str, ...]:
    """Does the hub see rows, can a lying hub get at them, what is paid."""
    claims = [(step, claim) for step in steps for claim in step.claims]
    kinds = {type(claim) for _, claim in claims}
    if any(isinstance(claim, Raw) and step.to == "hub" for step, claim in claims):
        first = "Rows of yours leave your site as they are. The hub reads them."
    elif _holds_rows(steps):
        first = "Rows of yours leave your site, generalised in classes of several persons. The hub reads them."
    else:
        first = "No row of yours leaves your site. What leaves was computed from your rows, as listed below."
    if Raw in kinds or (Aggregate in kinds and not budget):
        second = (
            "A lying hub can read rows of your site from what leaves. Approve this only if you would show it the rows."
        )
        if all(step.to != "hub" for step, claim in claims if isinstance(claim, Aggregate | Raw)):
            second = "A lying site among those you train with can read rows of yours from what leaves. The hub cannot."
    elif SecureSum in kinds and not budget:
        least = min(claim.sites for _, claim in claims if isinstance(claim, SecureSum))
        second = _totals_in_short(least, profiled=DomainClaim in kinds) + _persons_in_short(steps, planned)
    elif budget:
        second = "What leaves carries noise, so that it says little about any single person, whatever the hub does."
    else:
        second = "What a lying hub can learn at most is listed below."
    return first, second, _price(budget)


def _totals_in_short(least: int, *, profiled: bool) -> str:
    if not profiled:
        return f"A lying hub does not get numbers of your site alone: it reads totals over at least {least} sites."
    return (
        "Of your site alone a hub gets types of columns, and ranges and classes that several of your persons share. "
        f"All else it reads as totals over at least {least} sites."
    )


def _persons_in_short(steps: Sequence[ExplainedStep], planned: Sequence[Guarantee]) -> str:
    """Who may find single persons in totals; nothing where nobody may."""
    sealed = _is_sealed(steps)
    small = {type(claim) for claim in planned if isinstance(claim, Cells | Pairs) and claim.least <= 1}
    if Pairs in small or (small and not sealed):
        return " These may show single persons, without saying at which site they are."
    if not sealed:
        return ""
    return (
        " Every site, or a hub with a site on its side, reads further totals that may show single persons, without "
        "saying at which site they are."
    )


def _price(budget: Sequence[DP]) -> str:
    if not budget:
        return "It takes nothing from your privacy budget."
    most = max(budget, key=lambda claim: claim.epsilon)
    return f"It takes epsilon {most.epsilon:g} and delta {most.delta:g} from your privacy budget, once per run."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _worst_case(steps: Sequence[ExplainedStep]) -> tuple[str, ...]:
    """What a hub that sends anything to anybody can learn, the worst first."""
    claims = [claim for step in steps if step.to == "hub" for claim in step.claims if step.rows or not _is_class(claim)]
    kinds = {type(claim) for claim in claims}
    said = [sentence for kind, sentence in LEARNED.items() if kind in kinds]
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
        f"Totals over at least {least} sites, each once; with {number_of(colluders, 'site')} on its side, the total "
        "over the others. If it tells sites different things, nothing opens."
    ]
    if noisy:
        return [*said, "The totals are noisy, within the budget below, so comparing them shows no more."]
    if any(step.booked for step, _ in sums):
        keyed = any(claim.opens.startswith(KEY_HOLDER) for _, claim in sums)
        said.append(BOOK.format(least=least, keepers="the key-holder keeps" if keyed else "every site keeps"))
    if any(step.grouped for step, _ in sums):
        said.append(ROUNDS.format(least=least))
    return said


def _kept(steps: Sequence[ExplainedStep], keep_days: int | None) -> str:
    if not _holds_rows(steps):
        return "The plan sends no rows to the hub, so none are kept. Models and opened totals stay."
    if keep_days is None:
        return "The plan sets no date: the hub keeps received rows until its operator deletes them."
    return (
        f"The hub deletes received rows after {number_of(keep_days, 'day')}. No site can check that. Models trained on "
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


def _item(text: str) -> str:
    return fill(text, width=_WIDTH, initial_indent="  - ", subsequent_indent="    ", break_on_hyphens=False)


def _grouped(steps: Sequence[ExplainedStep]) -> list[str]:
    """Steps under what they have in common: who gets the answer, and how it is protected."""
    groups: dict[str, list[str]] = {}
    for step in steps:
        groups.setdefault(step.heading, []).append(_item(f"{step.line}."))
    return [line for heading, items in groups.items() for line in (_wrapped(f"{heading}:"), *items, "")]


def _wrapped(text: str) -> str:
    return fill(text, width=_WIDTH, break_on_hyphens=False)


def _paragraphs(title: str, sentences: Sequence[str]) -> list[str]:
    return [f"{title}:", *(_item(sentence) for sentence in sentences), ""] if sentences else []
