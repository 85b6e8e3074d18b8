"""The study `partial`; start reading at `study.py`."""

from kohort.studies.partial.study import STUDY

__all__ = ["STUDY"]
