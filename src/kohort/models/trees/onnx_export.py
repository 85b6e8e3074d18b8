"""Forests as ONNX graphs, for scoring where kohort is not installed. Needs the package `onnx`.

The graph reads encoded rows, as `Encoder.inputs` makes them, in float32. Numbers are compared with the cut points of
the public grid; categories are looked up in the order that the forest splits them by. It gives probabilities, or
numbers on the target's own scale, in float32.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kohort.errors import ConfigError
from kohort.models.rows import target_range
from kohort.models.trees.bins import ABSENT
from kohort.models.trees.columns import TreeColumn, grid_edges
from kohort.models.trees.model import TreeModel

__all__ = ["export_onnx"]

_OPSET, _ML_OPSET, _IR = 17, 3, 9
_MOST = float(np.finfo(np.float32).max)


def export_onnx(model: TreeModel) -> bytes:
    """The model as an ONNX file.

    Args:
        model: A forest.

    Returns:
        The file's bytes. Its input is `x` [rows, encoder.width]; its output is `probabilities` [rows, classes], or
        `prediction` [rows, 1] where the target is a number.

    Raises:
        ConfigError: The package `onnx` is not installed.
    """
    try:
        import onnx
    except ImportError:
        raise ConfigError("exporting a forest needs the package onnx", hint="pip install 'kohort[onnx]'") from None
    graph = _Graph(model, onnx.helper)
    graph.inputs()
    graph.trees()
    output = graph.outputs()
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    width = len(model.classes) or 1
    made = helper.make_graph(
        graph.nodes,
        "kohort",
        [helper.make_tensor_value_info("x", kind, [None, model.encoder.width])],
        [helper.make_tensor_value_info(output, kind, [None, width])],
        graph.constants,
    )
    opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid("ai.onnx.ml", _ML_OPSET)]
    whole = helper.make_model(made, opset_imports=opsets, ir_version=_IR, producer_name="kohort")
    onnx.checker.check_model(whole)
    data: bytes = whole.SerializeToString()
    return data


@dataclass
class _Graph:
    """The nodes and constants of a graph in the making."""

    model: TreeModel
    helper: Any
    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)

    def constant(self, name: str, values: Any, kind: int = 1) -> str:
        """A named constant: float32 (1) or int64 (7)."""
        array = np.asarray(values)
        self.constants.append(self.helper.make_tensor(name, kind, array.shape, array.reshape(-1).tolist()))
        return name

    def add(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """A node with one output."""
        self.nodes.append(self.helper.make_node(op, inputs, [output], **attributes))
        return output

    def slice(self, name: str, start: int, stop: int) -> str:
        """Some columns of the input."""
        begin, end = self.constant(f"{name}.from", [start], 7), self.constant(f"{name}.to", [stop], 7)
        return self.add("Slice", ["x", begin, end, "axis"], f"{name}.raw")

    def inputs(self) -> None:
        """What the trees compare: for each output and column, a number, an indicator, or a category's place."""
        self.constant("axis", [1], 7)
        self.constant("half", [0.5])
        self.constant("absent", [np.nan])
        shared = [self._read(place) for place in range(len(self.model.columns))]
        parts = [
            self._placed(output, place, name) for output in range(self._outputs) for place, name in enumerate(shared)
        ]
        self.add("Concat", parts, "features", axis=1)

    @property
    def _outputs(self) -> int:
        return len(self.model.forest.base)

    def _read(self, place: int) -> str:
        """One column as a number (NaN: missing) or as the number of its cell."""
        column, name = self.model.columns[place], f"column{place}"
        raw = self.slice(name, column.start, column.start + 1)
        if column.kind == "category":
            return self._cell(column, name, raw)
        if not column.missing:
            return raw
        flag = self.slice(f"{name}.flag", column.start + 1, column.start + 2)
        gone = self.add("Greater", [flag, "half"], f"{name}.gone")
        return self.add("Where", [gone, "absent", raw], f"{name}.value")

    def _cell(self, column: TreeColumn, name: str, raw: str) -> str:
        """The number of a category's cell; one more than the last for a category that nobody had."""
        unknown = self.add("IsNaN", [raw], f"{name}.unknown")
        if column.width > 1:
            every = self.slice(f"{name}.every", column.start, column.start + column.width)
            known = self.add("ArgMax", [every], f"{name}.known", axis=1, keepdims=1)
        else:
            some = self.add("Where", [unknown, self.constant(f"{name}.none", [0.0]), raw], f"{name}.some")
            scaled = self.add("Mul", [some, self.constant(f"{name}.top", [float(column.cells - 1)])], f"{name}.scaled")
            known = self.add("Cast", [self.add("Round", [scaled], f"{name}.round")], f"{name}.known", to=7)
        last = self.constant(f"{name}.last", [column.cells], 7)
        return self.add("Where", [unknown, last, known], f"{name}.cell")

    def _placed(self, output: int, place: int, name: str) -> str:
        if self.model.columns[place].kind != "category":
            return name
        bins = self.model.forest.bins
        other = int(bins.other[place])
        unknown = np.nan if other == ABSENT else float(bins.rank[output, place, other])
        table = np.append(bins.rank[output, place][bins.code_of[place]].astype(np.float32), np.float32(unknown))
        return self.add("Gather", [self.constant(f"places{output}.{place}", table), name], f"place{output}.{place}")

    def trees(self) -> None:
        """One ensemble over all trees."""
        found: dict[str, list[Any]] = {}

        def put(prefix: str, **values: Any) -> None:
            for key, value in values.items():
                found.setdefault(f"{prefix}_{key}", []).append(value)

        forest = self.model.forest
        split = forest.trees.split
        for tree in range(len(forest.trees)):
            pending = [0]
            while pending:
                node = pending.pop()
                inner = node < split.shape[1] and split[tree, node] >= 0
                if inner:
                    pending += [2 * node + 1, 2 * node + 2]
                else:
                    weight = forest.factor * float(forest.trees.value[tree, node])
                    put("target", treeids=tree, nodeids=node, ids=int(forest.trees.output[tree]), weights=weight)
                put("nodes", treeids=tree, nodeids=node, **self._node(tree, node, inner=inner))
        self.add(
            "TreeEnsembleRegressor",
            ["features"],
            "scores",
            domain="ai.onnx.ml",
            n_targets=self._outputs,
            base_values=forest.base.tolist(),
            post_transform="NONE",
            aggregate_function="SUM",
            **(found or _no_tree()),
        )

    def _node(self, tree: int, node: int, *, inner: bool) -> dict[str, Any]:
        trees = self.model.forest.trees
        if not inner:
            rest = dict.fromkeys(("featureids", "truenodeids", "falsenodeids", "missing_value_tracks_true"), 0)
            return {"modes": "LEAF", "values": 0.0, **rest}
        column = int(trees.split[tree, node])
        return {
            "modes": "BRANCH_LEQ",
            "values": self._threshold(column, int(trees.cut[tree, node])),
            "featureids": int(trees.output[tree]) * len(self.model.columns) + column,
            "truenodeids": 2 * node + 1,
            "falsenodeids": 2 * node + 2,
            "missing_value_tracks_true": int(trees.left[tree, node]),
        }

    def _threshold(self, place: int, cut: int) -> float:
        """The largest float32 that still goes left."""
        column = self.model.columns[place]
        if column.kind != "number":
            return cut + 0.5
        codes = self.model.forest.bins.code_of[place][: column.cells]
        last = int(np.flatnonzero(codes <= cut)[-1])
        if last >= len(grid_edges()):
            return _MOST
        edge = grid_edges()[last]
        near = np.float32(edge)
        return float(near if near <= edge else np.nextafter(near, np.float32(-np.inf)))

    def outputs(self) -> str:
        """Probabilities, or numbers on the target's own scale."""
        if not self.model.classes:
            low, width = target_range(self.model.encoder)
            scaled = self.add("Mul", ["scores", self.constant("width", [width])], "scaled")
            return self.add("Add", [scaled, self.constant("low", [low])], "prediction")
        if self._outputs > 1:
            return self.add("Softmax", ["scores"], "probabilities", axis=1)
        second = self.add("Sigmoid", ["scores"], "second")
        first = self.add("Sub", [self.constant("one", [1.0]), second], "first")
        return self.add("Concat", [first, second], "probabilities", axis=1)


def _no_tree() -> dict[str, list[Any]]:
    """An ensemble of one leaf that adds nothing, for a forest that kept no step."""
    numbers = ("treeids", "nodeids", "featureids", "truenodeids", "falsenodeids", "missing_value_tracks_true")
    node: dict[str, list[Any]] = {f"nodes_{name}": [0] for name in numbers}
    leaf: dict[str, list[Any]] = {"target_treeids": [0], "target_nodeids": [0], "target_ids": [0]}
    return {**node, "nodes_modes": ["LEAF"], "nodes_values": [0.0], **leaf, "target_weights": [0.0]}
