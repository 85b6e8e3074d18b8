"""Averages what the nodes trained, and prints what came of it."""

import json

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    nodes = int(config["min-nodes"])
    strategy = FedAvg(
        fraction_evaluate=float(config["fraction-evaluate"]),
        min_train_nodes=nodes,
        min_evaluate_nodes=nodes,
        min_available_nodes=nodes,
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord([np.zeros(2), np.zeros(1)]),
        num_rounds=int(config["num-server-rounds"]),
        timeout=60.0,
    )
    trained = {number: dict(metrics) for number, metrics in result.train_metrics_clientapp.items()}
    weights = [array.tolist() for array in result.arrays.to_numpy_ndarrays()] if len(result.arrays) else []
    print("RESULT " + json.dumps({"train": trained, "weights": weights}))
