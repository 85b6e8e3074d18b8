"""The method `syntactic`; `method.py` has its config, protocol and claims."""

from kohort.methods.syntactic.method import METHOD

__all__ = ["METHOD"]
