"""Generalised additive models on bins, fitted over secure sums."""

from kohort.methods.additive.method import METHOD

__all__ = ["METHOD"]
