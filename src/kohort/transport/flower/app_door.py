"""A door under somebody else's app: a Flower client mod that lets a reply leave only as the site's policy allows.

Flower has no hook for the operator of a node: an app sends whatever it returns. Behind this mod every reply is checked
(`app_content`), claimed, judged by the policy through the door every release of kohort passes, written to the site's
ledger, and built anew from what was checked. A refused or failed reply leaves as one word of `kohort.privacy.codes`.

What it does not do: the app runs with the rights of its process, so this is no sandbox, and the number of rows behind a
reply is the app's word. Without `noise` a reply is an aggregate of one site: a hub that chooses the weights can read
rows from aggregates.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kohort.errors import ConfigError, KohortError, RefusedError
from kohort.privacy.codes import code_of
from kohort.privacy.contract import Step
from kohort.privacy.door import door
from kohort.privacy.guarantee import DP, Aggregate, Guarantee, Public
from kohort.privacy.ledger.ledger import Chain, LedgerContext
from kohort.privacy.policy import Policy
from kohort.transport.flower.app_content import AppRequest, Arrays, CheckedReply, checked_content
from kohort.transport.flower.app_ledger import AppLedger
from kohort.transport.flower.environment import require_flower
from kohort.transport.site_ledger import SiteLedger

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp
    from flwr.clientapp.typing import ClientAppCallable, Mod

__all__ = ["MOST_NUMBERS", "AppDoor", "Noise", "door_mod", "guarded"]

MOST_NUMBERS = 10_000_000
"""How many numbers the arrays of one reply may have, unless the operator says otherwise."""
_NOTHING = Public(what="nothing")
_UNKNOWN_ROWS = 1 << 62


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Noise the door adds to what an app trained, whatever the app did: the budget does not rest on the app's word.

    The change of all weights together is clipped to `clip` (L2) and gets Gaussian noise, so that each reply is
    (epsilon, delta)-differentially private for a row, and for all rows of the site at once. Each reply pays from the
    policy's budget.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field

    clip: float
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not (0 < self.clip < inf and 0 < self.epsilon < inf and 0 < self.delta < 1):
            raise ConfigError(
                "noise needs a clip and an epsilon above 0, and a delta between 0 and 1",
                hint="For example clip = 1.0, epsilon = 0.5, delta = 1e-6",
            )

    @property
    def sigma(self) -> float:
        """The noise's standard deviation by the sensitivity: two clipped changes are up to 2 x clip apart."""
        from kohort.privacy.dp.gaussian import gaussian_mu

        return 1 / gaussian_mu(self.epsilon, self.delta)

    def claim(self, rows: int) -> DP:
        """What a reply with this noise claims.

        Args:
            rows: How many rows are behind it.

        Returns:
            The guarantee; it is void when delta is too large for so many rows.
        """
        from kohort.privacy.dp.accounting import Event, describe

        return DP(
            epsilon=self.epsilon,
            delta=self.delta,
            event=describe([Event(sigma=self.sigma)]),
            simulated=False,
            void=self.delta * 10 * max(rows, 1) > 1,
        )

    def added(self, checked: CheckedReply) -> CheckedReply:
        """The reply with its weights clipped and noised.

        Args:
            checked: The reply as the app made it.

        Returns:
            The same names and shapes with other numbers.

        Raises:
            RefusedError: It holds arrays that are not real numbers: they cannot be noised.
        """
        from kohort.models.dp_sgd.fit import gaussian

        places = [(record, name) for record, arrays in checked.arrays.items() for name in arrays]
        if any(checked.arrays[record][name].dtype.kind != "f" for record, name in places):
            raise RefusedError("the reply has arrays of whole numbers, to which no noise can be added", code="policy")
        before = [checked.sent[record][name].astype(np.float64).ravel() for record, name in places]
        after = [checked.arrays[record][name].astype(np.float64).ravel() for record, name in places]
        moved = np.concatenate(
            [np.nan_to_num(b - a, posinf=0.0, neginf=0.0) for a, b in zip(before, after, strict=True)]
        )
        length = float(np.linalg.norm(moved))
        moved *= min(1.0, self.clip / length) if length > 0 else 1.0
        moved += 2 * self.clip * self.sigma * gaussian(os.urandom(32), moved.size)
        made: dict[str, Arrays] = {record: {} for record in checked.arrays}
        at = 0
        for (record, name), start in zip(places, before, strict=True):
            like = checked.arrays[record][name]
            made[record][name] = (start + moved[at : at + start.size]).astype(like.dtype).reshape(like.shape)
            at += start.size
        return replace(checked, arrays=made)


