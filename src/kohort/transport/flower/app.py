"""Flower as the carrier: the app bundle, the ClientApp of a site, the hub's SuperLink, and runs over its Grid.

Flower brings letters from machine to machine and is trusted with nothing else: letters are signed, deadlines and quorum
are ours, and no code travels. The app bundle that Flower insists on holds no code either; its one purpose is a hash
that sites compare before they look at anything else (`flower_runner`).

The SuperLink serves its Fleet API to sites. Its other APIs (start runs, register nodes, read messages) have no users
and no passwords in Flower itself, so here they answer only to who knows the hub folder's secret.

flwr is imported inside functions: it is an extra, and importing it takes a second.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import os
import time
import zipfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kohort.errors import ConfigError, SiteError

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp

__all__ = [
    "Connection",
    "FlowerRun",
    "LoopBack",
    "bundle",
    "bundle_hash",
    "client_app",
    "flower_run",
    "hasten",
    "node_states",
    "quiet",
    "register_node",
    "serve_superlink",
    "unregister_node",
]

SECRET_HEADER = "x-kohort-hub"  # noqa: S105 - the name of a header
POLL_SECONDS = 0.2
"""How often the hub looks for answers; Flower's own `send_and_receive` looks every three seconds."""
LONGEST_UPLOAD = 30.0
"""Seconds a message's parts may take from its announcement on: a sender that died is waited for no longer."""
LAST_LOOK = 0.5
"""Seconds for the parts of an answer that was announced before the deadline, and is looked at after it."""
_PART, _LETTER = "kohort", "letter"
_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
_DATE = (1980, 1, 1, 0, 0, 0)


def quiet(home: Path) -> dict[str, str]:
    """The environment Flower runs in: no telemetry, no update checks, no installs, its files under `home`."""
    return {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_HOME": str(home),
    }


def _require_flower(home: Path | None = None) -> None:
    os.environ.update(quiet(home) if home is not None else {**quiet(Path()), "FLWR_HOME": os.devnull + "/flwr"})
    try:
        import flwr  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigError("Flower is not installed", hint='Install it with: pip install "kohort[flower]"') from error


def hasten() -> None:
    """Look again soon for a message part that is not there yet, and not for hours.

    Flower announces a message before its parts are uploaded, and looks for a missing part again after one second, then
    two, for up to two hours.
    """
    from flwr.supercore.inflatable import inflatable_utils

    for function in (inflatable_utils.pull_objects, inflatable_utils.pull_and_inflate_object_from_tree):
        defaults: Any = function
        defaults.__kwdefaults__.update(initial_backoff=0.05, backoff_cap=0.5, max_time=LONGEST_UPLOAD)


@cache
def bundle() -> bytes:
    """The app bundle of the installed kohort: the same bytes wherever the same version is installed.

    Stored without compression, whose bytes differ from one zlib to the next.
    """
    own = version("kohort")
    project = (
        f'[project]\nname = "kohort-site"\nversion = "{own}"\ndescription = "Names the kohort that sites run."\n'
        'license = "Apache-2.0"\ndependencies = []\n\n[tool.flwr.app]\npublisher = "kohort"\n\n'
        '[tool.flwr.app.components]\nserverapp = "kohort_site:app"\nclientapp = "kohort_site:app"\n\n'
        "[tool.flwr.app.config]\n"
    ).encode()
    module = b'raise ImportError("This bundle holds no code: a kohort site runs the kohort installed there.")\n'
    files = {"pyproject.toml": project, "kohort_site.py": module}
    listed = [f"{name},{hashlib.sha256(text).hexdigest()},{len(text) * 8}" for name, text in files.items()]
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as archive:
        for name, text in {**files, ".info/CONTENT": "\n".join(listed).encode()}.items():
            archive.writestr(zipfile.ZipInfo(name, _DATE), text)
    return made.getvalue()


def bundle_hash() -> str:
    """The hash of the only bundle a site of this kohort accepts."""
    return hashlib.sha256(bundle()).hexdigest()


def client_app(answer: Callable[[bytes], bytes]) -> ClientApp:
    """A ClientApp that hands letters to a site and its answers back; the same over Flower and in a loop-back."""
    _require_flower()
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.query()
    def reply(message: Message, context: Context) -> Message:
        del context
        return Message(_content(answer(_letter_in(message))), reply_to=message)

    return app


def _content(letter: bytes) -> Any:
    from flwr.app import ConfigRecord, RecordDict

    return RecordDict({_PART: ConfigRecord({_LETTER: letter})})


