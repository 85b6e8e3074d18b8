"""Generalised additive models on bins: one curve per column."""
