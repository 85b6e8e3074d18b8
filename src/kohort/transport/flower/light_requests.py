"""Flower's middlewares for the short requests that carry messages, without what they cost.

A message is some thirty HTTP requests on its way and back, and Flower wraps each in up to nine middlewares; every one
begins tasks and streams of its own, which took four fifths of the hub's time. Here the `dispatch` functions of the
middlewares that such a request needs call each other directly: errors, the translation of protobuf, and the
authentication of nodes, all Flower's own code. What is left out does nothing for these requests: accounts, licences
and event logs of the Control API, and tracing. Every other request goes through all of them, as before.

This module imports Flower, so it is imported on demand.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from functools import partial
from typing import Any

from flwr.supercore.error import http_error_translator
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES, ProtobufTranslationMiddleware
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

__all__ = ["LightRequests", "lighten"]

_LIGHT = ("/v1/fleet/", "/v1/runtime/")
"""Where the requests that carry messages go."""

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
CallNext = Callable[[Request], Awaitable[Response]]


def lighten(app: Any, *, authenticate: bool) -> Any:
    """Let the requests that carry messages pass only the middlewares they need.

    Args:
        app: A SuperLink or a SuperNode that has served nothing yet.
        authenticate: Whether nodes are authenticated, as a SuperLink does.

    Returns:
        The same app.
    """
    app.user_middleware = [Middleware(LightRequests, whole=tuple(app.user_middleware), authenticate=authenticate)]
    return app


class LightRequests:
    """The middlewares of Flower, as one.

    Args:
        app: What they wrap.
        whole: All of them, outermost first, for requests that carry no messages.
        authenticate: Whether nodes are authenticated.
    """

    def __init__(self, app: App, *, whole: Sequence[Middleware], authenticate: bool) -> None:
        self._app = app
        self._whole: App = app
        for wrapped, arguments, options in reversed(whole):
            self._whole = wrapped(self._whole, *arguments, **options)
        self._respond: CallNext = self._handle
        for dispatch in reversed(_dispatches(app, authenticate)):
            self._respond = partial(dispatch, call_next=self._respond)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As every ASGI application."""
        if not _carries_messages(scope):
            await self._whole(scope, receive, send)
            return
        response = await self._respond(Request(scope, receive))
        await response(scope, receive, send)

    async def _handle(self, request: Request) -> Response:
        """What the app answers; it finds the request's message where the translation left it."""
        events: list[Event] = []

        async def send(event: Event) -> None:
            events.append(event)

        await self._app(request.scope, request.receive, send)
        response = Response(b"".join(event.get("body", b"") for event in events), status_code=events[0]["status"])
        response.raw_headers = list(events[0].get("headers", ()))
        return response


def _carries_messages(scope: Scope) -> bool:
    """Whether the SuperLink or SuperNode translates this request from protobuf, and no stream answers it."""
    if scope["type"] != "http" or not scope["path"].startswith(_LIGHT):
        return False
    return (scope["method"], scope["path"]) in PROTOBUF_REQUEST_TYPES


def _dispatches(app: Any, authenticate: bool) -> list[Any]:
    """The functions of the middlewares that such a request needs, outermost first."""
    needed: list[Any] = [http_error_translator, ProtobufTranslationMiddleware(app).dispatch]
    if authenticate:
        from flwr.superlink.routers.fleet.node_auth import NodeAuthMiddleware

        needed.append(NodeAuthMiddleware(app).dispatch)
    return needed
