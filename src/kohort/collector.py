"""The garbage collector of processes that do one job and end.

Importing makes hundreds of thousands of objects that live until the end. Python searches them for garbage again and
again, which takes a fifth of the time, and once more at the end, which takes a fifth of a second.
"""

from __future__ import annotations

import atexit
import gc

__all__ = ["suit_one_job"]

NEW_OBJECTS = 100_000
"""How many objects are made between two collections: Python's own choice is 700."""


def suit_one_job() -> None:
    """Let this process collect garbage seldom, and at its end none: the operating system takes its memory back.

    Files and folders that are open by then are closed as usual, unless an unreachable circle of objects holds them.
    """
    gc.set_threshold(NEW_OBJECTS, *gc.get_threshold()[1:])
    atexit.register(gc.freeze)
