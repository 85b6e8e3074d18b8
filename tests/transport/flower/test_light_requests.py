"""Requests that carry messages are answered as through all of Flower's middlewares, and nodes are authenticated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

pytest.importorskip("flwr")

from cryptography.hazmat.primitives.asymmetric import ec
from fastapi import FastAPI, HTTPException, Request, Response
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest
from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.proto.run_pb2 import GetRunRequest
from flwr.server.superlink.linkstate import linkstate_factory
from flwr.supercore.constant import FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.error import http_error_translator
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf import client as protobuf_client
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES, ProtobufTranslationMiddleware
from flwr.superlink import main as superlink_main
from flwr.supernode import main as supernode_main
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware

from kohort.transport.flower.light_requests import lighten
from kohort.transport.flower.link_state import keep_in_memory, node_number

KEY, STRANGER = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
NODE = public_key_to_bytes(KEY.public_key())

PULL = "/v1/fleet/pull-messages"
LOOK = PullMessagesRequest(node=Node(node_id=node_number(NODE))).SerializeToString()


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One request."""

    path: str = PULL
    body: bytes = LOOK
    signer: ec.EllipticCurvePrivateKey | None = KEY
    method: str = "POST"
    changed: dict[str, str] = field(default_factory=dict)

    def headers(self) -> dict[str, str]:
        made = httpx.Request(self.method, "http://hub", headers={"content-type": PROTOBUF_MEDIA_TYPE})
        if self.signer is not None:
            interceptor: Any = NodeAuthHttpInterceptor(self.signer, self.signer.public_key())
            context = protobuf_client.ProtobufRequestContext.__new__(protobuf_client.ProtobufRequestContext)
            object.__setattr__(context, "request", made)
            interceptor.intercept(context, lambda _: None)
        return {**made.headers, **self.changed}


