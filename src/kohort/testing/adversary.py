"""Liars against unmodified parties: what leaves those is what the approved plan's contract says, and nothing else.

An honest run of a plan is recorded once. A lying hub: for fresh sites with the same keys and rows, a prefix of its
requests is sent again and a lie follows, a signed message that no honest hub would send at that place
(`kohort.testing.lies`). A lying site or key-holder: the plan runs again, and one of its replies is another one
(`kohort.testing.false_replies`). Liars hold their own keys and nothing else; every message passes the server that real
sites run.

Check a method, or any plan, in one call, which raises `ContractViolation` when a lie gets something:

    from kohort.testing import check_trust, plan_of

    check_trust(plan_of("my-method"))

Every reply of an honest party is watched (`kohort.testing.watch`). A second site with other row values gets the same
lie and must give the same word.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from kohort.crypto.sums.scheme import KEY_HOLDER
from kohort.runs.config import Plan
from kohort.testing import lies
from kohort.testing.checks import ContractViolation
from kohort.testing.copies import Saved
from kohort.testing.false_replies import LIAR, every_false_reply, run_with
from kohort.testing.lies import Lie
from kohort.testing.recorded import VICTIM, HonestRun, record
from kohort.testing.watch import Victim, handed_back

__all__ = [
    "ADVERSARY_CHECKS",
    "AdversaryCheck",
    "check_trust",
]


class _Pair:
    """A victim and its twin with other rows, made anew when a lie changed what they would answer."""

    def __init__(self, honest: HonestRun, site: str) -> None:
        self._honest, self._site, self._script = honest, site, honest.script(site)
        self._victims: list[Victim] = list(self._fresh())
        self._place = 0
        self._saved: Saved[list[Victim]] | None = None
        """Both at their place; None before the first lie there."""
        self.handed_back = handed_back(honest, site)

    def at(self, place: int) -> list[Victim]:
        """Both, after the first `place` honest requests; the victim alone where these fit its own rows only."""
        if self._saved is not None and not self._victims:
            self._victims = self._saved.restore()
        if place > self._place:
            self._victims[0].follow(self._script[self._place : place])
            if len(self._victims) > 1 and not self._victims[1].follows(self._script[self._place : place]):
                self._victims.pop()
            self._place, self._saved = place, None
        if self._saved is None:
            self._saved = Saved(self._victims, shared=[self._honest])
        return self._victims

    def _fresh(self) -> Iterator[Victim]:
        yield Victim(self._honest, self._site)
        if self._site != KEY_HOLDER:
            yield Victim(self._honest, self._site, other_rows=True)

    def tell(self, lie: Lie, place: int) -> None:
        """Tell a lie after `place` honest requests; both must give the same word."""
        victims = self.at(place)
        if any(message.task == self.handed_back for message in lie.messages):
            victims = victims[:1]
        replies = [[victim.ask(message, lie.name) for message in lie.messages] for victim in victims]
        words = [[(reply.status, reply.code) for reply in said] for said in replies]
        if lie.never and any(status == "answer" for said in words for status, _ in said):
            raise ContractViolation(f"{self._honest.name}, {self._site}: a lie was answered (lie: {lie.name})")
        if any(said != words[0] for said in words):
            text = f"the replies {words} differ although only row values differ"
            raise ContractViolation(f"{self._honest.name}, {self._site}: {text} (lie: {lie.name})")
        if any(reply.code != "contract" and reply.status != "dropped" for said in replies for reply in said):
            for victim in victims:  # the honest request must not get a second answer for the same step
                for exchange in self._script[place : place + 1]:
                    victim.ask(exchange.asked, f"{lie.name}, then the honest request")
            self._victims = []


def _tells(
    generate: Callable[[HonestRun, str, int], Iterable[Lie]], weight: float = 1.0
) -> Callable[[HonestRun], None]:
    """The check that tells every lie of a generator in every state of the run; of small families, a larger share."""

    def check(honest: HonestRun) -> None:
        for site in honest.parties:
            pair = _Pair(honest, site)
            for place in range(len(honest.script(site)) + 1):
                for lie in honest.sampled(generate(honest, site, place), site, place, weight=weight):
                    pair.tell(lie, place)

    return check


def restarted_sites_answer_alike(honest: HonestRun) -> None:
    """After every honest request a site restarts from its disk: the same request gets the same bytes, another none.

    Args:
        honest: The recorded run.

    Raises:
        ContractViolation: A restarted site answers a step again, or otherwise.
    """
    script = honest.script(VICTIM)
    for place in range(1, len(script) + 1):
        again = next(honest.sampled([Lie("restart", tuple)], VICTIM, place, weight=10), None)
        if again is None and place < len(script):
            continue
        with TemporaryDirectory(prefix="kohort-adversary-") as made:
            victim = Victim(honest, VICTIM, folder=Path(made) / "site")
            victim.follow(script[:place])
            victim.restart()
            victim.follow(script[:place])
            for exchange in script[:place]:
                victim.ask(replace(exchange.asked, nonce="0" * 24), "another request after a restart")
            victim.follow(script[place:])


def restored_sites_answer_alike(honest: HonestRun) -> None:
    """A site whose run folder was copied back to an earlier state answers no step that its ledger lists again.

    Args:
        honest: The recorded run.

    Raises:
        ContractViolation: A step was answered a second time, to another request.
    """
    script = honest.script(VICTIM)
    with TemporaryDirectory(prefix="kohort-adversary-") as made:
        folder, backup = Path(made) / "site", Path(made) / "backup"
        victim = Victim(honest, VICTIM, folder=folder)
        victim.follow(script[:-1])
        shutil.copytree(folder / "runs", backup)
        victim.follow(script[-1:])
        shutil.rmtree(folder / "runs")
        shutil.copytree(backup, folder / "runs")
        victim.restart()
        for exchange in script:
            victim.ask(replace(exchange.asked, nonce="0" * 24), "another request after files were copied back")
            victim.ask(exchange.asked, "the same request after files were copied back")


def _lied_to_by(party: str) -> Callable[[HonestRun], None]:
    """The check that lets a site, or the key-holder where there is one, lie in each of its replies."""

    def check(honest: HonestRun) -> None:
        if party in honest.served.makers:
            false = list(every_false_reply(honest, party))
            chosen = list(honest.sampled(false, party, weight=_FALSE_REPLIES))
            for lie in chosen or false[len(false) // 2 :][:1]:
                run_with(honest, party, lie)

    return check


_FALSE_REPLIES = 0.4
"""Each takes a run of its own, so a smaller share is told than of a hub's lies."""


