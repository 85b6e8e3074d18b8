"""Additive models on bins."""

from __future__ import annotations

from kohort.models.additive.model import load_additive
from kohort.models.registry import ModelKind

__all__ = ["KIND"]

KIND = ModelKind(name="additive", load=load_additive)
