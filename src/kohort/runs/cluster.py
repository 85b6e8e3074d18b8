"""Runs on a Dask cluster: its scheduler places them, and its workers make them.

Trust: workers run what the scheduler sends, and Dask does not ask who is there. A cluster belongs into the network of
one party, on tables that this party may read; it is no way between sites.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from kohort.errors import ConfigError, ResourceError

__all__ = ["Submit", "dask_cluster"]

Submit = Callable[..., Callable[[], Any]]
"""Begins a call on a worker; what it returns waits for the result."""
_SECONDS: Final = 10


@contextmanager
def dask_cluster(address: str) -> Iterator[Submit]:
    """Connect to a Dask scheduler.

    Args:
        address: Such as tcp://10.0.0.5:8786.

    Yields:
        What begins a call on a worker. Calls that are not done at the end are cancelled.

    Raises:
        ConfigError: Dask is not installed, or no scheduler with workers answers.
        ResourceError: A worker ended while it made a run.
    """
    try:
        from distributed import Client, KilledWorker
    except ModuleNotFoundError:
        raise ConfigError("a Dask cluster needs Dask", hint="pip install 'kohort[dask]'") from None
    try:
        client = Client(address, timeout=_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        hint = "Start one by dask scheduler, and workers by dask worker ADDRESS"
        raise ConfigError(f"no Dask scheduler answers at {address!r}", hint=hint) from error
    futures: list[Any] = []

    def submit(call: Callable[..., Any], *given: Any) -> Callable[[], Any]:
        future = client.submit(call, *given, pure=False, retries=0)
        futures.append(future)
        return lambda: _result(future, KilledWorker)

    try:
        if not client.scheduler_info()["workers"]:
            raise ConfigError(f"the Dask cluster at {address!r} has no workers", hint="Start one: dask worker ADDRESS")
        yield submit
    finally:
        client.cancel(futures)
        client.close()


def _result(future: Any, killed: type[Exception]) -> Any:
    try:
        return future.result()
    except killed:
        hint = "Give workers more memory, then go on with --resume"
        raise ResourceError("a worker of the Dask cluster ended while it made a run", hint=hint) from None
