"""The study `syntactic`; start reading at `study.py`."""

from kohort.studies.syntactic.study import STUDY

__all__ = ["STUDY"]
