"""A lying hub against unmodified sites: what leaves them is what the approved plan's contract says, and nothing else.

An honest run of a plan is recorded once. Then, for fresh sites with the same keys and rows, a prefix of its requests is
sent again and a lie follows: a signed message that no honest hub would send at that place (`kohort.testing.lies`). The
hub of the attack holds its own keys and nothing else; every message passes the server that real sites run.

Check a method, or any plan, in one call, which raises `ContractViolation` when a lie gets something:

    from kohort.testing import check_trust, plan_of

    check_trust(plan_of("my-method"))

Whatever the lie, `Victim` demands of every reply: it is signed and in form; what it releases is a step of the contract,
with a claim the step allows, once; a refusal or failure is one word of a fixed list; no payload shows the canary row. A
second site with other row values gets the same lie and must give the same word.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from kohort.crypto.sums.scheme import KEY_HOLDER
from kohort.errors import KohortError
from kohort.privacy.codes import CODES
from kohort.privacy.contract import ATTEMPTS, Contract, Position, Step
from kohort.privacy.guarantee import Raw, parse_guarantee
from kohort.protocol.site import asked_of
from kohort.runs.config import Plan
from kohort.testing import lies
from kohort.testing.canary import shows_canary
from kohort.testing.checks import ContractViolation
from kohort.testing.lies import Lie
from kohort.testing.recorded import VICTIM, Exchange, HonestRun, record
from kohort.transport.messages import ReplyMessage, RequestMessage, fresh_number, read_reply, write_request

__all__ = [
    "ADVERSARY_CHECKS",
    "AdversaryCheck",
    "Victim",
    "check_trust",
]


class Victim:
    """A site that is lied to, through its server, and a watch over everything that leaves it.

    Args:
        honest: The recorded run it belongs to.
        site: Its name.
        other_rows: Whether it has other row values than in the honest run.
        folder: Where it keeps its files.
    """

    def __init__(self, honest: HonestRun, site: str, *, other_rows: bool = False, folder: Path | None = None) -> None:
        self.honest, self.site = honest, site
        self._other_rows, self._folder = other_rows, folder
        self._server = honest.serve(site, other_rows=other_rows, folder=folder)
        self._contract = honest.contract(site)
        self.left: dict[tuple[object, ...], tuple[str, bytes]] = {}
        """What left for each step of the contract: the request's digest and the bytes."""
        self._furthest: Position = (-1, 0, 0, 0, 0)
        self._failed: Counter[tuple[str, int, int]] = Counter()

    def follow(self, exchanges: Iterable[Exchange]) -> None:
        """Send honest requests again.

        Args:
            exchanges: A prefix of the honest run's exchanges with this site.

        Raises:
            ContractViolation: One was not answered as in the honest run.
        """
        for exchange in exchanges:
            reply = self.ask(exchange.asked)
            if (reply.status, reply.body) != (exchange.reply.status, exchange.reply.body):
                raise self._violation(f"{exchange.asked.task!r} is answered otherwise when it is asked again", "honest")

    def follows(self, exchanges: Iterable[Exchange]) -> bool:
        """Send honest requests again, as long as they are answered.

        Args:
            exchanges: A prefix of the honest run's exchanges with this site.

        Returns:
            False when one was not answered as in the honest run: it hands back what the site said of other rows.
        """
        return all(self.ask(exchange.asked).status == exchange.reply.status for exchange in exchanges)

    def ask(self, message: RequestMessage, why: str = "honest") -> ReplyMessage:
        """Send a request, signed and with a number of its own, and hold the reply to the contract.

        Args:
            message: The request.
            why: The lie's name, for the violation's text.

        Returns:
            The reply.

        Raises:
            ContractViolation: The reply is more than the contract allows.
        """
        sent = replace(message, fresh=fresh_number())
        reply = self.send(sent, why)
        if reply.status == "answer":
            self._judge_release(sent, reply, why)
        else:
            self._judge_refusal(sent, reply, why)
        return reply

    def send(self, sent: RequestMessage, why: str) -> ReplyMessage:
        """Send a message as it is, signed, and read the reply without judging what it says.

        Args:
            sent: The message.
            why: The lie's name, for the violation's text.

        Returns:
            The reply.

        Raises:
            ContractViolation: The site's process ended, or the reply is not signed or not in form.
        """
        assert self.honest.served.hub is not None  # noqa: S101 - the run is over
        data = write_request(sent, self.honest.served.hub)
        try:
            came = self._server.reply(data)
        except Exception as error:
            raise self._violation(f"{type(error).__name__} ends the site's process", why) from error
        try:
            return read_reply(came, site=self.honest.served.identities[self.site].public)
        except KohortError as error:
            raise self._violation("the reply is not signed, or not in form", why) from error

    def restart(self) -> None:
        """Start the site's server anew from what is on its disk."""
        self._server.close()
        self._server = self.honest.serve(self.site, other_rows=self._other_rows, folder=self._folder)

    def _judge_refusal(self, sent: RequestMessage, reply: ReplyMessage, why: str) -> None:
        silent = not reply.body and not reply.guarantee and not reply.rows and not reply.via
        if reply.code not in CODES or not silent:
            raise self._violation("a refusal or failure says more than one word of the fixed list", why)
        if reply.status in {"failed", "tampered"}:
            asked = asked_of(sent.request)
            which = (asked.task, asked.round, asked.part)
            self._failed[which] += 1
            if self._failed[which] > ATTEMPTS:
                raise self._violation(f"{sent.task!r} was tried more often than the contract allows", why)

    def _judge_release(self, sent: RequestMessage, reply: ReplyMessage, why: str) -> None:
        found = _listed(self._contract, sent)
        if found is None:
            raise self._violation(f"{sent.task!r} was answered, and the contract has no such step", why)
        step, position = found
        if sent.site != self.site or (sent.attempt and not step.repeats):
            raise self._violation(f"{sent.task!r} was answered in another attempt, or for another site", why)
        claim = parse_guarantee(dict(reply.guarantee))
        if not step.allows(claim, reply.to):
            raise self._violation(f"{sent.task!r} was answered under the weaker claim {claim.kind!r}", why)
        self._judge_place(step, position, sent, reply, why)
        if not isinstance(claim, Raw) and not self._other_rows and shows_canary(reply.body):
            raise self._violation(f"the answer to {sent.task!r} holds a value of a single row", why)

    def _judge_place(self, step: Step, position: Position, sent: RequestMessage, reply: ReplyMessage, why: str) -> None:
        """Each step once, in the contract's order, and each part after the one before it."""
        request = sent.request
        asked = asked_of(request)
        which: tuple[object, ...] = (sent.run, asked.task, asked.round, asked.part)
        said = (request.digest, reply.body)
        if step.repeats:  # the key-holder's steps: one answer per sum
            which, said = (*which, request.payload.blobs.get("task")), ("", reply.body)
        is_new = which not in self.left
        if self.left.setdefault(which, said) != said:
            raise self._violation(f"{sent.task!r} of round {sent.round} was answered twice, with two requests", why)
        if asked.part and not step.repeats and (sent.run, asked.task, asked.round, asked.part - 1) not in self.left:
            raise self._violation(f"step {asked.part} of {sent.task!r} was answered before the one before it", why)
        if is_new and step.ordered and sent.run == self.honest.approved.run:
            if position < self._furthest:
                raise self._violation(f"{sent.task!r} of round {sent.round} was answered after a later step", why)
            self._furthest = position

    def _violation(self, text: str, why: str) -> ContractViolation:
        return ContractViolation(f"{self.honest.name}, {self.site}: {text} (lie: {why})")


