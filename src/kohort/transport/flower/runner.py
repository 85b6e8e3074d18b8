"""What runs at a site on Flower: a SuperNode, and one long-lived process that answers for it.

Flower starts a process a message and installs whatever app the SuperLink delivers. Here the SuperNode is told that
somebody else runs its tasks (`--isolation process`), and that somebody is this file's `serve_site`: it takes tasks from
the SuperNode's Runtime API, compares the delivered bundle's hash with the one the installed kohort builds, and answers
with the code installed here. The bundle is never unpacked, let alone imported.

It uses what Flower's own runner uses, which is not a public interface: the extra pins the version, and the tests start
real SuperNodes.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kohort.errors import IntegrityError, KohortError, SiteError
from kohort.transport.flower.bundle import bundle_hash
from kohort.transport.flower.client_app import client_app
from kohort.transport.flower.environment import ACQUIRE_TASK, hasten, quiet
from kohort.transport.flower.long_polling import HoldRequest
from kohort.transport.flower.poll_backoff import PollBackoff

__all__ = ["BAD_CERTIFICATE", "NODE_FILE", "NOT_LET_IN", "SiteRunner", "error_reply", "supernode_command"]

NODE_FILE = "KOHORT_NODE_FILE"
"""Where a SuperNode keeps the number the SuperLink knows it by."""
NOT_LET_IN, BAD_CERTIFICATE = "kohort: the hub did not let this node in", "SSL/TLS handshake error detected"
"""What a SuperNode's log says when hub or site does not believe the other; the second is Flower's own line."""
TASK_LOST = "kohort: the hub went away in the middle of a message; waiting for it to ask again"
POLL_VARIABLE = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"
TASK_POLL = 0.02, 0.1, 1.0
"""Seconds between a site's looks for a task of a SuperNode that holds none, as Flower's own: see `PollBackoff`."""
NODE_POLL = 0.1, 0.4, 3.0
"""Seconds between a SuperNode's looks for a message of a hub that does not hold them; Flower looks every three."""
HOLD_TASK = 1.0
"""Seconds that a SuperNode holds its site's look for a task, at most."""
HELD = 0.5
"""A look that took so many seconds was held: the next one may follow at once."""
NODE_GONE = 0.25
"""Seconds to wait for a SuperNode that starts or ends."""
HEARTBEAT_AFTER = 5.0


def supernode_command(
    *, superlink: str, port: int, secret: Path, ca: Path | None, key: Path | None, retries: int
) -> list[str]:
    """The command that starts a site's SuperNode: connected to the hub, its Runtime API on loopback only.

    Args:
        superlink: The hub's address, `host:port`.
        port: The port of the Runtime API.
        secret: The file with the secret that the Runtime API asks for.
        ca: The certificate of the hub's authority; None for a connection without TLS.
        key: The site's private node key; None where the hub knows no nodes by key.
        retries: How often a lost connection is tried again.

    Returns:
        The program and its arguments. No secret is among them, only paths.
    """
    trust = ["--insecure"] if ca is None else ["--root-certificates", str(ca)]
    if key is not None:
        trust += ["--auth-supernode-private-key", str(key)]
    return [
        sys.executable,
        "-m",
        "kohort.transport.flower.runner",
        "--superlink",
        superlink,
        "--isolation",
        "process",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--superexec-auth-secret-file",
        str(secret),
        "--max-retries",
        str(retries),
        *trust,
    ]


class _TaskToken:
    """Adds the current task's token to requests, so that one HTTP client serves all tasks."""

    def __init__(self) -> None:
        self.inner: Any = None

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        """As Flower's interceptors do."""
        return call_next(context) if self.inner is None else self.inner.intercept(context, call_next)


