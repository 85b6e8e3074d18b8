"""The study `anonymised`; start reading at `study.py`."""

from kohort.studies.anonymised.study import STUDY

__all__ = ["STUDY"]
