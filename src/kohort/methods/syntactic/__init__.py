"""The method `syntactic`; start reading at `method.py`."""

from kohort.methods.syntactic.method import METHOD

__all__ = ["METHOD"]
