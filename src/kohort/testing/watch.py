"""Holds what leaves an honest party to the contract, whoever lies.

Whatever the lie, `Watch` demands of every reply: what it releases is a step of the contract, with a claim the step
allows, once; a refusal or failure is one word of a fixed list; no payload shows the canary row. `Victim` is a site that
is asked through the server that real sites run, with a watch over it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

from kohort.crypto.sums.scheme import KEY_HOLDER
from kohort.errors import KohortError
from kohort.privacy.codes import CODES
from kohort.privacy.contract import ATTEMPTS, Contract, Position, Step
from kohort.privacy.guarantee import Raw, parse_guarantee
from kohort.protocol.answers import asked_of
from kohort.testing.canary import shows_canary
from kohort.testing.checks import ContractViolation
from kohort.testing.recorded import Exchange, HonestRun
from kohort.transport.messages import ReplyMessage, RequestMessage, fresh_number, read_reply, write_request

__all__ = ["Victim", "Watch", "handed_back"]


class Watch:
    """Holds everything that leaves one site, or the key-holder, to the contract.

    Args:
        honest: The recorded run it belongs to.
        site: Its name.
        other_rows: Whether it has other row values than in the honest run, and so no canary.
    """

    def __init__(self, honest: HonestRun, site: str, *, other_rows: bool = False) -> None:
        self.honest, self.site, self._other_rows = honest, site, other_rows
        self._contract = honest.contract(site)
        self.left: dict[tuple[object, ...], tuple[str, bytes]] = {}
        """What left for each step of the contract: the request's digest and the bytes."""
        self._furthest: Position = (-1, 0, 0, 0, 0)
        self._failed: Counter[tuple[str, int, int]] = Counter()

    def judge(self, sent: RequestMessage, reply: ReplyMessage, why: str) -> None:
        """Hold a reply to the contract.

        Args:
            sent: The request.
            reply: What came back.
            why: The lie's name, for the violation's text.

        Raises:
            ContractViolation: The reply is more than the contract allows.
        """
        if reply.status == "answer":
            self._judge_release(sent, reply, why)
        else:
            self._judge_refusal(sent, reply, why)

    def _judge_refusal(self, sent: RequestMessage, reply: ReplyMessage, why: str) -> None:
        silent = not reply.body and not reply.guarantee and not reply.rows and not reply.via
        if reply.code not in CODES or not silent:
            raise self.violation("a refusal or failure says more than one word of the fixed list", why)
        if reply.status in {"failed", "tampered"}:
            asked = asked_of(sent.request)
            which = (asked.task, asked.round, asked.part)
            self._failed[which] += 1
            if self._failed[which] > ATTEMPTS:
                raise self.violation(f"{sent.task!r} was tried more often than the contract allows", why)

    def _judge_release(self, sent: RequestMessage, reply: ReplyMessage, why: str) -> None:
        found = _listed(self._contract, sent)
        if found is None:
            raise self.violation(f"{sent.task!r} was answered, and the contract has no such step", why)
        step, position = found
        if sent.site != self.site or (sent.attempt and not step.repeats):
            raise self.violation(f"{sent.task!r} was answered in another attempt, or for another site", why)
        claim = parse_guarantee(dict(reply.guarantee))
        if not step.allows(claim, reply.to):
            raise self.violation(f"{sent.task!r} was answered under the weaker claim {claim.kind!r}", why)
        self._judge_place(step, position, sent, reply, why)
        # Rows leave as they are where the plan says so; never without their persons' consent, where these were asked.
        stays = not isinstance(claim, Raw) or self.honest.plan.data.consent is not None
        if stays and not self._other_rows and shows_canary(reply.body):
            raise self.violation(f"the answer to {sent.task!r} holds a value of a single row", why)

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
            raise self.violation(f"{sent.task!r} of round {sent.round} was answered twice, with two requests", why)
        if asked.part and not step.repeats and (sent.run, asked.task, asked.round, asked.part - 1) not in self.left:
            raise self.violation(f"step {asked.part} of {sent.task!r} was answered before the one before it", why)
        if is_new and step.ordered and sent.run == self.honest.approved.run:
            if position < self._furthest:
                raise self.violation(f"{sent.task!r} of round {sent.round} was answered after a later step", why)
            self._furthest = position

    def violation(self, text: str, why: str) -> ContractViolation:
        """The error that says what a lie got.

        Args:
            text: What left.
            why: The lie's name.

        Returns:
            The error, to be raised.
        """
        return ContractViolation(f"{self.honest.name}, {self.site}: {text} (lie: {why})")


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
        self._watch = Watch(honest, site, other_rows=other_rows)

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
                raise self._watch.violation(
                    f"{exchange.asked.task!r} is answered otherwise when it is asked again", "honest"
                )

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
        self._watch.judge(sent, reply, why)
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
            raise self._watch.violation(f"{type(error).__name__} ends the site's process", why) from error
        try:
            return read_reply(came, site=self.honest.served.identities[self.site].public)
        except KohortError as error:
            raise self._watch.violation("the reply is not signed, or not in form", why) from error

    def restart(self) -> None:
        """Start the site's server anew from what is on its disk."""
        self._server.close()
        self._server = self.honest.serve(self.site, other_rows=self._other_rows, folder=self._folder)


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


@cache
def handed_back(honest: HonestRun, site: str) -> str:
    """The first task whose honest request hands back what the site said of its rows; a twin with other rows refuses it.

    Args:
        honest: The recorded run.
        site: A site's name, or the key-holder's.

    Returns:
        The task's name; empty where there is none.
    """
    if site == KEY_HOLDER:
        return ""
    twin = Victim(honest, site, other_rows=True)
    refused = (exchange.asked.task for exchange in honest.script(site) if not twin.follows([exchange]))
    return next(refused, "")