def _letter_in(message: Any) -> bytes:
    return bytes(message.content[_PART][_LETTER])


@dataclass(frozen=True)
class LoopBack:
    """Carries letters to ClientApps in this process: what a federation does, without machines."""

    apps: Mapping[str, Any]

    def carry(self, letters: Mapping[str, bytes], *, deadline: float) -> tuple[dict[str, bytes], dict[str, str]]:
        """Every site answers at once."""
        del deadline
        from flwr.app import Context, Message, RecordDict
        from flwr.supercore.task_identity import TaskIdentity

        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        answers = {}
        for number, (name, letter) in enumerate(letters.items(), 1):
            message = Message(_content(letter), dst_node_id=number, message_type="query")
            context = Context(run_id=1, node_id=number, node_config={}, state=RecordDict(), run_config={}, series_id=1)
            answers[name] = _letter_in(self.apps[name](message, context))
        return answers, {}


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


def _client(kind: Any, connection: Connection, *more: Any, name: str = "flwr CLI", retry: Any = None) -> Any:
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    return kind.from_server_address(
        server_address=connection.address,
        insecure=connection.ca is None,
        root_certificates=connection.ca,
        interceptors=[_Secret(connection.secret), RuntimeVersionHttpInterceptor(component_name=name), *more],
        retry_invoker=retry,
    )


@contextmanager
def _control(connection: Connection) -> Iterator[Any]:
    """A client of the Control API; whatever goes wrong there is one error."""
    _require_flower()
    import httpx
    from flwr.supercore.control import ControlHttpClient

    client = _client(ControlHttpClient, connection)
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
    """Let the node with this public key (PEM) connect; known ones stay as they are."""
    from flwr.proto.control_pb2 import RegisterNodeRequest

    for node in node_states(connection):
        if node["key"] == key:
            return int(node["node"])
    with _control(connection) as client:
        return int(client.RegisterNode(RegisterNodeRequest(public_key=key)).node_id)


def unregister_node(connection: Connection, key: bytes) -> bool:
    """Let it connect no more; whether it was known."""
    from flwr.proto.control_pb2 import UnregisterNodeRequest

    for node in node_states(connection):
        if node["key"] == key:
            with _control(connection) as client:
                client.UnregisterNode(UnregisterNodeRequest(node_id=node["node"]))
            return True
    return False


def node_states(connection: Connection) -> list[dict[str, Any]]:
    """Every node the SuperLink knows: number, key, status, since when."""
    from flwr.proto.control_pb2 import ListNodesRequest

    with _control(connection) as client:
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


class FlowerRun:
    """One run of the SuperLink, driven from this process over the Grid."""

    def __init__(self, grid: Any) -> None:
        self._grid = grid
        self._silent: dict[int, float] = {}
        self.nodes: dict[str, int] = {}
        """The node of each site."""

    def online(self) -> dict[int, bytes]:
        """The nodes that are connected now, with their keys.

        Flower takes a node for connected up to a minute after its last heartbeat. One that let a deadline pass and was
        not heard of since does not count: nobody waits for the dead twice.
        """
        here = {node.node_id: node for node in self._grid.get_nodes()}
        for number in list(self._silent):
            if number in here and here[number].online_until > self._silent[number]:
                del self._silent[number]
        return {number: node.public_key for number, node in here.items() if number not in self._silent}

    def carry(self, letters: Mapping[str, bytes], *, deadline: float) -> tuple[dict[str, bytes], dict[str, str]]:
        """Push one message a site, and collect answers until all are there or the time is over."""
        here = self.online()
        missing = {name: "not connected" for name in letters if self.nodes.get(name) not in here}
        sent = {self.nodes[name]: letter for name, letter in letters.items() if name not in missing}
        came = self.exchange(sent, deadline=deadline)
        names = {node: name for name, node in self.nodes.items()}
        answers = {names[node]: letter for node, letter in came.items()}
        late = [name for name in letters if name not in answers and name not in missing]
        if late:
            known = {node.node_id: node.online_until for node in self._grid.get_nodes()}
            self._silent |= {self.nodes[name]: known.get(self.nodes[name], 0.0) for name in late}
        return answers, missing | dict.fromkeys(late, f"no answer within {deadline:g} seconds")

    def exchange(self, letters: Mapping[int, bytes], *, deadline: float) -> dict[int, bytes]:
        """The same by node number."""
        from flwr.app import Message

        ends = time.monotonic() + deadline
        # A message must not outlive its question: a node that comes back later is asked anew.
        messages = [
            Message(_content(letter), dst_node_id=node, message_type="query", ttl=deadline + 60)
            for node, letter in letters.items()
        ]
        waiting = set(self._grid.push_messages(messages)) if messages else set()
        came: dict[int, bytes] = {}
        _give_up_at(ends)
        while waiting and time.monotonic() < ends:
            for reply in self._grid.pull_messages(waiting):
                waiting.discard(reply.metadata.reply_to_message_id)
                if reply.has_content():
                    came[reply.metadata.src_node_id] = _letter_in(reply)
            if waiting:
                time.sleep(POLL_SECONDS)
        return came