def _listed(contract: Contract, sent: RequestMessage) -> tuple[Step, Position] | None:
    """The step a request asks for and its place, found without the code that a site uses."""
    numbers = sent.request.payload.metrics
    part = numbers.get("step", 0)
    for block, steps in enumerate(contract.blocks):
        for place, step in enumerate(steps):
            asked = (sent.task, numbers.get("phase"), sent.round in list(step.rounds), part in list(range(step.parts)))
            if asked == (step.task, step.phase, True, True):
                return step, (block, sent.round // step.every, place, sent.round, int(part))
    return None


class _Pair:
    """A victim and its twin with other rows, made anew when a lie changed what they would answer."""

    def __init__(self, honest: HonestRun, site: str) -> None:
        self._honest, self._site, self._script = honest, site, honest.script(site)
        self._victims: list[Victim] = []
        self._place = 0
        self.handed_back = "" if site == KEY_HOLDER else self._first_not_followed()

    def _first_not_followed(self) -> str:
        """The first task whose honest request hands back what the site said of its rows; twins differ in it."""
        twin = Victim(self._honest, self._site, other_rows=True)
        refused = (exchange.asked.task for exchange in self._script if not twin.follows([exchange]))
        return next(refused, "")

    def at(self, place: int) -> list[Victim]:
        """Both, after the first `place` honest requests; the victim alone where these fit its own rows only."""
        if not self._victims:
            self._victims, self._place = list(self._fresh()), 0
        self._victims[0].follow(self._script[self._place : place])
        if len(self._victims) > 1 and not self._victims[1].follows(self._script[self._place : place]):
            self._victims.pop()
        self._place = place
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
        again = next(honest.sampled([Lie("restart", ())], VICTIM, place, weight=10), None)
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
)
"""The families of lies, in the order `check_trust` takes them."""


def check_trust(plan: Plan, *, share: float = 1.0) -> None:
    """Hold a plan to its contract against a hub that lies.

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
