"""The study `oneshot`; start reading at `study.py`."""

from kohort.studies.oneshot.study import STUDY

__all__ = ["STUDY"]
