"""A look for messages is answered when there is one; nobody who is gone, or who did not ask for it, is held."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kohort.transport.flower.long_polling import HOLD_HEADER, LONGEST_HOLD, HoldRequest, LongPolling

FLEET, RUNTIME = "/v1/fleet/pull-messages", "/v1/runtime/pull-messages"


class SuperLink:
    """Answers looks with what is there, and counts them."""

    def __init__(self, status: int = 200) -> None:
        self.there, self.looks, self.status = b"", 0, status
        self.bodies: list[bytes] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.bodies.append((await receive())["body"])
        assert "left" not in scope["state"], "what an earlier look left"
        scope["state"]["left"] = True
        body = b""
        if "pull" in scope["path"]:
            self.looks += 1
            body, self.there = self.there, b""
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": body})


class Caller:
    """One request, and what came back."""

    def __init__(self, app: LongPolling, path: str, hold: str | None) -> None:
        self._app, self.came = app, []  # type: ignore[var-annotated]
        headers = [] if hold is None else [(HOLD_HEADER.encode(), hold.encode())]
        self._scope = {"type": "http", "path": path, "headers": headers, "state": {}}
        self._parts = [
            {"type": "http.request", "body": b"who ", "more_body": True},
            {"type": "http.request", "body": b"I am", "more_body": False},
        ]
        self.gone = asyncio.Event()

    async def _receive(self) -> Any:
        if self._parts and hasattr(self._app, "_news"):
            return self._parts.pop(0)
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, event: Any) -> None:
        self.came.append(event)

    async def call(self) -> float:
        began = time.monotonic()
        await self._app(self._scope, self._receive, self._send)
        return time.monotonic() - began

    @property
    def body(self) -> bytes:
        return b"".join(event.get("body", b"") for event in self.came)


def carried(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 20))  # type: ignore[arg-type]


@pytest.mark.parametrize(("look", "news"), [(FLEET, "/v1/runtime/push-object"), (RUNTIME, "/v1/fleet/push-object")])
def test_a_look_is_answered_when_a_message_comes(look: str, news: str) -> None:
    async def test() -> None:
        superlink = SuperLink()
        app = LongPolling(superlink)
        caller = Caller(app, look, "3")
        held = asyncio.ensure_future(caller.call())
        await asyncio.sleep(0.1)
        assert (superlink.looks, caller.came) == (1, [])
        await Caller(app, look.replace("pull-messages", "push-object"), None).call()  # of its own side: no news
        await asyncio.sleep(0.1)
        assert superlink.looks == 1
        superlink.there = b"message"
        await Caller(app, news, None).call()
        assert await held < 1.5
        assert (caller.body, superlink.looks) == (b"message", 2)
        assert [superlink.bodies[0], superlink.bodies[-1]] == [b"who I am"] * 2

    carried(test)


def test_a_message_that_is_there_is_not_waited_for_and_none_is_said_in_time() -> None:
    async def test() -> None:
        superlink = SuperLink()
        superlink.there = b"message"
        ready = Caller(LongPolling(superlink), FLEET, "3")
        assert await ready.call() < 0.5
        assert ready.body == b"message"
        empty = Caller(LongPolling(superlink), FLEET, "0.2")
        assert 0.15 < await empty.call() < 1.5
        assert [event["type"] for event in empty.came] == ["http.response.start", "http.response.body"]

    carried(test)


@pytest.mark.parametrize("hold", [None, "0", "-1", "soon", "nan"])
def test_who_did_not_ask_to_be_held_is_answered_at_once(hold: str | None) -> None:
    async def test() -> None:
        caller = Caller(LongPolling(SuperLink()), FLEET, hold)
        assert await caller.call() < 0.5
        assert len(caller.came) == 2

    carried(test)


def test_nobody_is_held_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kohort.transport.flower.long_polling.LONGEST_HOLD", 0.2)

    async def test() -> None:
        assert await Caller(LongPolling(SuperLink()), FLEET, "1e9").call() < 1.5
        assert await Caller(LongPolling(SuperLink()), FLEET, "inf").call() < 1.5

    carried(test)


def test_a_refusal_is_not_held() -> None:
    async def test() -> None:
        superlink = SuperLink(status=401)
        caller = Caller(LongPolling(superlink), FLEET, "3")
        assert await caller.call() < 0.5
        assert (caller.came[0]["status"], superlink.looks) == (401, 1)

    carried(test)


def test_what_the_superlink_refused_is_no_news() -> None:
    """Anybody may send such a request; only what was taken makes the hub look for those it holds."""

    async def test() -> None:
        superlink = SuperLink()
        app = LongPolling(superlink)
        held = asyncio.ensure_future(Caller(app, RUNTIME, "0.5").call())
        await asyncio.sleep(0.1)
        superlink.status = 401
        refused = Caller(app, "/v1/fleet/push-object", None)
        await refused.call()
        superlink.status = 200
        await held
        assert (refused.came[0]["status"], superlink.looks) == (401, 2)  # at first, and when the time was over
        again = asyncio.ensure_future(Caller(app, RUNTIME, "0.5").call())
        await asyncio.sleep(0.1)
        await Caller(app, "/v1/fleet/push-object", None).call()
        await again
        assert superlink.looks == 5

    carried(test)


def test_no_message_is_given_to_who_is_gone() -> None:
    async def test() -> None:
        superlink = SuperLink()
        app = LongPolling(superlink)
        caller = Caller(app, FLEET, "3")
        held = asyncio.ensure_future(caller.call())
        await asyncio.sleep(0.1)
        caller.gone.set()
        assert await held < 1.5
        superlink.there = b"message"
        await Caller(app, "/v1/runtime/push-object", None).call()
        await asyncio.sleep(0.1)
        assert (superlink.there, superlink.looks, caller.came) == (b"message", 1, [])

    carried(test)


def test_only_looks_for_messages_say_how_long_they_wait() -> None:
    for path, seconds, said in ((FLEET, 2.5, "2.500"), (RUNTIME, -1.0, "0.000"), ("/v1/fleet/push-object", 2.5, None)):
        request = SimpleNamespace(url=SimpleNamespace(path=path), headers={})
        context = SimpleNamespace(request=request)
        assert HoldRequest(lambda seconds=seconds: seconds).intercept(context, lambda given: given) is context  # type: ignore[misc]
        assert request.headers.get(HOLD_HEADER) == said
    assert LONGEST_HOLD < 30, "Flower's clients give a request up after thirty seconds"
