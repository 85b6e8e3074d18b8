"""The method `hybrid`; start reading at `method.py`."""

from kohort.methods.hybrid.method import METHOD

__all__ = ["METHOD"]
