"""The study `hybrid`; start reading at `study.py`."""

from kohort.studies.hybrid.study import STUDY

__all__ = ["STUDY"]
