"""Flower: the only folder that imports it."""
