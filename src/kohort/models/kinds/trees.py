"""Boosted forests as files."""

from __future__ import annotations

from kohort.models.registry import ModelKind
from kohort.models.trees.model import load_trees

__all__ = ["KIND"]

KIND = ModelKind(name="trees", load=load_trees)