@dataclass
class SiteRunner:
    """Answers a SuperNode's tasks in this process until told to stop."""

    answer: Callable[[bytes], bytes]
    refuse: Callable[[str], None]
    """Writes the ledger line of a bundle that was turned away."""
    address: str
    secret: bytes
    unread: Callable[[str], None] = lambda _: None
    """Writes the ledger line of a message that nobody could read."""
    alive: Callable[[], bool] = lambda: True
    """Whether to go on; asked between tasks."""
    home: Path = Path(os.devnull) / "flwr"
    """Where Flower may keep files; nowhere, for a kohort site."""
    served: int = 0
    _token: _TaskToken = field(default_factory=_TaskToken)

    def serve(self) -> None:
        """Serve until `alive` says no; nothing that a message holds ends it.

        A bundle of another hash is no message: a kohort site ends with an IntegrityError then, before unpacking.

        Raises:
            IntegrityError: The hub delivered another app bundle.
            ResourceError: The ledger cannot be written.
        """
        os.environ.update(quiet(self.home))
        import httpx
        from flwr.proto.runtime_pb2 import AcquireTaskRequest
        from flwr.supercore.constant import TaskType
        from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectPushError, ObjectUnavailableError
        from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor

        given_up = (httpx.HTTPError, ObjectPullError, ObjectPushError, ObjectUnavailableError)
        hasten()
        app = self._app()
        client = self._client()
        wanted = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
        fixed = os.environ.get(POLL_VARIABLE)
        backoff = PollBackoff(*TASK_POLL)
        try:
            while self.alive():
                began = time.monotonic()
                try:
                    self._token.inner = None
                    taken = client.AcquireTask(wanted)
                except httpx.TransportError:  # the SuperNode is starting, or ending: `alive` knows which
                    time.sleep(NODE_GONE)
                    continue
                if not taken.token:
                    if time.monotonic() - began < HELD:
                        time.sleep(backoff.seconds if fixed is None else float(fixed))
                    continue
                self._token.inner = RuntimeTokenHttpInterceptor(taken.token)
                try:
                    self._run(client, app)
                except given_up:
                    # The hub went away in the middle of a message, so the node dropped the task. What was answered is
                    # stored, for when the hub asks again.
                    sys.stderr.write(f"{TASK_LOST}\n")
                    time.sleep(NODE_GONE)
                except KohortError:
                    raise
                except Exception as error:  # what a hub sends must not end the site's process
                    self.unread(f"Flower could not read a message ({type(error).__name__})")
                backoff.touch()
        finally:
            client.close()

    def _client(self) -> Any:
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
        from flwr.supercore.runtime import RuntimeHttpClient

        return RuntimeHttpClient.from_server_address(
            server_address=self.address,
            insecure=True,  # loopback: the SuperNode's Runtime API listens on no other interface
            root_certificates=None,
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"),
                SuperExecAuthHttpInterceptor(master_secret=self.secret, protected_methods={ACQUIRE_TASK}),
                self._token,
            ],
        )

    def _app(self) -> Any:
        """What answers messages of the right bundle."""
        return client_app(self.answer)

    def _run(self, client: Any, app: Any) -> None:
        """One task: compare the bundle, answer the message, say that it is done."""
        from flwr.common.constant import SubStatus
        from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
        from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

        heart = HeartbeatSender(make_task_heartbeat_fn_http(client))
        timer = threading.Timer(HEARTBEAT_AFTER, heart.start)
        timer.daemon = True
        timer.start()
        try:
            message, context, run, fab = pull_task_input(client)
            reply, ends = self._respond(app, message, context, run=run, bundle=fab)
            push_message(client, reply, context)
            said = str(reply.error.reason) if reply.has_error() else ""
            push_task_output(client, context, SubStatus.FAILED if said else SubStatus.COMPLETED, said)
            if ends is not None:
                raise ends
            self.served += 1
        finally:
            timer.cancel()
            if heart.is_running:
                heart.stop()

    def _respond(
        self, app: Any, message: Any, context: Any, *, run: Any, bundle: Any
    ) -> tuple[Any, KohortError | None]:
        """The reply to a message, and the error that ends this process after it, if one does."""
        del run
        if hashlib.sha256(bundle.content).hexdigest() != bundle_hash():
            reason = "the hub delivered an app bundle that is not this kohort's; nothing of it was unpacked"
            self.refuse(reason)
            hint = "Install the same kohort at hub and site, or ask who changed it"
            return error_reply(message, reason, loading=True), IntegrityError(reason, hint=hint)
        try:
            return app(message=message, context=context), None
        except KohortError:
            raise
        except Exception as error:  # such as a kind of message that no site answers
            self.unread(f"a message of another kind than a site answers ({type(error).__name__})")
            return error_reply(message, "tampered"), None


def error_reply(message: Any, reason: str, *, loading: bool = False) -> Any:
    """A reply that says that there is none.

    Args:
        message: What it replies to.
        reason: A text without anything of the site's, such as one word of `kohort.privacy.codes`.
        loading: Whether the app could not be loaded; otherwise it did not answer.

    Returns:
        The message.
    """
    from flwr.app import Message
    from flwr.app.error import Error
    from flwr.common.constant import ErrorCode

    code = ErrorCode.LOAD_CLIENT_APP_EXCEPTION if loading else ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    return Message(Error(code=code, reason=reason), reply_to=message)