@dataclass(frozen=True)
class AdversaryCheck:
    """One family of lies. Call it with a recorded run; it raises `ContractViolation` when a lie gets something."""

    name: str
    """A short name, for `ids=str` in pytest."""
    law: str
    """What holds, in a sentence."""
    check: Callable[[HonestRun], None]

    def __call__(self, honest: HonestRun) -> None:
        """Tell the lies.

        Args:
            honest: The recorded run.

        Raises:
            ContractViolation: A lie got more than the contract says.
        """
        self.check(honest)

    def __str__(self) -> str:
        return self.name


ADVERSARY_CHECKS: tuple[AdversaryCheck, ...] = (
    AdversaryCheck("every-task", "Every task in every state gives what the contract says.", _tells(lies.every_task)),
    AdversaryCheck("every-field", "No changed field gets a second or another answer.", _tells(lies.every_field, 4)),
    AdversaryCheck("order", "Skipped, repeated and re-ordered steps are refused.", _tells(lies.every_order, 4)),
    AdversaryCheck("lists", "Other member lists get no second answer.", _tells(lies.every_list, 8)),
    AdversaryCheck("malformed", "Malformed bodies are refused and end no process.", _tells(lies.every_malformed, 6)),
    AdversaryCheck("restart", "A restarted site answers each step once.", restarted_sites_answer_alike),
    AdversaryCheck("restore", "A site with restored files answers each step once.", restored_sites_answer_alike),
    AdversaryCheck("lying-site", "A lying site learns and gets no more than its own view.", _lied_to_by(LIAR)),
    AdversaryCheck("lying-key-holder", "A lying key-holder spoils totals and gets nothing.", _lied_to_by(KEY_HOLDER)),
)
"""The families of lies, in the order `check_trust` takes them."""


def check_trust(plan: Plan, *, share: float = 1.0) -> None:
    """Hold a plan to its contract against a hub, a site and a key-holder that lie.

    Args:
        plan: The plan, for example from `plan_of`.
        share: The share of all lies that is tried.

    Raises:
        ContractViolation: A lie got more than the contract says.
        KohortError: The honest run failed.
    """
    honest = record(plan, share=share)
    for check in ADVERSARY_CHECKS:
        check(honest)
