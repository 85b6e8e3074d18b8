"""The method `hybrid`; `method.py` has its config, protocol and claims."""

from kohort.methods.hybrid.method import METHOD

__all__ = ["METHOD"]
