"""Trains a linear model on the node's own table. It knows nothing of kohort."""

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


def _rows(context: Context) -> tuple[np.ndarray, np.ndarray]:
    table = np.loadtxt(str(context.node_config["table"]), delimiter=",", skiprows=1)
    return table[:, :-1], table[:, -1]


@app.train()
def train(message: Message, context: Context) -> Message:
    inputs, outcomes = _rows(context)
    weights, bias = message.content["arrays"].to_numpy_ndarrays()
    for _ in range(int(context.run_config["local-steps"])):
        errors = inputs @ weights + bias - outcomes
        weights = weights - 0.1 * inputs.T @ errors / len(outcomes)
        bias = bias - 0.1 * errors.mean(keepdims=True)
    loss = float(np.mean((inputs @ weights + bias - outcomes) ** 2))
    content = RecordDict(
        {
            "arrays": ArrayRecord([weights, bias]),
            "metrics": MetricRecord({"train_loss": loss, "num-examples": len(outcomes)}),
        }
    )
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    inputs, outcomes = _rows(context)
    weights, bias = message.content["arrays"].to_numpy_ndarrays()
    loss = float(np.mean((inputs @ weights + bias - outcomes) ** 2))
    metrics = MetricRecord({"eval_loss": loss, "num-examples": len(outcomes)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
