"""Runs somebody else's app for a SuperNode, behind the operator's door.

With `--isolation process` a SuperNode leaves its tasks to a process of the operator's. This one runs exactly one app,
the bundle whose hash the operator approved; any other is turned away before it is unpacked, with a ledger line. Nothing
is installed: what the app imports must be there already.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kohort.errors import KohortError
from kohort.transport.flower.app_door import guarded
from kohort.transport.flower.runner import SiteRunner, error_reply

if TYPE_CHECKING:
    from flwr.clientapp.typing import Mod

__all__ = ["AppRunner"]


@dataclass(kw_only=True)
class AppRunner(SiteRunner):
    """Answers a SuperNode's tasks with one approved app behind a mod."""

    answer: Callable[[bytes], bytes] = bytes
    """Not used: an app answers."""
    approved: str
    """SHA-256 of the app's bundle, in hexadecimal."""
    mod: Mod

    def _app(self) -> Any:
        return {}

    def _respond(
        self, app: Any, message: Any, context: Any, *, run: Any, bundle: Any
    ) -> tuple[Any, KohortError | None]:
        found = hashlib.sha256(bundle.content).hexdigest()
        if found != self.approved:
            self.refuse(f"an app bundle that was not approved ({found}); nothing of it was unpacked")
            return error_reply(message, "approval", loading=True), None
        if not app:
            try:
                app["loaded"] = guarded(_load(run, bundle), self.mod)
            except (Exception, SystemExit) as error:  # its text is the app's
                self.refuse(f"the approved app cannot be loaded ({type(error).__name__})")
                return error_reply(message, "failed", loading=True), None
        return app["loaded"](message=message, context=context), None


def _load(run: Any, bundle: Any) -> Any:
    """The app as Flower's own runner loads it."""
    from flwr.cli.install import install_from_fab
    from flwr.clientapp.utils import get_load_client_app_fn

    install_from_fab(bundle.content, skip_prompt=True)
    load = get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
    return load(run.fab_id, run.fab_version, bundle.hash_str)
