"""Long polling: the SuperLink answers a poll for messages when there are some, instead of at once.

Flower's transport does not push messages: a poll that finds nothing is repeated some time later, and a message waits
that long. Here a poll may say in a header how many seconds it is ready to wait. The SuperLink then looks again whenever
the other side sent something, and answers at the first message or when the time is over. A poll without that header is
answered at once, as Flower does it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any

__all__ = ["LONGEST_HOLD", "HoldRequest", "LongPolling"]

HOLD_HEADER = "x-kohort-hold"
LONGEST_HOLD = 3.0
"""Seconds that a poll is held at most; Flower's own nodes poll every three."""
_POLLS = {"/v1/fleet/pull-messages": "fleet", "/v1/runtime/pull-messages": "runtime"}
"""Who polls there for messages."""
_NEWS = {"/v1/runtime/push-object": "fleet", "/v1/fleet/push-object": "runtime"}
"""Whom a request may bring a message, once it is answered: it is announced first, and complete with its last part."""
_TOGETHER = 0.02
"""Seconds to wait for the other parts of a message, which follow its first."""

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class HoldRequest:
    """Adds to polls for messages how long the SuperLink may hold them.

    Args:
        seconds: How long, asked at every poll.
    """

    def __init__(self, seconds: Callable[[], float] = lambda: LONGEST_HOLD) -> None:
        self._seconds = seconds

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        """As Flower's interceptors do."""
        if context.request.url.path in _POLLS:
            context.request.headers[HOLD_HEADER] = f"{max(0.0, self._seconds()):.3f}"
        return call_next(context)


class LongPolling:
    """Holds polls for messages until there is one. Every poll that is repeated is authenticated again.

    Args:
        app: The SuperLink.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._news = {side: asyncio.Event() for side in _NEWS.values()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As every ASGI application."""
        path = scope.get("path", "")
        seconds = _seconds(scope) if path in _POLLS else 0.0
        if seconds > 0.0:
            await self._hold(scope, receive, send, seconds=seconds)
            return
        if path not in _NEWS:
            await self._app(scope, receive, send)
            return
        taken = False

        async def heard(event: Event) -> None:
            nonlocal taken
            taken = taken or (event["type"] == "http.response.start" and event["status"] == 200)
            await send(event)

        await self._app(scope, receive, heard)
        if taken:  # otherwise whoever reaches the hub could make it look for everybody
            self._tell(_NEWS[path])

    def _tell(self, side: str) -> None:
        news, self._news[side] = self._news[side], asyncio.Event()
        news.set()

    async def _hold(self, scope: Scope, receive: Receive, send: Send, *, seconds: float) -> None:
        ends, side = time.monotonic() + seconds, _POLLS[scope["path"]]
        asked = await _whole(receive)
        if asked is None:
            return
        gone = asyncio.ensure_future(receive())  # nothing comes after a whole request but the end of its connection
        try:
            while True:
                news = self._news[side]
                answer = await self._look(scope, asked)
                if _has_messages(answer) or time.monotonic() >= ends:
                    break
                # A message must not be given to a connection that is no more.
                waiting = asyncio.ensure_future(news.wait())
                await asyncio.wait({waiting, gone}, timeout=ends - time.monotonic(), return_when="FIRST_COMPLETED")
                waiting.cancel()
                if gone.done():
                    return
                if news.is_set():
                    await asyncio.sleep(_TOGETHER)
        finally:
            gone.cancel()
        for event in answer:
            await send(event)

    async def _look(self, scope: Scope, asked: bytes) -> list[Event]:
        """What the SuperLink answers now."""
        answer: list[Event] = []
        given = False
        never = asyncio.Event()

        async def receive() -> Event:
            nonlocal given
            if given:
                await never.wait()
            given = True
            return {"type": "http.request", "body": asked, "more_body": False}

        async def send(event: Event) -> None:
            answer.append(event)

        copied = dict(scope)
        if isinstance(scope.get("state"), dict):  # requests of one poll must not find what the one before left
            copied["state"] = dict(scope["state"])
        await self._app(copied, receive, send)
        return answer


def _seconds(scope: Scope) -> float:
    """How long a poll may be held; not at all if that cannot be read."""
    given = dict(scope.get("headers", ())).get(HOLD_HEADER.encode(), b"")
    with suppress(ValueError):
        return min(LONGEST_HOLD, max(0.0, float(given)))
    return 0.0


async def _whole(receive: Receive) -> bytes | None:
    """A request's body; None when its sender is gone."""
    parts = []
    while True:
        event = await receive()
        if event["type"] != "http.request":
            return None
        parts.append(event.get("body", b""))
        if not event.get("more_body", False):
            return b"".join(parts)


def _has_messages(answer: list[Event]) -> bool:
    """Whether an answer has something to say: a protobuf message without content has no bytes."""
    good = any(event["type"] == "http.response.start" and event["status"] == 200 for event in answer)
    return not good or any(event.get("body") for event in answer)
