"""The method `oneshot`; `method.py` has its config, protocol and claims."""

from kohort.methods.oneshot.method import METHOD

__all__ = ["METHOD"]
