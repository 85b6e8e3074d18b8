"""The method `oneshot`; start reading at `method.py`."""

from kohort.methods.oneshot.method import METHOD

__all__ = ["METHOD"]
