"""How Flower is imported and tuned here: quietly, on demand, and with short waits.

flwr is imported inside functions: it is an extra, and importing it takes a second.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from kohort.errors import ConfigError

__all__ = ["ACQUIRE_TASK", "LONGEST_UPLOAD", "hasten", "quiet", "require_flower"]

LONGEST_UPLOAD = 30.0
"""Seconds a message's parts may take from its announcement on: a sender that died is waited for no longer."""
FIRST_RETRY, RETRY_GROWTH = 0.5, 4 / 3
"""Seconds until a hub that does not answer is tried again, and how that grows; Flower's limit stays, twenty seconds."""
ACQUIRE_TASK = "/flwr.proto.Runtime/AcquireTask"
"""The call of the Runtime API that hands out a task; it needs the runner's secret."""


def quiet(home: Path) -> dict[str, str]:
    """The environment Flower runs in: no telemetry, no update checks, no installs.

    Args:
        home: Where Flower keeps its files.

    Returns:
        The variables to set, by name.
    """
    return {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_HOME": str(home),
    }


def require_flower(home: Path | None = None) -> None:
    """Make sure that Flower is installed, and set its environment.

    Args:
        home: Where Flower keeps its files; nowhere when it is None.

    Raises:
        ConfigError: The extra is not installed.
    """
    os.environ.update(quiet(home) if home is not None else {**quiet(Path()), "FLWR_HOME": os.devnull + "/flwr"})
    try:
        import flwr  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigError("Flower is not installed", hint='Install it with: pip install "kohort[flower]"') from error


def hasten() -> None:
    """Look again soon for a message part that is not there yet, and not for hours; and for a hub that is away.

    Flower announces a message before its parts are uploaded, and looks for a missing part again after one second, then
    two, for up to two hours. For a hub that does not answer it looks after one, two, four seconds, up to twenty; here
    the time between looks grows by a third.
    """
    from flwr.supercore.inflatable import inflatable_utils
    from flwr.supercore.retry import http_retry, retry_invoker

    for function in (inflatable_utils.pull_objects, inflatable_utils.pull_and_inflate_object_from_tree):
        defaults: Any = function
        defaults.__kwdefaults__.update(initial_backoff=0.05, backoff_cap=0.5, max_time=LONGEST_UPLOAD)

    def growing(max_delay: float) -> Any:
        return retry_invoker.exponential(base_delay=FIRST_RETRY, multiplier=RETRY_GROWTH, max_delay=int(max_delay))

    internals: Any = http_retry
    internals.exponential = growing
