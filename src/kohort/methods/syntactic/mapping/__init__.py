"""Mapping new rows to published classes."""
