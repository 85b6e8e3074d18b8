"""Forests by bagging of XGBoost trees under Flower's simulation, with Flower's own strategy for it.

`bagging_peer.main()` runs in an environment with flwr[simulation] and xgboost, whose workers import this file from
PYTHONPATH. Parameters are those of Flower's XGBoost example: a tree of depth 8 per site and round, rate 0.1. A tenth of
each site's rows is held out, and the number of rounds that fits these rows best is used for the test rows. Imports
nothing of kohort.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from functools import lru_cache
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import numpy as np
import ray
import xgboost
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedXgbBagging
from flwr.simulation import run_simulation

PARAMETERS = {
    "objective": "binary:logistic",
    "eta": 0.1,
    "max_depth": 8,
    "nthread": 1,
    "num_parallel_tree": 1,
    "subsample": 1,
    "tree_method": "hist",
}
client = ClientApp()


@lru_cache(maxsize=1)
def _rows(path: str) -> tuple[Any, Any, Any]:
    """Features, targets and which rows are held out."""
    data = np.load(path, allow_pickle=False)
    return data["x"], data["y"], np.random.default_rng(0).random(len(data["y"])) < 0.1


@client.train()
def train(message: Message, context: Context) -> Message:
    """One tree from the rows of one site: every tenth row, or however many sites there are."""
    config = message.content.config_records["config"]
    x, y, held = _rows(str(config["path"]))
    place, sites = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    own = (np.arange(len(y)) % sites == place) & ~held
    matrix = xgboost.DMatrix(x[own], label=y[own])
    if int(str(config["server-round"])) == 1:
        booster = xgboost.train(PARAMETERS, matrix, num_boost_round=1)
    else:
        booster = xgboost.Booster(params=PARAMETERS)
        booster.load_model(bytearray(message.content.array_records["arrays"]["0"].numpy().tobytes()))
        booster.update(matrix, booster.num_boosted_rounds())
        booster = booster[booster.num_boosted_rounds() - 1 :]
    arrays = ArrayRecord([np.frombuffer(booster.save_raw("json"), dtype=np.uint8)])
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": int(own.sum())})})
    return Message(content=content, reply_to=message)


def simulated(path: str, sites: int, rounds: int) -> tuple[xgboost.Booster, float]:
    """The forest of all rounds, and the seconds of the simulation."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    server, found = ServerApp(), []

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        del context
        while len(list(grid.get_node_ids())) < sites:
            sleep(0.01)
        result = FedXgbBagging(fraction_evaluate=0.0).start(
            grid=grid,
            initial_arrays=ArrayRecord([np.frombuffer(b"", dtype=np.uint8)]),
            num_rounds=rounds,
            train_config=ConfigRecord({"path": path}),
        )
        found.append(result.arrays["0"].numpy().tobytes())

    began = perf_counter()
    try:
        run_simulation(
            server_app=server,
            client_app=client,
            num_supernodes=sites,
            backend_config={
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                "init_args": {"logging_level": "ERROR", "log_to_driver": False},
            },
        )
    finally:
        seconds = perf_counter() - began
        ray.shutdown()
    booster = xgboost.Booster(params=PARAMETERS)
    booster.load_model(bytearray(found[0]))
    return booster, seconds


def answered(path: str, sites: int, rounds: int) -> dict[str, Any]:
    """Classes of the test rows after the best number of rounds, that number, and the seconds of all rounds."""
    booster, seconds = simulated(path, sites, rounds)
    x, y, held = _rows(path)
    kept, test = xgboost.DMatrix(x[held]), xgboost.DMatrix(np.load(path, allow_pickle=False)["test"])

    def classes(matrix: xgboost.DMatrix, number: int) -> Any:
        return booster.predict(matrix, iteration_range=(0, number * sites)) > 0.5

    best = max(range(1, rounds + 1), key=lambda number: float(np.mean(classes(kept, number) == y[held])))
    return {"classes": classes(test, best).astype(float).tolist(), "rounds": best, "seconds": seconds}


def main() -> None:
    """Answer what the command asks."""
    given = json.loads(sys.argv[3])
    told = json.dumps(answered(sys.argv[1], given["sites"], given["rounds"]))
    Path(sys.argv[2]).write_text(told, encoding="utf-8")
