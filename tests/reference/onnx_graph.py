"""A slow reader of the few ONNX operators that forests are exported with, after their definitions in the standard."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np


def make_tensor(name: str, kind: int, shape: Any, values: Any) -> Any:
    return SimpleNamespace(name=name, value=np.asarray(values, {1: np.float32, 7: np.int64}[kind]).reshape(shape))


def make_node(op: str, inputs: list[str], outputs: list[str], domain: str = "", **attributes: Any) -> Any:
    return SimpleNamespace(op=op, inputs=inputs, output=outputs[0], attributes=attributes, domain=domain)


def evaluate(nodes: list[Any], constants: list[Any], x: np.ndarray, output: str) -> np.ndarray:
    """What a graph gives for `x`."""
    known: dict[str, Any] = {constant.name: constant.value for constant in constants} | {"x": x.astype(np.float32)}
    for node in nodes:
        known[node.output] = _OPERATORS[node.op](*(known[name] for name in node.inputs), **node.attributes)
    found: np.ndarray = known[output]
    return found


def _trees(x: np.ndarray, *, n_targets: int, base_values: list[float], **given: Any) -> np.ndarray:
    assert (given["post_transform"], given["aggregate_function"]) == ("NONE", "SUM")
    keys = zip(given["nodes_treeids"], given["nodes_nodeids"], strict=True)
    place = {key: number for number, key in enumerate(keys)}
    weights = {
        (tree, node): (target, weight)
        for tree, node, target, weight in zip(
            given["target_treeids"], given["target_nodeids"], given["target_ids"], given["target_weights"], strict=True
        )
    }
    out = np.tile(np.asarray(base_values, dtype=np.float64), (len(x), 1))
    assert out.shape[1] == n_targets
    for row, values in enumerate(x):
        for tree in sorted(set(given["nodes_treeids"])):
            node = 0
            while given["nodes_modes"][at := place[tree, node]] == "BRANCH_LEQ":
                value = values[given["nodes_featureids"][at]]
                missing = np.isnan(value) and given["nodes_missing_value_tracks_true"][at]
                goes_left = missing or value <= np.float32(given["nodes_values"][at])
                node = given["nodes_truenodeids" if goes_left else "nodes_falsenodeids"][at]
            target, weight = weights[tree, node]
            out[row, target] += weight
    return out


def _softmax(scores: np.ndarray, axis: int) -> np.ndarray:
    powers = np.exp(scores - scores.max(axis=axis, keepdims=True))
    return np.asarray(powers / powers.sum(axis=axis, keepdims=True))


_OPERATORS: dict[str, Any] = {
    "Add": np.add,
    "ArgMax": lambda x, axis, keepdims: np.argmax(x, axis=axis, keepdims=bool(keepdims)),
    "Cast": lambda x, to: x.astype({7: np.int64}[to]),
    "Concat": lambda *parts, axis: np.concatenate([np.asarray(part, np.float32) for part in parts], axis=axis),
    "Gather": lambda table, places: table[places],
    "Greater": np.greater,
    "IsNaN": np.isnan,
    "Mul": np.multiply,
    "Round": np.rint,
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Slice": lambda x, begin, end, axis: x[:, int(begin[0]) : int(end[0])] if int(axis[0]) == 1 else None,
    "Softmax": _softmax,
    "Sub": np.subtract,
    "TreeEnsembleRegressor": _trees,
    "Where": np.where,
}
