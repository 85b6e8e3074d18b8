"""A forest as an ONNX file predicts what the model predicts."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from tests.models.trees.test_learner import OPTIONS, _encoded, _learned, _model

from kohort.errors import ConfigError
from kohort.models.trees.onnx_export import export_onnx


@pytest.mark.parametrize("encoding", ["label", "onehot"])
@pytest.mark.parametrize("target", ["ill", "grade", "cost"])
def test_the_graph_gives_the_models_own_predictions(target: str, encoding: Any) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    encoder, rows = _encoded(target, encoding=encoding)
    model = _model(_learned(encoder, [rows], OPTIONS))
    session = runtime.InferenceSession(export_onnx(model), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": rows.x})
    expected = model.codes(rows.x)[:, None] if target == "cost" else model.probabilities(rows.x)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < 2e-5 * max(1.0, np.abs(expected).max())


def test_without_onnx_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, rows = _encoded("ill")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ConfigError, match="needs the package onnx"):
        export_onnx(_model(_learned(encoder, [rows])))
