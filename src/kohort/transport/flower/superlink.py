"""The hub's SuperLink: serving it, and the hub's own requests to it.

The SuperLink serves its Fleet API to sites. Its other APIs (start runs, register nodes, read messages) have no users
and no passwords in Flower itself, so here they answer only to who knows the hub folder's secret.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Awaitable, Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kohort.errors import SiteError
from kohort.transport.flower.environment import require_flower
from kohort.transport.flower.long_polling import LONGEST_HOLD, LongPolling

__all__ = [
    "Connection",
    "HubSecretMiddleware",
    "control_client",
    "node_states",
    "register_node",
    "runtime_client",
    "serve_superlink",
    "unregister_node",
]

_PLAIN_PATH, _PLAIN_HOST = re.compile(r"[a-z0-9/-]+"), re.compile(rb"[A-Za-z0-9._-]+(:\d+)?|\[[0-9A-Fa-f:.]+\](:\d+)?")
"""What no reading of an address can take apart in two ways."""
SECRET_HEADER = "x-kohort-hub"  # noqa: S105 - the name of a header


@dataclass(frozen=True, kw_only=True)
class Connection:
    """How the hub's own commands reach its SuperLink."""

    address: str
    secret: bytes
    ca: bytes | None
    """The authority's certificate; None without TLS."""


class _Secret:
    """Adds the hub's secret to a request."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret.hex()

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        """As Flower's interceptors do."""
        context.request.headers[SECRET_HEADER] = self._secret
        return call_next(context)


def runtime_client(kind: Any, connection: Connection, *more: Any, name: str = "flwr CLI", retry: Any = None) -> Any:
    """A client of one of the SuperLink's APIs that shows the hub's secret.

    Args:
        kind: Flower's class of the client.
        connection: How to reach the SuperLink.
        more: Interceptors of requests, after kohort's own.
        name: The component of Flower that the client says it is.
        retry: Flower's rule for failed requests; None to try once.

    Returns:
        The client. The caller closes it.
    """
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    return kind.from_server_address(
        server_address=connection.address,
        insecure=connection.ca is None,
        root_certificates=connection.ca,
        interceptors=[_Secret(connection.secret), RuntimeVersionHttpInterceptor(component_name=name), *more],
        retry_invoker=retry,
    )


@contextmanager
def control_client(connection: Connection) -> Iterator[Any]:
    """A client of the Control API, closed at the end of the block.

    Args:
        connection: How to reach the SuperLink.

    Yields:
        The client.

    Raises:
        SiteError: The SuperLink cannot be reached, or refused a request of the block.
        ConfigError: Flower is not installed.
    """
    require_flower()
    import httpx
    from flwr.supercore.control import ControlHttpClient

    client = runtime_client(ControlHttpClient, connection)
    try:
        yield client
    except httpx.HTTPStatusError as error:
        raise SiteError(f"the SuperLink refused a request ({error.response.status_code})") from error
    except httpx.HTTPError as error:
        raise SiteError(
            f"the hub's SuperLink at {connection.address} cannot be reached", hint="Start it with: kohort hub start"
        ) from error
    finally:
        client.close()


def register_node(connection: Connection, key: bytes) -> int:
    """Let the node with this public key connect; a known one stays as it is.

    Args:
        connection: How to reach the SuperLink.
        key: The node's public key, PEM.

    Returns:
        The node's number.

    Raises:
        SiteError: The SuperLink cannot be reached, or refused.
    """
    from flwr.proto.control_pb2 import RegisterNodeRequest

    for node in node_states(connection):
        if node["key"] == key:
            return int(node["node"])
    with control_client(connection) as client:
        return int(client.RegisterNode(RegisterNodeRequest(public_key=key)).node_id)


def unregister_node(connection: Connection, key: bytes) -> bool:
    """Let the node with this public key connect no more.

    Args:
        connection: How to reach the SuperLink.
        key: The node's public key, PEM.

    Returns:
        Whether the node was known.

    Raises:
        SiteError: The SuperLink cannot be reached, or refused.
    """
    from flwr.proto.control_pb2 import UnregisterNodeRequest

    for node in node_states(connection):
        if node["key"] == key:
            with control_client(connection) as client:
                client.UnregisterNode(UnregisterNodeRequest(node_id=node["node"]))
            return True
    return False


