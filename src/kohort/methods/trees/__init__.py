"""The method `trees`; `method.py` has its learner, protocol and claims."""

from kohort.methods.trees.method import METHOD

__all__ = ["METHOD"]
