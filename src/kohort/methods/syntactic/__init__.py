"""The method `syntactic` and its kind of model; start reading at `method.py`."""

from kohort.methods.syntactic.mapped_model import KIND
from kohort.methods.syntactic.method import METHOD

__all__ = ["KIND", "METHOD"]