def node_states(connection: Connection) -> list[dict[str, Any]]:
    """Every node that may connect.

    Args:
        connection: How to reach the SuperLink.

    Returns:
        Per node its number, public key (PEM), status, when it last connected (`since`), and until when it counts as
        online (`until`).

    Raises:
        SiteError: The SuperLink cannot be reached, or refused.
    """
    from flwr.proto.control_pb2 import ListNodesRequest

    with control_client(connection) as client:
        found = client.ListNodes(ListNodesRequest())
    return [
        {
            "node": node.node_id,
            "key": node.public_key,
            "status": node.status,
            "since": node.last_activated_at,
            "until": node.online_until,
        }
        for node in found.nodes_info
        if not node.HasField("unregistered_at") or not node.unregistered_at
    ]


Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class HubSecretMiddleware:
    """Lets everybody reach the Fleet API, which authenticates nodes, and only the hub's own commands the rest.

    Flower authenticates by the path of a request's address, and chooses what answers by the path alone. Where the two
    differ, by a Host header with a path in it or an escaped question mark, nothing answers.
    """

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], secret: bytes) -> None:
        self._app = app
        self._secret = secret.hex().encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As every ASGI application."""
        if scope["type"] == "http" and not self._may(scope):
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await self._app(scope, receive, send)

    def _may(self, scope: Scope) -> bool:
        path = str(scope["path"])
        if path.startswith("/v1/fleet/"):
            return _PLAIN_PATH.fullmatch(path) is not None and all(
                _PLAIN_HOST.fullmatch(value) for name, value in scope["headers"] if name == b"host"
            )
        given = dict(scope["headers"]).get(SECRET_HEADER.encode(), b"")
        return hmac.compare_digest(given, self._secret)


def serve_superlink(
    *,
    host: str,
    port: int,
    database: Path,
    secret: bytes,
    superexec: bytes,
    tls: tuple[Path, Path, Path] | None,
    nodes: Sequence[bytes],
    home: Path,
    before: Callable[[], None],
) -> None:
    """Serve until a signal comes.

    Args:
        host: Where to listen.
        port: The port there.
        database: Where nodes are remembered without TLS; they have no lasting keys then.
        secret: What the hub's own commands show.
        superexec: What a runner of tasks shows.
        tls: The authority's certificate, the server's, and its key.
        nodes: The public keys of the nodes that may connect, with TLS.
        home: Where Flower may keep files.
        before: Called when Flower is imported whole: two threads that import it at a time find halves of it.
    """
    require_flower(home)
    import uvicorn
    from flwr.common.constant import TRANSPORT_TYPE_GRPC_RERE
    from flwr.supercore import control, interceptors  # noqa: F401 - what `control_client` will want
    from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin
    from flwr.superlink.cli.flower_superlink import SuperLinkLifespan
    from flwr.superlink.config_loader import SuperLinkLifespanConfig
    from flwr.superlink.main import create_app

    from kohort.transport.flower.light_requests import lighten
    from kohort.transport.flower.link_state import keep_in_memory

    authority, certificate, key = tls or (None, None, None)
    config = SuperLinkLifespanConfig(
        control_address="",
        health_server_address=None,
        host=host,
        port=port,
        insecure=tls is None,
        certificates=None if tls is None else (tls[0].read_bytes(), tls[1].read_bytes(), tls[2].read_bytes()),
        superexec_auth_secret=superexec,
        authn_plugin=NoOpControlAuthnPlugin(),
        event_log_plugin=None,
        fleet_event_log_plugin=None,
        enable_event_log=False,
        artifact_provider=None,
        enable_supernode_auth=tls is not None,
        fleet_api_type=TRANSPORT_TYPE_GRPC_RERE,
        fleet_api_address=None,
        simulation=False,
        ssl_ca_certfile=None if authority is None else str(authority),
        ssl_certfile=None if certificate is None else str(certificate),
        ssl_keyfile=None if key is None else str(key),
        database=str(database) if tls is None else keep_in_memory(nodes),
        isolation="process",
        runtime_dependency_install=False,
    )
    superlink = lighten(create_app(config, SuperLinkLifespan), authenticate=True)
    app = HubSecretMiddleware(LongPolling(superlink), secret)
    before()
    uvicorn.run(
        app=app,
        host=host,
        port=port,
        access_log=False,
        log_level="warning",
        ssl_certfile=config.ssl_certfile,
        ssl_keyfile=config.ssl_keyfile,
        workers=1,
        timeout_graceful_shutdown=int(LONGEST_HOLD) + 1,  # looks that are held then must not keep it
    )