@dataclass(frozen=True, kw_only=True)
class AppDoor:
    """The mod that `door_mod` returns: everything the operator set."""

    policy: Policy
    ledger: AppLedger
    rows: int | None
    noise: Noise | None
    most_numbers: int
    most_answers: int | None

    @property
    def binding(self) -> dict[str, Any]:
        """What the ledger's chain is bound to."""
        noise = None if self.noise is None else dict(vars(self.noise))
        limits = {
            "rows": self.rows,
            "noise": noise,
            "most_numbers": self.most_numbers,
            "most_answers": self.most_answers,
        }
        return {
            "schema": "",
            "policy": self.policy.to_mapping(),
            "rows_public": "rows" in self.policy.public,
            "door": limits,
        }

    def note(self, what: str, reason: str) -> None:
        """Write a line about something that was turned away before it could become a message to the app.

        Args:
            what: What it was.
            reason: Why, without any value.
        """
        with self.ledger.opened(self.binding) as ledger:
            ledger.note(ledger.chain, LedgerContext(what=what), reason=reason)

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """The reply that may leave; as every mod of Flower is called."""
        from flwr.app import Message
        from flwr.app.error import Error
        from flwr.common.constant import ErrorCode

        where = _context_of(message)
        try:
            self._admit(where)
            checked = self._checked(message, context, call_next, where)
            return Message(self._released(checked, where).content(), reply_to=message)
        except KohortError as error:  # the reason stays here: in the ledger, and on this machine's stderr
            sys.stderr.write(f"kohort: no reply to {where.what}: {error.message}\n")
            refused = isinstance(error, RefusedError)
            code = ErrorCode.MOD_FAILED_PRECONDITION if refused else ErrorCode.CLIENT_APP_RAISED_EXCEPTION
            return Message(Error(code=code, reason=code_of(error)), reply_to=message)

    def _admit(self, where: LedgerContext) -> None:
        """Refuse, before the app runs, what the policy does not answer or what was answered often enough."""
        with self.ledger.opened(self.binding) as ledger:
            reason, code = "", "policy"
            answered = ledger.answered_lately(where.what)
            if not self.policy.answers(where.what):
                reason = f"the policy does not answer the task {where.what!r}"
            elif self.most_answers is not None and answered >= self.most_answers:
                reason, code = (
                    f"{answered} answers left in the last 30 days, the limit is {self.most_answers}",
                    "limits",
                )
            if reason:
                ledger.refuse(ledger.chain, where, guarantee=_NOTHING, reason=reason)
        if reason:
            raise RefusedError(reason, code=code)

    def _checked(
        self, message: Message, context: Context, call_next: ClientAppCallable, where: LedgerContext
    ) -> CheckedReply:
        """The app's reply, checked; a failure or a refusal is a line in the ledger."""
        asked = self._read(message, where)  # before the app, which may change what it was given
        try:
            reply = call_next(message, context)
            failed = "the app reported an error" if reply.has_error() else ""
        except (Exception, SystemExit) as error:  # its text could hold a cell
            failed = f"the app failed ({type(error).__name__})"
        if failed:
            with self.ledger.opened(self.binding) as ledger:
                ledger.note(ledger.chain, where, reason=failed)
            raise KohortError(failed, code="failed")
        with self._written(where):
            checked = checked_content(asked, reply.content, policy=self.policy, most_numbers=self.most_numbers)
            return checked if self.noise is None or not checked.arrays else self.noise.added(checked)

    def _read(self, message: Message, where: LedgerContext) -> AppRequest:
        with self._written(where):
            return AppRequest.of(message.content)

    @contextmanager
    def _written(self, where: LedgerContext) -> Iterator[None]:
        """A refusal inside the block is a line in the ledger."""
        try:
            yield
        except RefusedError as error:
            with self.ledger.opened(self.binding) as ledger:
                ledger.refuse(ledger.chain, where, guarantee=_NOTHING, reason=error.message)
            raise

    def _released(self, checked: CheckedReply, where: LedgerContext) -> CheckedReply:
        """Through the door: judged, charged and written down, or refused."""
        claim = self._claim(checked)
        with self.ledger.opened(self.binding) as ledger:
            site = _Site(ledger, self.policy, _UNKNOWN_ROWS if self.rows is None else self.rows)
            refusal = door(
                [site],
                [checked.payload()],
                ledger=ledger,
                ledger_context=where,
                guarantees=[claim],
                rows=[checked.rows],
                step=Step(task=where.what, says="what the app returned", claims=(claim,)),
                metrics=checked.metrics,
            )[0]
        if refusal is not None:
            raise RefusedError(refusal.reason, code=refusal.code)
        return checked

    def _claim(self, checked: CheckedReply) -> Guarantee:
        if checked.is_empty:
            return Public(what="an empty reply")
        if self.noise is not None and checked.arrays:
            return self.noise.claim(checked.rows if self.rows is None else self.rows)
        return Aggregate(rows=checked.rows)