def _supernode() -> None:
    """Run Flower's SuperNode in this process, looking for messages more often while a run is under way."""
    from flwr.supercore.app_utils import start_parent_process_monitor
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli.flower_supernode import flower_supernode

    hasten()
    _rejoin(Path(os.environ[NODE_FILE]))
    start_parent_process_monitor(os.getppid())  # a site that is killed leaves no node behind
    internals: Any = start_client_internal
    if not callable(getattr(internals, "_pull_and_store_message", None)):
        raise SiteError("this Flower is not the pinned one", hint='Install it with: pip install "kohort[flower]"')
    _look_patiently()
    _hand_over_at_once(internals)
    _answer_lightly()
    flower_supernode()


def _answer_lightly() -> None:
    """Answer the site's requests with the middlewares they need."""
    from flwr.supernode import main

    from kohort.transport.flower.light_requests import lighten

    internals: Any = main
    made = internals.create_app
    internals.create_app = lambda *arguments, **options: lighten(made(*arguments, **options), authenticate=False)


def _look_patiently() -> None:
    """Let the hub hold this node's looks for messages."""
    from flwr.supernode.fleet_http_client import FleetHttpClient

    internals: Any = FleetHttpClient
    made = internals.__init__

    def patient(client: Any, *arguments: Any, interceptors: Sequence[Any] = (), **options: Any) -> None:
        made(client, *arguments, interceptors=[*interceptors, HoldRequest()], **options)

    internals.__init__ = patient


def _hand_over_at_once(internals: Any) -> None:
    """Hand messages to the site, and its replies to the hub, when they are there, instead of looking for them.

    Args:
        internals: Flower's module with the SuperNode's loop.
    """
    from flwr.supernode.servicer.runtime import runtime_handlers

    handlers: Any = runtime_handlers
    hand_over = _HandOver(internals._pull_and_store_message, handlers.acquire_task)
    internals._pull_and_store_message = hand_over.pull
    internals.time = SimpleNamespace(sleep=hand_over.rest)
    handlers.acquire_task = hand_over.acquire
    for name in ("push_messages", "push_object"):
        setattr(handlers, name, hand_over.noticing(getattr(handlers, name)))


class _HandOver:
    """Where a SuperNode's loop and its site meet: each is told when the other brought something.

    Args:
        pull: Flower's function that fetches a message of the hub; None when there is none.
        acquire: Flower's function that hands a task to the site.
    """

    def __init__(self, pull: Callable[..., Any], acquire: Callable[..., Any]) -> None:
        self._pull, self._acquire = pull, acquire
        self._came, self._answered = threading.Event(), threading.Event()
        self._backoff, self._held = PollBackoff(*NODE_POLL), False

    def pull(self, **arguments: Any) -> Any:
        """Fetch a message, and tell the site when it is complete."""
        import httpx

        began, found = time.monotonic(), None
        with suppress(httpx.HTTPStatusError):  # a hub that was started anew knows nothing of the run of before
            found = self._pull(**arguments)
        if found is not None:
            self._backoff.touch()
            self._came.set()
        self._held = time.monotonic() - began >= HELD
        return found

    def acquire(self, request: Any, state: Any) -> Any:
        """Hand a task to the site when a message came, or say after a second that there is none."""
        self._came.wait(HOLD_TASK)
        self._came.clear()
        return self._acquire(request, state)

    def noticing(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """The same handler of what the site brings, but that the loop goes on at once."""

        def stored(*arguments: Any) -> Any:
            response = handler(*arguments)
            self._answered.set()
            return response

        return stored

    def rest(self, seconds: float) -> None:
        """What the loop does instead of sleeping: three seconds before the next look at the hub, less for the site."""
        if seconds >= NODE_POLL[-1]:
            time.sleep(0.0 if self._held else min(seconds, self._backoff.seconds))
        else:
            self._answered.wait(seconds)
            self._answered.clear()


def _rejoin(place: Path) -> None:
    """Let a node that was killed connect again at once, instead of when the SuperLink has given its old self up."""
    import httpx
    from flwr.proto.fleet_pb2 import DeactivateNodeRequest
    from flwr.supernode.fleet_http_client import FleetHttpClient

    activate: Any = FleetHttpClient.ActivateNode

    def activated(client: Any, request: Any) -> Any:
        try:
            response = activate(client, request)
        except httpx.HTTPStatusError:
            if not place.is_file():
                sys.stderr.write(f"{NOT_LET_IN}\n")
                raise
            with suppress(httpx.HTTPStatusError):  # the SuperLink may give it up between the two requests
                client.DeactivateNode(DeactivateNodeRequest(node_id=int(place.read_text())))
            response = activate(client, request)
        place.write_text(str(response.node_id))
        return response

    internals: Any = FleetHttpClient
    internals.ActivateNode = activated


if __name__ == "__main__":
    _supernode()
