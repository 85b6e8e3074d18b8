"""Generalisation hierarchies: made automatically, from intervals, or read from a taxonomy."""
