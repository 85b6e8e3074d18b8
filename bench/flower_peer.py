"""The same federation under Flower's simulation runtime (Ray): its FedAvg strategy, its clients, our torch loop.

The rows and their order lie in files that each worker reads once, so Flower is not charged for shipping them. Each
client gets one CPU, so that Ray uses every core; evaluation is switched off.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, sleep

_IMPORT_BEGAN = perf_counter()

# Read when flwr is imported: a benchmark reports to nobody.
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import numpy as np  # noqa: E402 - timed, see _IMPORT_SECONDS
import ray  # noqa: E402
import torch  # noqa: E402
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402
from flwr.simulation import run_simulation  # noqa: E402

from bench.setup_federation import Federation, Floats, Timed  # noqa: E402
from bench.torch_loop import flat_of, tensors_of, train_epoch  # noqa: E402

__all__ = ["FlowerTimed", "run_flower"]

_IMPORT_SECONDS = perf_counter() - _IMPORT_BEGAN
"""What importing torch, flwr and kohort took in this process; every Ray worker has its own figure."""

client = ClientApp()


@dataclass(frozen=True, kw_only=True)
class FlowerTimed(Timed):
    """`total` is the call of `run_simulation` without the imports in its workers, which took `importing`."""

    importing: float


@lru_cache(maxsize=1)
def _rows(folder: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, y and orders; read once a worker."""
    torch.set_num_threads(1)
    x, y, orders = (torch.from_numpy(np.load(Path(folder) / f"{name}.npy")) for name in ("x", "y", "orders"))
    return x, y, orders


@client.train()
def train(message: Message, context: Context) -> Message:
    """One client's round."""
    config = message.content.config_records["config"]
    x, y, orders = _rows(str(config["folder"]))
    site, number = int(context.node_config["partition-id"]), int(str(config["server-round"])) - 1
    tensors = tensors_of(message.content.array_records["arrays"].to_numpy_ndarrays()[0])
    train_epoch(tensors, x[site], y[site], orders[number, site])
    content = RecordDict(
        {
            "arrays": ArrayRecord([flat_of(tensors)]),
            "metrics": MetricRecord({"num-examples": len(y[site]), "site": site, "importing": _IMPORT_SECONDS}),
        }
    )
    return Message(content=content, reply_to=message)


@dataclass
class _Clock:
    marks: list[float] = field(default_factory=list)
    weights: list[Floats] = field(default_factory=list)
    importing: float = 0.0


class _TimedFedAvg(FedAvg):
    """Flower's FedAvg, which notes when each round is done.

    Replies are added in the order of the sites, not in the order they happen to arrive in: their sum would be rounded
    otherwise in every run, and hundreds of steps across the kinks of ReLU can make another model of that.
    """

    def __init__(self, clock: _Clock, sites: int) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.clock = clock
        self.sites = sites

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        answered = [message for message in replies if not message.has_error()]
        if len(answered) < self.sites:
            raise RuntimeError(f"{self.sites - len(answered)} of {self.sites} Flower clients failed")
        answered.sort(key=lambda message: _told(message, "site"))
        arrays, metrics = super().aggregate_train(server_round, answered)
        self.clock.marks.append(perf_counter())
        if arrays is None:
            raise RuntimeError("Flower's FedAvg gave no model")
        self.clock.weights = [arrays.to_numpy_ndarrays()[0]]
        self.clock.importing = max(self.clock.importing, *(_told(message, "importing") for message in answered))
        return arrays, metrics


def _told(message: Message, metric: str) -> float:
    return float(str(message.content.metric_records["metrics"][metric]))


def run_flower(federation: Federation, rounds: int) -> FlowerTimed:
    """`rounds` rounds under `run_simulation`, Ray started and stopped."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    clock = _Clock()
    server = ServerApp()
    with TemporaryDirectory() as folder:
        shape = (federation.sites, federation.rows)
        np.save(Path(folder) / "x.npy", federation.x.reshape(*shape, -1))
        np.save(Path(folder) / "y.npy", federation.y.astype(np.int64).reshape(shape))
        np.save(Path(folder) / "orders.npy", federation.orders[:rounds])

        @server.main()
        def main(grid: Grid, context: Context) -> None:
            del context
            # The simulation registers its nodes while the server starts; waiting for them is not a round's work.
            while len(list(grid.get_node_ids())) < federation.sites:
                sleep(0.01)
            clock.marks.append(perf_counter())
            _TimedFedAvg(clock, federation.sites).start(
                grid=grid,
                initial_arrays=ArrayRecord([federation.start]),
                num_rounds=rounds,
                train_config=ConfigRecord({"folder": folder}),
            )

        began = perf_counter()
        try:
            run_simulation(
                server_app=server,
                client_app=client,
                num_supernodes=federation.sites,
                backend_config={
                    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                    "init_args": {"logging_level": "ERROR", "log_to_driver": False},
                },
            )
        finally:
            total = perf_counter() - began
            ray.shutdown()
    return FlowerTimed(
        weights=clock.weights[0].astype(np.float32),
        total=total - clock.importing,
        rounds=np.diff(clock.marks).tolist(),
        importing=clock.importing,
    )
