"""The method `partial`; `method.py` has its config, protocol and claims."""

from kohort.methods.partial.method import METHOD

__all__ = ["METHOD"]