@pytest.fixture
def superlink(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """Makes a SuperLink that knows one node."""
    monkeypatch.setattr(linkstate_factory, "InMemoryLinkState", linkstate_factory.InMemoryLinkState)
    monkeypatch.setattr(superlink_main, "get_ee_linkstate_db", lambda: keep_in_memory([NODE]))
    return superlink_main.create_app


def whole_answer(app: Any, asked: Asked) -> httpx.Response:
    """What an app answers."""

    async def call() -> httpx.Response:
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://hub") as client:
            return await client.request(asked.method, asked.path, content=asked.body, headers=asked.headers())

    return asyncio.run(call())


def answer(app: Any, asked: Asked) -> tuple[int, bytes, str]:
    """Status, body and type of what an app answers."""
    got = whole_answer(app, asked)
    return got.status_code, got.content, got.headers.get("content-type", "")


OBJECT = PullObjectRequest(node=Node(node_id=node_number(NODE)), run_id=3, object_id="0" * 64).SerializeToString()
REQUESTS = {
    "a look": Asked(),
    "activation": Asked(
        path="/v1/fleet/activate-node",
        body=ActivateNodeRequest(public_key=NODE, heartbeat_interval=30).SerializeToString(),
    ),
    "another's key": Asked(
        path="/v1/fleet/activate-node", body=ActivateNodeRequest(public_key=b"other").SerializeToString()
    ),
    "an object of no run": Asked(path="/v1/fleet/pull-object", body=OBJECT),
    "a run that is not there": Asked(
        path="/v1/fleet/get-run", body=GetRunRequest(node=Node(node_id=node_number(NODE)), run_id=3).SerializeToString()
    ),
    "unsigned": Asked(signer=None),
    "signed by a stranger": Asked(signer=STRANGER),
    "signed long ago": Asked(changed={TIMESTAMP_HEADER: "2020-01-01T00:00:00+00:00"}),
    "an altered signature": Asked(changed={FLEET_HTTP_SIGNATURE_HEADER: "AAAA"}),
    "another node's number": Asked(body=PullMessagesRequest(node=Node(node_id=5)).SerializeToString()),
    "no protobuf": Asked(body=b"\xff\xff\xff"),
    "another type": Asked(changed={"content-type": "application/json"}),
    "another verb": Asked(method="GET"),
    "nowhere": Asked(path="/v1/fleet/nothing"),
    "two slashes": Asked(path="/v1/fleet//pull-messages"),
    "an escaped question mark": Asked(path="/v1/fleet/pull-messages%3Fx"),
    "the Control API": Asked(path="/v1/control/stop-run", body=b""),
    "the Runtime API without a token": Asked(path="/v1/runtime/pull-messages", body=b""),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_superlink_answers_as_through_all_middlewares(superlink: Callable[[], Any], name: str) -> None:
    light, whole = lighten(superlink(), authenticate=True), superlink()
    assert answer(light, REQUESTS[name]) == answer(whole, REQUESTS[name])


@pytest.mark.parametrize("path", [path for _, path in PROTOBUF_REQUEST_TYPES if path.startswith("/v1/fleet/")])
def test_no_request_of_a_node_is_answered_unsigned(superlink: Callable[[], Any], path: str) -> None:
    app = lighten(superlink(), authenticate=True)
    for signer, body in ((None, b""), (STRANGER, b""), (None, LOOK)):
        assert answer(app, Asked(path=path, body=body, signer=signer))[0] == 401


def test_requests_were_answered_at_all(superlink: Callable[[], Any]) -> None:
    """Otherwise equal answers would say little."""
    app = lighten(superlink(), authenticate=True)
    assert answer(app, REQUESTS["activation"])[0] == 200
    assert answer(app, REQUESTS["a look"]) == (200, b"", PROTOBUF_MEDIA_TYPE)
    assert answer(app, REQUESTS["unsigned"])[0] == answer(app, REQUESTS["another node's number"])[0] == 401


def test_a_supernode_answers_as_through_all_middlewares() -> None:
    light = lighten(supernode_main.create_app(None, b"secret"), authenticate=False)
    whole = supernode_main.create_app(None, b"secret")
    for path in ("/v1/runtime/acquire-task", "/v1/runtime/pull-object", "/v1/runtime/nothing", "/health"):
        for body in (b"", b"\xff\xff\xff"):
            asked = Asked(path=path, body=body, signer=None)
            assert answer(light, asked) == answer(whole, asked), path


def test_only_requests_that_carry_messages_leave_middlewares_out() -> None:
    """A middleware that Flower or an extension adds is asked about every other request."""
    asked: list[str] = []

    async def note(request: Any, call_next: Any) -> Any:
        asked.append(request.url.path)
        return await call_next(request)

    app = supernode_main.create_app(None, b"secret")
    app.user_middleware.insert(0, Middleware(BaseHTTPMiddleware, dispatch=note))
    lighten(app, authenticate=False)
    for path in ("/v1/runtime/pull-object", "/health", "/v1/runtime/nothing"):
        answer(app, Asked(path=path, signer=None))
    assert asked == ["/health", "/v1/runtime/nothing"]


def test_status_and_headers_of_what_answers_are_kept() -> None:
    """Of an error that the application itself turned into an answer, and of a good answer."""

    def app(*, light: bool) -> Any:
        made = FastAPI(middleware=[Middleware(ProtobufTranslationMiddleware)])

        @made.post("/v1/runtime/pull-object")
        def refuse() -> None:
            raise HTTPException(409, "another one was first", headers={"retry-after": "7"})

        @made.post("/v1/runtime/push-object")
        def answered(request: Request, response: Response) -> None:
            request.state.protobuf_response = PullObjectResponse(object_found=True)
            response.headers["retry-after"] = "7"
            response.status_code = 202

        return lighten(made, authenticate=False) if light else made

    for path, status in (("/v1/runtime/pull-object", 409), ("/v1/runtime/push-object", 202)):
        asked = Asked(path=path, body=b"", signer=None)
        light, whole = (whole_answer(app(light=light), asked) for light in (True, False))
        assert light.status_code == whole.status_code == status
        assert light.headers == whole.headers
        assert light.headers["retry-after"] == "7"
        assert light.content == whole.content != b""


def test_what_is_left_out_is_what_this_flower_has() -> None:
    """The pinned Flower's middlewares: another list must be read anew before requests pass it by."""
    names = [
        item.kwargs["dispatch"].__name__ if item.cls is BaseHTTPMiddleware else item.cls.__name__
        for item in superlink_main._get_middleware()
    ]
    assert names == [
        "ControlSensitiveResponseMiddleware",
        http_error_translator.__name__,
        "ControlAuthenticationMiddleware",
        "ControlLicenseMiddleware",
        "ProtobufTranslationMiddleware",
        "RuntimeTracingMiddleware",
        "ControlEventLogMiddleware",
        "NodeAuthMiddleware",
        "FleetEventLogMiddleware",
    ]