class _Site:
    """The site as the door sees it."""

    def __init__(self, ledger: SiteLedger, policy: Policy, count: int) -> None:
        self.chain: Chain = ledger.chain
        self.name = self.chain.site
        self.policy = policy
        self.count = count


def door_mod(
    policy: Policy | Mapping[str, Any],
    ledger: AppLedger | Path | str,
    *,
    rows: int | None = None,
    noise: Noise | None = None,
    most_numbers: int = MOST_NUMBERS,
    most_answers: int | None = None,
) -> AppDoor:
    """A Flower client mod that puts a site's policy, ledger and budget under any ClientApp.

    Guarantee: what leaves is one of: a reply whose arrays have the names, types and shapes the hub sent, whose numbers
    have public names, and that has a ledger line; or an error with one word of `kohort.privacy.codes`. Give it as the
    first mod, or better use `guarded`: what stands before it in an app's list of mods sees the reply after it.

    Args:
        policy: What may leave: `min_rows`, `public` names of numbers, `tasks` ("flower.train", "flower.evaluate", ...),
            `epsilon` and `delta` of the budget.
        ledger: The folder of keys and ledger; made at the first use.
        rows: How many rows the site has, if the app's word for it is to be bounded.
        noise: Noise that the door adds to the weights; None for none.
        most_numbers: How many numbers the arrays of a reply may have.
        most_answers: How many replies of one kind may leave in 30 days; None for any number.

    Returns:
        The mod.

    Raises:
        ConfigError: A setting is not valid, or Flower is not installed.

    Example:
        >>> from kohort import Policy
        >>> mod = door_mod(Policy(min_rows=100, public=("rows", "loss")), "/srv/kohort/north")  # doctest: +SKIP
    """
    require_flower()
    if (rows is not None and rows < 1) or most_numbers < 0 or (most_answers is not None and most_answers < 0):
        raise ConfigError(
            "rows must be at least 1, most_numbers and most_answers must not be negative",
            hint="Leave them out, or raise them",
        )
    made = AppDoor(
        policy=policy if isinstance(policy, Policy) else _policy_of(policy),
        ledger=ledger if isinstance(ledger, AppLedger) else AppLedger(Path(ledger)),
        rows=rows,
        noise=noise,
        most_numbers=most_numbers,
        most_answers=most_answers,
    )
    made.ledger.identity()  # names and key files are judged now, not at the first message
    return made


def guarded(app: ClientApp, mod: Mod) -> ClientApp:
    """Wrap an app so that all its mods and its lifespan run inside the door's mod.

    Args:
        app: Somebody else's app.
        mod: What `door_mod` returned.

    Returns:
        A ClientApp to run in its place.
    """
    from flwr.clientapp import ClientApp

    class Guarded(ClientApp):
        """Hands every message to the door, whatever its type."""

        def __call__(self, message: Message, context: Context) -> Message:
            return mod(message, context, app)

    return Guarded()


def _policy_of(values: Mapping[str, Any]) -> Policy:
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(Policy).validate_python(dict(values))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(["policy", *(str(part) for part in first["loc"])])
        raise ConfigError(f"{where!r}: {first['msg'].lower()}", hint="Correct it") from None


def _context_of(message: Message) -> LedgerContext:
    """Which message a line is about; texts of the hub's own enter the ledger as a hash alone."""
    from flwr.app.metadata import validate_message_type

    data = message.metadata
    kind = str(data.message_type)
    known = validate_message_type(kind) and len(kind) <= 64
    asked = hashlib.blake2b(f"{data.run_id} {data.message_id}".encode(), digest_size=32).hexdigest()
    return LedgerContext(what=f"flower.{kind}" if known else "flower.unknown", request=asked, round=_round_of(message))


def _round_of(message: Message) -> int:
    """The round as Flower's strategies say it; 0 where none is said."""
    configs = message.content.config_records.values() if message.has_content() else ()
    said = [value for config in configs if type(value := config.get("server-round")) is int]
    return said[0] if said and 0 <= said[0] < 1 << 31 else 0