def _give_up_at(ends: float) -> None:
    """Let no sender that died in the middle of its answer keep this process beyond a deadline of ours.

    The Grid collects announced answers one by one, and waits for the parts of each.
    """
    from flwr.supercore.inflatable.inflatable_utils import pull_objects
    from flwr.superlink.grid import http_grid

    def pull(*arguments: Any, **options: Any) -> Any:
        left = max(LAST_LOOK, min(LONGEST_UPLOAD, ends - time.monotonic()))
        return pull_objects(*arguments, **{**options, "max_time": left})

    internals: Any = http_grid
    internals.pull_objects = pull


@contextmanager
def flower_run(connection: Connection, *, superexec: bytes) -> Iterator[FlowerRun]:
    """Begin a run at the SuperLink and be its server side; the run ends with the block."""
    _require_flower()
    from flwr.common.constant import SubStatus
    from flwr.common.serde import fab_to_proto, run_from_proto
    from flwr.proto.control_pb2 import StartRunRequest
    from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest, PushTaskOutputRequest
    from flwr.supercore.constant import TaskType
    from flwr.supercore.fab import Fab
    from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
    from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, SuperExecAuthHttpInterceptor
    from flwr.supercore.retry import make_simple_http_retry_invoker
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.superlink.grid import HttpGrid

    hasten()
    with _control(connection) as control:
        control.StartRun(StartRunRequest(fab=fab_to_proto(Fab(bundle_hash(), bundle(), {}))))
    acquiring = _client(
        RuntimeHttpClient,
        connection,
        SuperExecAuthHttpInterceptor(master_secret=superexec, protected_methods={_ACQUIRE}),
        name="SuperExec",
    )
    try:
        taken = acquiring.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
    finally:
        acquiring.close()
    if not taken.token:
        raise SiteError("the SuperLink gave this run to nobody", hint="Stop other servers of this hub, then try again")
    grid = HttpGrid(
        runtime_api_address=connection.address,
        insecure=connection.ca is None,
        root_certificates=connection.ca,
        token=taken.token,
    )
    client = grid._client = _client(
        RuntimeHttpClient,
        connection,
        RuntimeTokenHttpInterceptor(token=taken.token),
        name="flwr-serverapp",
        retry=make_simple_http_retry_invoker(),
    )
    heart = HeartbeatSender(make_task_heartbeat_fn_http(client))
    status, details = SubStatus.FAILED, "interrupted"
    try:
        heart.start()
        begun = client.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id, TaskIdentity.run_id = begun.task_id, begun.run.run_id
        TaskIdentity.node_id = begun.context.node_id
        grid.set_run(run_from_proto(begun.run))
        yield FlowerRun(grid)
        status, details = SubStatus.COMPLETED, ""
    finally:
        with suppress(Exception):
            client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=details))
        with suppress(Exception):
            heart.stop()
        grid.close()


Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Guard:
    """Lets everybody reach the Fleet API, which authenticates nodes, and only the hub's own commands the rest."""

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
        if str(scope["path"]).startswith("/v1/fleet/"):
            return True
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
    home: Path,
    before: Callable[[], None],
) -> None:
    """Serve until a signal comes. `tls`: the authority's certificate, the server's, and its key.

    `before` is called when Flower is imported whole: two threads that import it at a time find halves of it.
    """
    _require_flower(home)
    import uvicorn
    from flwr.common.constant import TRANSPORT_TYPE_GRPC_RERE
    from flwr.supercore import control, interceptors  # noqa: F401 - what `_control` will want
    from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin
    from flwr.superlink.cli.flower_superlink import SuperLinkLifespan
    from flwr.superlink.config_loader import SuperLinkLifespanConfig
    from flwr.superlink.main import create_app

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
        database=str(database),
        isolation="process",
        runtime_dependency_install=False,
    )
    app = Guard(create_app(config, SuperLinkLifespan), secret)
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
    )
