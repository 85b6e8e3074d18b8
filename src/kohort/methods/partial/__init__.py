"""The method `partial`; start reading at `method.py`."""

from kohort.methods.partial.method import METHOD

__all__ = ["METHOD"]
