"""A forest as an ONNX file predicts what the model predicts."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from tests.models.trees.test_learner import OPTIONS, _encoded, _learned, _model
from tests.reference import onnx_graph

from kohort.errors import ConfigError
from kohort.models.trees.model import TreeModel
from kohort.models.trees.onnx_export import _Graph, export_onnx

BOTH = pytest.mark.parametrize("encoding", ["label", "onehot"])
TARGETS = pytest.mark.parametrize("target", ["ill", "grade", "cost"])


def _with_unknown(model: TreeModel, x: Any) -> Any:
    """The rows, the first 50 of them with a ward that nobody had."""
    made = x.copy()
    ward = next(column for column in model.columns if column.kind == "category")
    made[:50, ward.start : ward.start + ward.width] = np.nan
    return made


@BOTH
@TARGETS
def test_a_slow_reader_of_the_graph_finds_the_models_own_predictions(target: str, encoding: Any) -> None:
    encoder, rows = _encoded(target, encoding=encoding)
    model = _model(_learned(encoder, [rows], OPTIONS))
    x = _with_unknown(model, rows.x)[:200]
    graph = _Graph(model, onnx_graph)
    graph.inputs()
    graph.trees()
    found = onnx_graph.evaluate(graph.nodes, graph.constants, x, graph.outputs())
    expected = model.codes(x)[:, None] if target == "cost" else model.probabilities(x)
    assert np.abs(found - expected).max() < 2e-5 * max(1.0, np.abs(expected).max())


@BOTH
@TARGETS
def test_the_graph_gives_the_models_own_predictions(target: str, encoding: Any) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    encoder, rows = _encoded(target, encoding=encoding)
    model = _model(_learned(encoder, [rows], OPTIONS))
    session = runtime.InferenceSession(export_onnx(model), providers=["CPUExecutionProvider"])
    x = _with_unknown(model, rows.x)
    (found,) = session.run(None, {"x": x})
    expected = model.codes(x)[:, None] if target == "cost" else model.probabilities(x)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < 2e-5 * max(1.0, np.abs(expected).max())


def test_without_onnx_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, rows = _encoded("ill")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ConfigError, match="needs the package onnx"):
        export_onnx(_model(_learned(encoder, [rows])))
